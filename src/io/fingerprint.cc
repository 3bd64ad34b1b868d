#include "io/fingerprint.h"

#include <algorithm>
#include <array>

#include "io/hash.h"
#include "io/json.h"

namespace kvant::io {
namespace {

constexpr std::uint64_t kWholeBytes = std::uint64_t{64} << 20;  // larger files are sampled
constexpr std::uint64_t kChunk = 65536;
constexpr std::uint64_t kSamples = 64;

}  // namespace

Result<Json> fingerprint(const InputFile& file) {
  const std::uint64_t size = file.size();
  std::array<std::byte, kChunk> buffer;
  Hash hash;
  const auto add = [&](std::uint64_t at, std::uint64_t bytes) -> Status {
    const std::span<std::byte> chunk(buffer.data(), std::min(bytes, size - at));
    if (Status s = file.read(at, chunk); !s.ok()) return s;
    hash.add(chunk);
    return {};
  };
  if (size <= kWholeBytes) {
    for (std::uint64_t at = 0; at < size; at += kChunk)
      if (Status s = add(at, kChunk); !s.ok()) return s;
  } else {
    // The first sample is the beginning of the header.
    for (std::uint64_t i = 0; i < kSamples; ++i)
      if (Status s = add((size - kChunk) / (kSamples - 1) * i, kChunk); !s.ok()) return s;
  }
  return Json{{"name", json_name(file.path().filename().string())},
              {"bytes", size},
              {"modified_ns", file.modified_ns()},
              {"hash", hash.text()}};
}

Result<Json> fingerprint(const std::filesystem::path& path) {
  const auto file = InputFile::open(path);
  if (!file.ok()) return file.status();
  return fingerprint(*file);
}

Result<Json> fingerprints(const Checkpoint& checkpoint) {
  Json files = Json::array();
  const auto add = [&](const Result<Json>& made) -> Status {
    if (!made.ok()) return made.status();
    files.push_back(*made);
    return {};
  };
  for (const SafetensorsFile& shard : checkpoint.shards())
    if (Status s = add(fingerprint(shard.file())); !s.ok()) return s;
  if (checkpoint.config())
    if (Status s = add(fingerprint(checkpoint.path() / kConfigName)); !s.ok()) return s;
  if (checkpoint.index())
    if (Status s = add(fingerprint(checkpoint.path() / kIndexName)); !s.ok()) return s;
  return files;
}

}  // namespace kvant::io
