// What tells later whether a file has still the bytes that it had. No protection against somebody who wants that to
// look so.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/progress.h"
#include "io/file.h"
#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant::io {

// Of a file of up to 4 MiB the hash is XXH3-128 of its bytes, as xxh128sum prints it. Of a larger one it is XXH3-128 of
// the hashes of its parts of 4 MiB, 16 bytes each, one after the other: threads share the parts, and the value does not
// depend on how.
struct Checksum {
  std::uint64_t bytes = 0;
  std::string hash;  // 32 hexadecimal digits
  friend bool operator==(const Checksum&, const Checksum&) = default;
};

// Reads all of the file, and advances by its bytes.
Result<Checksum> checksum(const InputFile& file, const Stream& stream, base::Progress& progress);
// Of a file that holds this text.
Checksum checksum(std::string_view text);

}  // namespace kvant::io
