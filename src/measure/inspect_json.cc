// An inspection as JSON.
#include "io/json.h"
#include "measure/inspect.h"

namespace kvant::measure {
namespace {

io::Json tensor_json(const InspectedTensor& tensor) {
  io::Json entry = {
      {"name", tensor.info.name},         {"dtype", io::name(tensor.info.dtype)}, {"shape", tensor.info.shape},
      {"bytes", tensor.info.bytes()},     {"shard", io::json_name(tensor.shard)}, {"role", name(tensor.judgement.role)},
      {"reason", tensor.judgement.reason}};
  if (tensor.stats)
    entry["stats"] = {{"min", io::json_number(tensor.stats->min)},
                      {"max", io::json_number(tensor.stats->max)},
                      {"rms", io::json_number(tensor.stats->rms)},
                      {"nan", tensor.stats->nan},
                      {"infinite", tensor.stats->infinite},
                      {"zeros", tensor.stats->zeros},
                      {"outlier_channels", tensor.stats->outlier_channels}};
  return entry;
}

}  // namespace

void write_json(const Inspection& inspection, const std::function<void(std::string_view)>& write) {
  io::Json metadata = io::Json::object();
  for (const auto& [shard, entries] : inspection.metadata) metadata[io::json_name(shard).get<std::string>()] = entries;
  io::Json json = {
      {"format", "kvant-inspect-1"}, {"path", io::json_name(inspection.path.string())}, {"bytes", inspection.bytes}};
  if (!inspection.model_type.empty()) json["model_type"] = inspection.model_type;
  if (!inspection.scheme.empty()) json["scheme"] = inspection.scheme;
  json["metadata"] = std::move(metadata);
  const std::string head = json.dump(2);
  write(std::string_view(head).substr(0, head.size() - 2));  // all but the end of the object
  write(",\n  \"tensors\": [");
  std::string_view separator = "\n    ";
  for (const InspectedTensor& tensor : inspection.tensors) {
    write(separator);
    write(tensor_json(tensor).dump());
    separator = ",\n    ";
  }
  write(inspection.tensors.empty() ? "]\n}\n" : "\n  ]\n}\n");
}

}  // namespace kvant::measure
