// Checkpoints side by side, which of them lost least, warnings, and the JSON document.
#include "measure/comparison.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/measure/compare_case.h"

namespace kvant::tests {
namespace {

TEST(Comparison, SideBySideTheWorstOfThemDecides) {
  Comparison comparison;
  const auto add = [&](std::vector<std::pair<std::string, double>> layers) {
    measure::ModelLoss& loss = comparison.quantized.emplace_back();
    for (const auto& [module, sqnr_db] : layers) {
      loss.layers.emplace_back();
      loss.layers.back().module = module;
      loss.layers.back().sqnr_db = sqnr_db;
    }
  };
  EXPECT_TRUE(side_by_side(comparison).empty());
  add({{"lost", -kInf}, {"a", 20}, {"b", 30}, {"exact", kInf}, {"broken", kInf}});
  add({{"broken", kNan}, {"b", 10}, {"c", 20}, {"exact", kInf}, {"lost", kInf}});
  const std::vector<measure::SideBySide> layers = side_by_side(comparison);
  std::string order;
  for (const measure::SideBySide& layer : layers) order += layer.worst->module + " ";
  EXPECT_EQ(order, "broken lost b a c exact ");
  const std::vector<LayerLoss>&first = comparison.quantized[0].layers, &second = comparison.quantized[1].layers;
  ASSERT_EQ(layers.size(), 6u);
  EXPECT_EQ(layers[0].worst, &second[0]);
  EXPECT_EQ(layers[0].losses, (std::vector<const LayerLoss*>{&first[4], &second[0]}));
  EXPECT_EQ(layers[1].worst, &first[0]);
  EXPECT_EQ(layers[2].worst, &second[1]);
  EXPECT_EQ(layers[3].losses, (std::vector<const LayerLoss*>{&first[1], nullptr}));
  EXPECT_EQ(layers[4].losses, (std::vector<const LayerLoss*>{nullptr, &second[2]}));
}

TEST(Comparison, MeritsAreOfTheLayersThatAllHave) {
  using measure::Judged;
  const auto loss = [](std::string module, double sqnr_db, std::optional<double> output = {}) {
    LayerLoss layer;
    layer.module = std::move(module);
    layer.sqnr_db = sqnr_db;
    layer.output_sqnr_db = output;
    return layer;
  };
  Comparison comparison;
  EXPECT_TRUE(measure::merits(comparison, Judged::weights).empty());
  comparison.quantized.resize(2);
  comparison.quantized[0].layers = {loss("a", 40, 30), loss("b", 20), loss("c", 10)};
  EXPECT_EQ(measure::merits(comparison, Judged::weights), (std::vector<double>{-200, -200}));
  comparison.quantized[1].layers = {loss("a", kInf, 10), loss("b", kNan)};
  EXPECT_EQ(measure::merits(comparison, Judged::weights), (std::vector<double>{30, 0}));
  EXPECT_EQ(measure::merits(comparison, Judged::outputs), (std::vector<double>{30, 10}));
  // A layer of which only one of them knows it would not be fair.
  comparison.quantized[0].layers[1].output_sqnr_db = 90;
  EXPECT_EQ(measure::merits(comparison, Judged::outputs), (std::vector<double>{30, 10}));
  comparison.quantized[1].layers = {loss("a", -1000)};
  EXPECT_EQ(measure::merits(comparison, Judged::weights), (std::vector<double>{40, -200}));
}

TEST(Comparison, IsJudgedByOutputsWhereTheyAreKnown) {
  using measure::Judged;
  Comparison comparison;
  EXPECT_EQ(judged_by(comparison), Judged::weights);
  comparison.quantized.resize(3);  // the third quantized nothing
  for (std::size_t q : {0u, 1u})
    for (const char* const module : {"a", "b", "c"}) {
      LayerLoss& layer = comparison.quantized[q].layers.emplace_back();
      layer.module = module;
      layer.sqnr_db = 40;
    }
  std::vector<LayerLoss>&first = comparison.quantized[0].layers, &second = comparison.quantized[1].layers;
  EXPECT_EQ(judged_by(comparison), Judged::weights);
  for (std::vector<LayerLoss>* const layers : {&first, &second}) {
    EXPECT_EQ(judged_by(comparison), Judged::weights);  // not yet known of every checkpoint
    (*layers)[0].estimated_output_sqnr_db = 30;
    EXPECT_EQ(judged_by(comparison), Judged::weights);  // of one layer in three
    (*layers)[2].estimated_output_sqnr_db = 20;
  }
  EXPECT_EQ(judged_by(comparison), Judged::estimated_outputs);
  first[0].output_sqnr_db = first[1].output_sqnr_db = 10;
  EXPECT_EQ(judged_by(comparison), Judged::estimated_outputs);
  second[0].output_sqnr_db = second[1].output_sqnr_db = 11;
  EXPECT_EQ(judged_by(comparison), Judged::outputs);

  EXPECT_EQ(mean_sqnr_db(comparison.quantized[0], Judged::estimated_outputs), 25);
  EXPECT_EQ(mean_sqnr_db(comparison.quantized[2], Judged::outputs), std::nullopt);
  const auto order = [&](Judged by) {
    std::string text;
    for (const measure::SideBySide& layer : side_by_side(comparison, by)) text += layer.worst->module;
    return text;
  };
  EXPECT_EQ(order(Judged::weights), "abc");
  EXPECT_EQ(order(Judged::estimated_outputs), "cab");  // what is not known comes last
  second[1].output_sqnr_db = 5;
  EXPECT_EQ(order(Judged::outputs), "bac");
  EXPECT_EQ(side_by_side(comparison, Judged::outputs)[0].worst, &second[1]);
}

TEST(CompareWarnings, SayWhatAPersonShouldKnow) {
  ModelLoss model;
  EXPECT_TRUE(warnings_of(model).empty());
  LayerLoss good;
  good.module = "good.q_proj";
  good.sqnr_db = 40;
  model.layers = {good};
  EXPECT_TRUE(warnings_of(model).empty());
  LayerLoss nan = good, dead = good, saturated = good;
  nan.module = "layer.with.nan";
  nan.non_finite = 17;
  dead.module = "layer.dead";
  dead.dead_channels = 23;
  saturated.module = "layer.saturated";
  saturated.saturated = true;
  const auto told = [&](const LayerLoss& loss, const std::string& word) {
    model.layers = {good, loss};
    for (const std::string& sentence : warnings_of(model))
      if (sentence.find(word) != std::string::npos) return true;
    return false;
  };
  EXPECT_TRUE(told(nan, "17"));
  EXPECT_TRUE(told(nan, "finite"));
  EXPECT_TRUE(told(dead, "23"));
  EXPECT_TRUE(told(saturated, "ends"));
  model.layers = {nan, dead, saturated, good};
  EXPECT_GE(warnings_of(model).size(), 3u);
}

// The keys of an object, sorted.
std::vector<std::string> keys(const io::Json& object) {
  std::vector<std::string> all;
  for (const auto& [key, value] : object.items()) all.push_back(key);
  std::sort(all.begin(), all.end());
  return all;
}

using Keys = std::vector<std::string>;

TEST(CompareJson, HasTheShapeOfTheSchema) {
  const Several several({w8a8(), w4a16(24)}, numbered_layers(3), kAsItIs, [](std::size_t q, const std::string& module) {
    return q == 1 && module == "model.layers.1.mlp.up_proj";
  });
  const auto got = several.compare(several.paths, true);
  ASSERT_TRUE(got.ok()) << got.status().message();
  const io::Json json = to_json(*got);
  EXPECT_EQ(json["format"], "kvant-compare-1");
  EXPECT_EQ(keys(json["original"]), (Keys{"bytes", "model_type", "parameters", "path"}));
  EXPECT_EQ(json["original"]["path"], (several.scratch / "original").string());
  EXPECT_EQ(json["original"]["model_type"], "llama");
  EXPECT_EQ(json["original"]["bytes"], got->bytes);
  EXPECT_EQ(json["original"]["parameters"], got->parameters);
  ASSERT_EQ(json["quantized"].size(), 2u);
  for (std::size_t q = 0; q < 2; ++q) {
    const io::Json& model = json["quantized"][q];
    EXPECT_EQ(keys(model), (Keys{"bytes", "label", "layers", "mean_estimated_output_sqnr_db", "mean_output_sqnr_db",
                                 "mean_sqnr_db", "path", "scheme", "unquantized", "warnings"}));
    EXPECT_EQ(model["label"], fmt::format("q{}", q));
    ASSERT_EQ(model["layers"].size(), got->quantized[q].layers.size());
    for (std::size_t i = 0; i < model["layers"].size(); ++i) {
      const io::Json& layer = model["layers"][i];
      const LayerLoss& loss = got->quantized[q].layers[i];
      EXPECT_EQ(keys(layer), (Keys{"at_ends",
                                   "block",
                                   "columns",
                                   "cosine",
                                   "dead_channels",
                                   "estimated_output_sqnr_db",
                                   "input_ratio",
                                   "kind",
                                   "largest_column",
                                   "largest_error",
                                   "largest_row",
                                   "module",
                                   "mse",
                                   "non_finite",
                                   "outlier_channels",
                                   "output_sqnr_db",
                                   "rows",
                                   "saturated",
                                   "smoothed",
                                   "sqnr_db"}));
      EXPECT_EQ(layer["module"], loss.module);
      EXPECT_EQ(layer["kind"], "up");
      EXPECT_EQ(layer["block"], *loss.block);
      EXPECT_EQ(layer["sqnr_db"], loss.sqnr_db);
      EXPECT_EQ(layer["outlier_channels"], *loss.outlier_channels);
      EXPECT_EQ(layer["saturated"], loss.saturated);
      EXPECT_TRUE(layer["output_sqnr_db"].is_null());
    }
  }
  EXPECT_EQ(json["judged_by"], "weights");
  ASSERT_EQ(json["details"].size(), 3u);
  for (const io::Json& details : json["details"]) {
    EXPECT_EQ(keys(details), (Keys{"module", "quantized"}));
    ASSERT_EQ(details["quantized"].size(), 2u);
    EXPECT_EQ(details["quantized"][1].is_null(), details["module"] == "model.layers.1.mlp.up_proj");
    const io::Json& detail = details["quantized"][0];
    EXPECT_EQ(keys(detail), (Keys{"channels", "histogram", "inputs", "largest_errors", "row_stride", "strip"}));
    EXPECT_EQ(keys(detail["histogram"]), (Keys{"above", "below", "bins_per_code", "counts", "first_code", "weights"}));
    EXPECT_EQ(keys(detail["channels"]), (Keys{"largest", "least", "span", "sqnr_db"}));
    EXPECT_EQ(keys(detail["strip"]), (Keys{"column_span", "columns", "rms", "row_span", "rows"}));
    EXPECT_TRUE(detail["inputs"].is_null());
    for (const io::Json& error : detail["largest_errors"]) {
      EXPECT_EQ(keys(error), (Keys{"column", "error", "row", "value", "weight"}));
      EXPECT_EQ(error["error"].get<double>(), error["weight"].get<double>() - error["value"].get<double>());
    }
  }
}

}  // namespace
}  // namespace kvant::tests
