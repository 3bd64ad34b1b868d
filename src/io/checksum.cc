#include "io/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "base/divide_up.h"
#include "base/for_each_part.h"
#include "base/text.h"

namespace kvant::io {
namespace {

constexpr std::uint64_t kPartBytes = std::uint64_t{4} << 20;
// What is read at once: it stays in a core's cache, and a thread's stack has room for it.
constexpr std::uint64_t kReadBytes = std::uint64_t{64} << 10;

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

// "xxh128sum" prints these bytes.
XXH128_canonical_t canonical(XXH128_hash_t hash) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  return bytes;
}

Result<XXH128_canonical_t> hash_of_part(const InputFile& file, std::uint64_t begin, std::uint64_t end,
                                        base::Progress& progress) {
  const std::unique_ptr<XXH3_state_t, FreeState> state(XXH3_createState());
  if (state == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state.get());
  std::array<std::byte, kReadBytes> buffer;
  for (std::uint64_t at = begin; at < end; at += kReadBytes) {
    const std::span<std::byte> piece(buffer.data(), static_cast<std::size_t>(std::min(kReadBytes, end - at)));
    if (Status s = file.read(at, piece); !s.ok()) return s;
    XXH3_128bits_update(state.get(), piece.data(), piece.size());
  }
  progress.advance(end - begin);
  return canonical(XXH3_128bits_digest(state.get()));
}

Checksum joined(std::uint64_t bytes, const std::vector<XXH128_canonical_t>& parts) {
  const XXH128_canonical_t hash =
      parts.size() == 1 ? parts.front()
                        : canonical(XXH3_128bits(parts.data(), parts.size() * sizeof(XXH128_canonical_t)));
  Checksum made{bytes, {}};
  for (const unsigned char byte : hash.digest) made.hash += base::text("{:02x}", byte);
  return made;
}

// An empty file has one, too.
std::uint64_t parts_in(std::uint64_t bytes) { return std::max<std::uint64_t>(1, base::parts_of(bytes, kPartBytes)); }

}  // namespace

Result<Checksum> checksum(const InputFile& file, const Stream& stream, base::Progress& progress) {
  const std::uint64_t bytes = file.size();
  std::vector<XXH128_canonical_t> parts(static_cast<std::size_t>(parts_in(bytes)));
  Status done = base::for_each_part(stream, 0, parts.size(), [&](std::size_t, std::uint64_t i) -> Status {
    const auto hash = hash_of_part(file, i * kPartBytes, std::min(bytes, (i + 1) * kPartBytes), progress);
    if (!hash.ok()) return hash.status();
    parts[i] = *hash;
    return {};
  });
  if (!done.ok()) return done;
  return joined(bytes, parts);
}

Checksum checksum(std::string_view text) {
  std::vector<XXH128_canonical_t> parts;
  for (std::uint64_t i = 0; i < parts_in(text.size()); ++i) {
    const std::string_view part = text.substr(i * kPartBytes, kPartBytes);
    parts.push_back(canonical(XXH3_128bits(part.data(), part.size())));
  }
  return joined(text.size(), parts);
}

}  // namespace kvant::io
