// An evaluation as JSON: docs/evaluate.md describes it, docs/eval.schema.json is its schema.
#include <span>
#include <utility>

#include "io/json.h"
#include "kvant/version.h"
#include "measure/evaluate.h"

namespace kvant::measure {
namespace {

class Writer {
 public:
  Writer(const Evaluation& evaluation, const model::Tokenizer* tokenizer)
      : is_encoder_(evaluation.is_encoder), tokenizer_(tokenizer) {}

  io::Json original(const ModelQuality& quality) const {
    io::Json json = {{"path", io::json_name(quality.path.string())},
                     {"label", io::json_name(quality.label)},
                     {"scheme", quality.scheme.empty() ? io::Json() : io::Json(quality.scheme)},
                     {"bytes", quality.bytes},
                     {"bits_per_weight", io::json_number(quality.bits_per_weight)}};
    if (is_encoder_) return json;
    json["perplexity"] = io::json_number(quality.prediction.perplexity);
    json["perplexity_standard_error"] = io::json_number(quality.prediction.perplexity_error);
    return json;
  }

  io::Json quantized(const ModelQuality& quality) const {
    io::Json json = original(quality);
    json["verdict"] = name(quality.verdict);
    if (is_encoder_) {
      json["mean_cosine"] = io::json_number(quality.mean_cosine);
      json["min_cosine"] = io::json_number(quality.min_cosine);
      json["rank_agreement"] = quality.rank_agreement ? io::json_number(*quality.rank_agreement) : io::Json();
      return json;
    }
    json["mean_kl"] = io::json_number(quality.mean_kl);
    json["kl_99"] = io::json_number(quality.kl_99);
    json["same_top"] = io::json_number(quality.same_top);
    json["mean_log_probability_change"] = io::json_number(quality.mean_log_probability_change);
    io::Json positions = io::Json::array(), differences = io::Json::array();
    for (const double kl : quality.kl_by_position) positions.push_back(io::json_number(kl));
    for (const TokenDifference& each : quality.differences) differences.push_back(difference(each));
    json["kl_by_position"] = std::move(positions);
    json["differences"] = std::move(differences);
    return json;
  }

 private:
  io::Json difference(const TokenDifference& each) const {
    return {{"sequence", each.sequence},
            {"position", each.position},
            {"kl", io::json_number(each.kl)},
            {"context", {{"ids", each.context}, {"text", text(each.context)}}},
            {"token", {{"id", each.token}, {"text", text({&each.token, 1})}}},
            {"original_probability", io::json_number(each.original_probability)},
            {"probability", io::json_number(each.probability)},
            {"original_top", guess(each.original_top)},
            {"top", guess(each.top)}};
  }
  io::Json guess(const TokenDifference::Guess& guess) const {
    return {
        {"id", guess.token}, {"text", text({&guess.token, 1})}, {"probability", io::json_number(guess.probability)}};
  }
  io::Json text(std::span<const std::int32_t> ids) const {
    return tokenizer_ == nullptr ? io::Json() : io::Json(tokenizer_->decode(ids));
  }

  bool is_encoder_;
  const model::Tokenizer* tokenizer_;
};

}  // namespace

io::Json to_json(const Evaluation& evaluation, const model::Tokenizer* tokenizer) {
  const Writer writer(evaluation, tokenizer);
  io::Json quantized = io::Json::array();
  for (const ModelQuality& quality : evaluation.quantized) quantized.push_back(writer.quantized(quality));
  return {{"format", "kvant-eval-1"},
          {"kvant", version()},
          {"model_type", evaluation.model_type},
          {"is_encoder", evaluation.is_encoder},
          {"tokens", evaluation.tokens},
          {"sequences", evaluation.sequences},
          {"verdict_rule", verdict_rule(evaluation.is_encoder)},
          {"original", writer.original(evaluation.original)},
          {"quantized", std::move(quantized)}};
}

}  // namespace kvant::measure
