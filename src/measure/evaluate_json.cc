// An evaluation as JSON.
#include "io/json.h"
#include "measure/evaluate.h"

namespace kvant::measure {
namespace {

io::Json model_json(const ModelQuality& quality, bool is_encoder, bool is_original) {
  io::Json json = {{"path", io::json_name(quality.path.string())}, {"bytes", quality.bytes}};
  if (!quality.scheme.empty()) json["scheme"] = quality.scheme;
  if (!is_encoder) {
    json["perplexity"] = io::json_number(quality.prediction.perplexity);
    json["perplexity_standard_error"] = io::json_number(quality.prediction.perplexity_error);
  }
  if (is_original) return json;
  json["verdict"] = name(quality.verdict);
  if (is_encoder) {
    json["mean_cosine"] = io::json_number(quality.mean_cosine);
    json["min_cosine"] = io::json_number(quality.min_cosine);
    return json;
  }
  json["mean_kl"] = io::json_number(quality.mean_kl);
  json["kl_99"] = io::json_number(quality.kl_99);
  json["same_top"] = io::json_number(quality.same_top);
  json["mean_log_probability_change"] = io::json_number(quality.mean_log_probability_change);
  io::Json positions = io::Json::array();
  for (const double kl : quality.kl_by_position) positions.push_back(io::json_number(kl));
  json["kl_by_position"] = std::move(positions);
  return json;
}

}  // namespace

io::Json to_json(const Evaluation& evaluation) {
  io::Json quantized = io::Json::array();
  for (const ModelQuality& quality : evaluation.quantized)
    quantized.push_back(model_json(quality, evaluation.is_encoder, false));
  return {{"model_type", evaluation.model_type},
          {"tokens", evaluation.tokens},
          {"sequences", evaluation.sequences},
          {"original", model_json(evaluation.original, evaluation.is_encoder, true)},
          {"quantized", std::move(quantized)}};
}

}  // namespace kvant::measure
