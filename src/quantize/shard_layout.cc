#include "quantize/shard_layout.h"

#include <algorithm>
#include <map>
#include <span>
#include <system_error>
#include <utility>

#include "base/refuse.h"
#include "format/compressed_tensors.h"
#include "format/module_name.h"
#include "format/quantization_config.h"
#include "io/json.h"

namespace kvant::quantize {

using base::invalid_problem;

Result<ShardLayout> lay_out_shard(const io::Checkpoint& checkpoint, std::size_t shard, const CheckpointPlan& plan,
                                  bool with_config) {
  struct Output {
    io::TensorInfo info;
    std::size_t entry;
    format::TensorKind kind;
  };
  ShardLayout made;
  std::vector<Output> outputs;
  for (const TensorPlan& tensor : plan.tensors) {
    if (tensor.shard != shard) continue;
    if (const format::Scheme* const scheme = plan.scheme_of(tensor)) {
      for (format::LayerOutput& output : format::layer_outputs(*scheme, format::module_of(tensor.name), tensor.dtype,
                                                               tensor.shape[0], tensor.shape[1]))
        outputs.push_back({std::move(output.info), made.entries.size(), output.kind});
    } else {
      outputs.push_back(
          {{tensor.name, tensor.dtype, tensor.shape, 0, 0}, made.entries.size(), format::TensorKind::codes});
    }
    made.entries.push_back({.plan = &tensor, .places = {}});
  }
  std::stable_sort(outputs.begin(), outputs.end(),
                   [](const Output& a, const Output& b) { return io::bits(a.info.dtype) > io::bits(b.info.dtype); });
  std::vector<io::TensorInfo> infos;
  for (const Output& output : outputs) infos.push_back(output.info);
  std::map<std::string, std::string> metadata = checkpoint.shards()[shard].metadata();
  metadata["format"] = "pt";  // readers in the Hugging Face world take no other
  if (with_config && plan.schemes.empty()) metadata.erase("quantization_config");
  if (with_config && !plan.schemes.empty())
    metadata["quantization_config"] = format::quantization_json(quantization_config(plan)).dump();
  auto layout = io::lay_out_safetensors(std::move(infos), metadata);
  if (!layout.ok())
    return invalid_problem("{}: {}", io::printable_path(checkpoint.shards()[shard].file().path()),
                           layout.status().message());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const io::TensorInfo& info = layout->tensors[i];
    ShardLayout::Entry& entry = made.entries[outputs[i].entry];
    const std::uint64_t at = layout->header.size() + info.begin;
    switch (outputs[i].kind) {
      case format::TensorKind::codes:
      case format::TensorKind::packed_codes: entry.places.codes = at; break;
      case format::TensorKind::scales: entry.places.scales = at; break;
      case format::TensorKind::zero_points: entry.places.zero_points = at; break;
      case format::TensorKind::weight_shape: entry.weight_shape = at; break;
      case format::TensorKind::input_scale: entry.input_scale = at; break;
      case format::TensorKind::input_zero_point: entry.input_zero_point = at; break;
      case format::TensorKind::global_scale: entry.global_scale = at; break;
      case format::TensorKind::input_global_scale: entry.input_global_scale = at; break;
    }
    made.names.push_back(info.name);
    made.tensor_bytes += info.bytes();
  }
  made.header = std::move(layout->header);
  made.file_bytes = layout->file_bytes;
  return made;
}

Result<bool> is_shard_there(const std::filesystem::path& path, std::string_view header, std::uint64_t file_bytes) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return false;
  const auto file = io::InputFile::open(path);
  if (!file.ok()) return file.status();
  if (file->size() != file_bytes || file->size() < header.size()) return false;
  std::string found(header.size(), '\0');
  if (Status s = file->read(0, std::as_writable_bytes(std::span(found))); !s.ok()) return s;
  return found == header;
}

}  // namespace kvant::quantize
