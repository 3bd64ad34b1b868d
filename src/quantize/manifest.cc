#include "quantize/manifest.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "base/refuse.h"
#include "io/json.h"
#include "kvant/version.h"

namespace kvant::quantize {
namespace {

// FNV-1a: tells a changed file from the same one; it is no protection against somebody who wants them to agree.
class Hash {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) value_ = (value_ ^ static_cast<std::uint64_t>(b)) * 0x100000001B3;
  }
  std::string text() const { return fmt::format("{:016x}", value_); }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325;
};

constexpr std::uint64_t kWholeBytes = std::uint64_t{64} << 20;  // larger files are sampled
constexpr std::uint64_t kChunk = 65536;
constexpr std::uint64_t kSamples = 64;

Result<io::Json> fingerprint(const io::InputFile& file) {
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
  return io::Json{{"name", io::json_name(file.path().filename().string())},
                  {"bytes", size},
                  {"modified_ns", file.modified_ns()},
                  {"hash", hash.text()}};
}

Result<io::Json> fingerprint(const std::filesystem::path& path) {
  const auto file = io::InputFile::open(path);
  if (!file.ok()) return file.status();
  return fingerprint(*file);
}

io::Json options_of(const QuantizeOptions& options) {
  const format::Scheme& scheme = options.scheme;
  io::Json json = {{"scheme", name(scheme.kind)},
                   {"asymmetric", scheme.asymmetric},
                   {"group_size", scheme.group_size},
                   {"scale_dtype", scheme.scale_dtype ? io::Json(io::name(*scheme.scale_dtype)) : io::Json()},
                   {"smooth", options.smooth},
                   {"alpha", options.alpha ? io::Json(*options.alpha) : io::Json()},
                   {"smooth_groups", options.smooth_groups ? io::json_name(*options.smooth_groups) : io::Json()},
                   {"ignore", io::Json::array()},
                   {"include", io::Json::array()}};
  for (const std::string& pattern : options.ignore) json["ignore"].push_back(io::json_name(pattern));
  for (const std::string& pattern : options.include) json["include"].push_back(io::json_name(pattern));
  return json;
}

io::Json manifest_of(const io::Json& options, const io::Json& files, std::span<const std::string> outputs) {
  io::Json names = io::Json::array();
  for (const std::string& name : outputs) names.push_back(io::json_name(name));
  return {{"format", "kvant-manifest-1"},
          {"kvant", KVANT_VERSION},
          {"options", options},
          {"input", files},
          {"outputs", names}};
}

std::string shortened(const io::Json& value) { return value.dump(-1, ' ', true).substr(0, 80); }

}  // namespace

Result<io::Json> make_manifest(const io::Checkpoint& checkpoint, const QuantizeOptions& options,
                               std::span<const std::string> outputs) {
  io::Json files = io::Json::array();
  const auto add = [&](const Result<io::Json>& made) -> Status {
    if (!made.ok()) return made.status();
    files.push_back(*made);
    return {};
  };
  for (const io::SafetensorsFile& shard : checkpoint.shards())
    if (Status s = add(fingerprint(shard.file())); !s.ok()) return s;
  if (checkpoint.config())
    if (Status s = add(fingerprint(checkpoint.path() / io::kConfigName)); !s.ok()) return s;
  if (checkpoint.index())
    if (Status s = add(fingerprint(checkpoint.path() / io::kIndexName)); !s.ok()) return s;
  if (options.stats)
    if (Status s = add(fingerprint(*options.stats)); !s.ok()) return s;
  std::error_code ignored;
  if (options.smooth_groups && std::filesystem::is_regular_file(*options.smooth_groups, ignored))
    if (Status s = add(fingerprint(std::filesystem::path(*options.smooth_groups))); !s.ok()) return s;
  return manifest_of(options_of(options), files, outputs);
}

Result<io::Json> make_manifest(const io::InputFile& input, const io::Json& options,
                               std::span<const std::string> outputs) {
  const auto made = fingerprint(input);
  if (!made.ok()) return made.status();
  return manifest_of(options, io::Json::array({*made}), outputs);
}

std::string manifest_difference(const io::Json& before, const io::Json& now) {
  if (before == now) return {};
  const auto at = [](const io::Json& object, std::string_view key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    return found == object.end() ? io::Json() : *found;
  };
  if (at(before, "kvant") != at(now, "kvant"))
    return fmt::format("it was started by version {} of kvant, this is {}", shortened(at(before, "kvant")),
                       shortened(at(now, "kvant")));
  const io::Json options = at(now, "options");
  for (const auto& [key, value] : options.items())
    if (at(at(before, "options"), key) != value)
      return fmt::format("{} was {} and is now {}", key, shortened(at(at(before, "options"), key)), shortened(value));
  const io::Json files_before = at(before, "input"), files = at(now, "input");
  if (!files_before.is_array() || files_before.size() != files.size()) return "the files of the input are not the same";
  for (std::size_t i = 0; i < files.size(); ++i)
    if (files_before[i] != files[i])
      return fmt::format("the input file {} has changed", shortened(at(files[i], "name")));
  return "its manifest differs";
}

}  // namespace kvant::quantize
