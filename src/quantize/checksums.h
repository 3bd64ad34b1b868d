// OUT/kvant/checksums.json: what every file of a finished folder holds, so that `kvant verify` finds a byte that
// changed. Written after all other files and before config.json, whose text is known by then.
//
//   {"format": "kvant-checksums-1", "files": [{"name": "config.json", "bytes": 1234, "xxh3_128": "…"}, …]}
//
// by name, so that a run that was interrupted ends with the same bytes as one that was not. The manifest is left out:
// it has the times of the input's files, and the same input and options shall give the same checksums.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/progress.h"
#include "io/checksum.h"
#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant::quantize {

// By name, relative to the folder; a name that is no UTF-8 as io::json_name() writes it.
using Checksums = std::map<std::string, io::Checksum, std::less<>>;

// What is in the folder by now.
Status add_checksum(const std::filesystem::path& folder, const std::string& name, const Stream& stream,
                    Checksums& checksums);
// With a line for `config`, the text that config.json will have.
Status write_checksums(const std::filesystem::path& folder, Checksums checksums, std::string_view config,
                       bool overwrite);
// Nothing: the folder has none. Refuses what is no such file.
Result<std::optional<Checksums>> read_checksums(const std::filesystem::path& folder);

}  // namespace kvant::quantize
