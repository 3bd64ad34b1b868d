// A comparison as JSON: docs/report.md describes it, docs/compare.schema.json is its schema.
#include "format/quantized_layers.h"
#include "io/json.h"
#include "kvant/version.h"
#include "measure/compare.h"

namespace kvant::measure {
namespace {

io::Json numbers(const std::vector<double>& values) {
  io::Json list = io::Json::array();
  for (const double value : values) list.push_back(io::json_number(value));
  return list;
}

io::Json to_json(const InputChannels& inputs) {
  if (inputs.empty()) return {};
  const auto ratio = [](const std::vector<double>& of, double value) {
    return of.empty() ? io::Json() : io::json_number(value);
  };
  return {{"span", inputs.span},
          {"before", numbers(inputs.before)},
          {"after", numbers(inputs.after)},
          {"smoothing_least", numbers(inputs.smoothing_least)},
          {"smoothing_largest", numbers(inputs.smoothing_largest)},
          {"ratio_before", ratio(inputs.before, inputs.ratio_before)},
          {"ratio_after", ratio(inputs.after, inputs.ratio_after)}};
}

io::Json to_json(const LayerDetail& detail) {
  io::Json errors = io::Json::array();
  for (const WeightError& error : detail.largest_errors)
    errors.push_back({{"row", error.row},
                      {"column", error.column},
                      {"weight", io::json_number(error.weight)},
                      {"value", io::json_number(error.value)},
                      {"error", io::json_number(error.weight - error.value)}});
  return {{"row_stride", detail.row_stride},
          {"histogram",
           {{"first_code", detail.histogram.first_code},
            {"bins_per_code", detail.histogram.bins_per_code},
            {"counts", detail.histogram.counts},
            {"below", detail.histogram.below},
            {"above", detail.histogram.above},
            {"weights", detail.histogram.weights}}},
          {"channels",
           {{"span", detail.channels.span},
            {"least", numbers(detail.channels.least)},
            {"largest", numbers(detail.channels.largest)},
            {"sqnr_db", numbers(detail.channels.sqnr_db)}}},
          {"strip",
           {{"row_span", detail.strip.row_span},
            {"column_span", detail.strip.column_span},
            {"rows", detail.strip.rows},
            {"columns", detail.strip.columns},
            {"rms", numbers(detail.strip.rms)}}},
          {"largest_errors", std::move(errors)},
          {"inputs", to_json(detail.inputs)}};
}

io::Json or_null(const std::optional<std::uint64_t>& value) { return value ? io::Json(*value) : io::Json(); }
io::Json number_or_null(const std::optional<double>& value) { return value ? io::json_number(*value) : io::Json(); }

io::Json to_json(const ModelLoss& loss) {
  io::Json layers = io::Json::array();
  for (const LayerLoss& layer : loss.layers)
    layers.push_back({{"module", layer.module},
                      {"kind", name(layer.kind)},
                      {"block", or_null(layer.block)},
                      {"rows", layer.rows},
                      {"columns", layer.columns},
                      {"sqnr_db", io::json_number(layer.sqnr_db)},
                      {"mse", io::json_number(layer.mse)},
                      {"cosine", io::json_number(layer.cosine)},
                      {"largest_error", io::json_number(layer.largest_error)},
                      {"largest_row", layer.largest_row},
                      {"largest_column", layer.largest_column},
                      {"at_ends", io::json_number(layer.at_ends)},
                      {"outlier_channels", or_null(layer.outlier_channels)},
                      {"dead_channels", layer.dead_channels},
                      {"saturated", layer.saturated},
                      {"non_finite", layer.non_finite},
                      {"smoothed", layer.smoothed},
                      {"input_ratio", number_or_null(layer.input_ratio)},
                      {"estimated_output_sqnr_db", number_or_null(layer.estimated_output_sqnr_db)},
                      {"output_sqnr_db", number_or_null(layer.output_sqnr_db)}});
  return {{"path", io::json_name(loss.path.string())},
          {"label", io::json_name(loss.label)},
          {"scheme", loss.scheme},
          {"bytes", loss.bytes},
          {"mean_sqnr_db", number_or_null(mean_sqnr_db(loss, Judged::weights))},
          {"mean_estimated_output_sqnr_db", number_or_null(mean_sqnr_db(loss, Judged::estimated_outputs))},
          {"mean_output_sqnr_db", number_or_null(mean_sqnr_db(loss, Judged::outputs))},
          {"warnings", warnings_of(loss)},
          {"layers", std::move(layers)},
          {"unquantized", loss.unquantized}};
}

}  // namespace

io::Json to_json(const Comparison& comparison) {
  io::Json quantized = io::Json::array(), details = io::Json::array();
  for (const ModelLoss& loss : comparison.quantized) quantized.push_back(to_json(loss));
  for (const LayerDetails& layer : comparison.details) {
    io::Json each = io::Json::array();
    for (const std::optional<LayerDetail>& detail : layer.quantized)
      each.push_back(detail ? to_json(*detail) : io::Json());
    details.push_back({{"module", layer.module}, {"quantized", std::move(each)}});
  }
  return {{"format", "kvant-compare-1"},
          {"kvant", version()},
          {"original",
           {{"path", io::json_name(comparison.original.string())},
            {"model_type", comparison.model_type.empty() ? io::Json() : io::Json(comparison.model_type)},
            {"bytes", comparison.bytes},
            {"parameters", comparison.parameters}}},
          {"quantized", std::move(quantized)},
          {"judged_by", name(judged_by(comparison))},
          {"details", std::move(details)},
          {"warnings", comparison.warnings},
          {"seconds", io::json_number(comparison.seconds)}};
}

}  // namespace kvant::measure
