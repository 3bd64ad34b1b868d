#include "measure/statistics_parts.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/refuse.h"
#include "format/activation_stats.h"
#include "format/kv_cache.h"
#include "format/module_name.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "io/safetensors.h"

namespace kvant::measure {
namespace {

namespace fs = std::filesystem;
using base::invalid_problem;

constexpr const char* kHead = "head";

std::string block_name(std::size_t block) { return base::text("block-{:05}", block); }

// A tensor of a part.
struct PartTensor {
  const io::SafetensorsFile* part;
  const io::TensorInfo* tensor;
};

Status copy(const PartTensor& place, std::vector<std::byte>& buffer, io::AtomicFile& to, base::Progress& progress) {
  constexpr std::uint64_t kBytes = std::uint64_t{1} << 22;
  for (std::uint64_t at = 0; at < place.tensor->bytes(); at += kBytes) {
    buffer.resize(static_cast<std::size_t>(std::min(kBytes, place.tensor->bytes() - at)));
    if (Status s = place.part->read(*place.tensor, at, buffer); !s.ok()) return s;
    if (Status s = to.write(buffer); !s.ok()) return s;
    progress.advance(buffer.size());
  }
  return {};
}

}  // namespace

Status StatisticsParts::write_block(std::size_t block, std::span<const SeenInput> inputs,
                                    std::span<const SeenCache> caches) const {
  return write(block_name(block), inputs, caches);
}

fs::path StatisticsParts::block_file(std::size_t block) const { return folder_.file(block_name(block)); }

bool StatisticsParts::has_blocks(std::size_t count) const {
  std::error_code error;
  for (std::size_t block = 0; block < count; ++block)
    if (!fs::exists(block_file(block), error)) return false;
  return true;
}

Status StatisticsParts::write_head(std::span<const SeenInput> inputs) const { return write(kHead, inputs, {}); }

Status StatisticsParts::write(const std::string& name, std::span<const SeenInput> inputs,
                              std::span<const SeenCache> caches) const {
  std::vector<io::TensorInfo> tensors;
  std::map<std::string, std::string> metadata = run_;
  for (const auto& [modules, statistics] : inputs)
    for (const std::string& module : modules) {
      const bool is_first = module == modules.front();
      if (!is_first) metadata[format::same_input_key(module)] = modules.front();
      for (io::TensorInfo& tensor : statistics->tensors(module, is_first)) tensors.push_back(std::move(tensor));
    }
  for (const auto& [attention, statistics] : caches)
    for (io::TensorInfo& tensor : statistics->tensors(attention)) tensors.push_back(std::move(tensor));
  const auto layout = io::lay_out_safetensors(std::move(tensors), metadata);
  if (!layout.ok()) return layout.status();
  auto file = io::AtomicFile::create(folder_.file(name), true);
  if (!file.ok()) return file.status();
  if (Status s = file->write(std::as_bytes(std::span(layout->header))); !s.ok()) return s;
  for (const auto& [modules, statistics] : inputs)
    for (const std::string& module : modules)
      if (Status s = statistics->write(module == modules.front(), *file); !s.ok()) return s;
  for (const auto& [attention, statistics] : caches)
    if (Status s = statistics->write(*file); !s.ok()) return s;
  return file->commit(true);
}

Result<std::set<std::string>> StatisticsParts::join(std::size_t blocks, bool with_head, const fs::path& output,
                                                    bool overwrite, base::Progress& progress) const {
  std::vector<io::SafetensorsFile> parts;
  std::map<std::string, std::string> metadata = run_;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < blocks + (with_head ? 1 : 0); ++i) {
    auto part = io::SafetensorsFile::open(folder_.file(i < blocks ? block_name(i) : kHead));
    if (!part.ok()) return part.status();
    for (const auto& [key, value] : run_) {
      const auto found = part->metadata().find(key);
      if (found == part->metadata().end() || found->second != value)
        return invalid_problem("{}: is of another run: its {} is '{}', not '{}'",
                               io::printable_path(part->file().path()), key,
                               found == part->metadata().end() ? std::string() : io::printable(found->second), value);
    }
    metadata.insert(part->metadata().begin(), part->metadata().end());
    parts.push_back(std::move(part).value());
  }
  // Numbers of eight bytes first, so that all are at multiples of their size; keys and values last, as files merge.
  std::vector<PartTensor> places;
  for (const io::SafetensorsFile& part : parts)
    for (const io::TensorInfo& tensor : part.tensors()) {
      places.push_back({&part, &tensor});
      bytes += tensor.bytes();
    }
  std::stable_partition(places.begin(), places.end(),
                        [](const PartTensor& place) { return io::bits(place.tensor->dtype) == 64; });
  std::stable_partition(places.begin(), places.end(), [](const PartTensor& place) {
    return !format::cache_statistics_of(format::parent_of(place.tensor->name));
  });
  std::vector<io::TensorInfo> tensors;
  std::set<std::string> names;
  for (const PartTensor& place : places) {
    tensors.push_back(*place.tensor);
    names.insert(place.tensor->name);
  }
  const auto layout = io::lay_out_safetensors(std::move(tensors), metadata);
  if (!layout.ok()) return layout.status();
  auto file = io::AtomicFile::create(output, overwrite);
  if (!file.ok()) return file.status();
  if (Status s = file->write(std::as_bytes(std::span(layout->header))); !s.ok()) return s;
  progress.begin("writing", bytes);
  std::vector<std::byte> buffer;
  for (const PartTensor& place : places)
    if (Status s = copy(place, buffer, *file, progress); !s.ok()) return s;
  if (Status s = file->commit(overwrite); !s.ok()) return s;
  return names;
}

}  // namespace kvant::measure
