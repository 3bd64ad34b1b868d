// What outputs of linears lose on a text: beside a plain form in double precision, what smoothing gains where inputs
// have outliers, any number of threads, refusals.
#include "measure/output_losses.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "format/quantized_layers.h"
#include "measure/calibrate.h"
#include "measure/compare.h"
#include "quantize/quantize_checkpoint.h"
#include "tests/support/network_fixture.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using F = NetworkFixture;
using measure::Comparison;

const model::TokenText kText =
    model::cut({3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32, 3, 8, 39, 26, 4, 3, 38, 32, 60, 0}, 9, 0);

// A model whose first norm gives one channel twenty times as much as the others.
class OutputLosses : public ::testing::Test {
 protected:
  OutputLosses() : model_(llama_model(llama_config())) {
    auto* const norm = model_.files().find("model.layers.0.input_layernorm.weight");
    const float large = 20;
    std::memcpy(norm->bytes.data() + 5 * sizeof(float), &large, sizeof(float));
    model_.files().write(folder_ / "model");
    base::Silence silence;
    must(
        measure::calibrate({.model = folder_ / "model", .output = folder_ / "stats", .text = kText}, silence).status());
  }

  void quantize(const char* name, const format::Scheme& scheme, bool smooth = false) {
    quantize::QuantizeOptions options;
    options.input = folder_ / "model";
    options.output = folder_ / name;
    options.scheme = scheme;
    options.smooth = smooth;
    if (smooth) options.stats = folder_ / "stats";
    auto quantizer = quantize::CheckpointQuantizer::plan(options);
    must(quantizer.status());
    base::Silence silence;
    must(quantizer->run(silence).status());
  }

  Comparison compare(std::vector<std::filesystem::path> quantized) {
    base::Silence silence;
    auto comparison = measure::compare({.original = folder_ / "model", .quantized = std::move(quantized)}, silence);
    must(comparison.status());
    return std::move(comparison).value();
  }

  std::vector<double> values(const std::string& tensor) {
    const FixtureTensor* const found = model_.files().find(tensor);
    std::vector<float> floats(found->bytes.size() / sizeof(float));
    std::memcpy(floats.data(), found->bytes.data(), found->bytes.size());
    return {floats.begin(), floats.end()};
  }

  ScratchFolder folder_;
  NetworkFixture model_;
};

std::map<std::string, double> by_module(const measure::ModelLoss& loss) {
  std::map<std::string, double> outputs;
  for (const measure::LayerLoss& layer : loss.layers) outputs[layer.module] = layer.output_sqnr_db.value();
  return outputs;
}

TEST_F(OutputLosses, ArePlainSumsOverTheText) {
  quantize("w4a16", {.kind = format::SchemeKind::w4a16, .group_size = 16});
  Comparison comparison = compare({folder_ / "w4a16"});
  base::Silence silence;
  ASSERT_TRUE(measure::measure_outputs(kText, 1, comparison, silence).ok());

  // The first linear reads norm(embedding), and its activations are not quantized.
  const std::string module = "model.layers.0.self_attn.q_proj";
  const auto table = values("model.embed_tokens.weight"), norm = values("model.layers.0.input_layernorm.weight"),
             weight = values(module + ".weight");
  const auto checkpoint = io::Checkpoint::open(folder_ / "w4a16");
  ASSERT_TRUE(checkpoint.ok());
  const auto config = format::read_quantization_config(*checkpoint);
  ASSERT_TRUE(config.ok());
  const auto layers = format::find_quantized_layers(*checkpoint, *config);
  ASSERT_TRUE(layers.ok());
  format::LayerRows rows;
  for (const format::QuantizedLayer& layer : *layers)
    if (layer.module == module) must(format::read_rows(*checkpoint, layer, 0, layer.rows, rows));
  double signal = 0, noise = 0;
  for (const std::int32_t id : kText.ids) {
    const double* const e = table.data() + static_cast<std::size_t>(id) * F::kHidden;
    double squares = 0;
    for (std::size_t k = 0; k < F::kHidden; ++k) squares += e[k] * e[k];
    const double scale = 1 / std::sqrt(squares / F::kHidden + 1e-5);
    for (std::size_t n = 0; n < F::kHidden; ++n) {
      double y = 0, got = 0;
      for (std::size_t k = 0; k < F::kHidden; ++k) {
        const double x = e[k] * scale * norm[k];
        y += weight[n * F::kHidden + k] * x;
        got += static_cast<double>(rows.scales[n * rows.groups + k / 16]) * rows.codes[n * F::kHidden + k] * x;
      }
      signal += y * y;
      noise += (y - got) * (y - got);
    }
  }
  EXPECT_NEAR(by_module(comparison.quantized[0]).at(module), 10 * std::log10(signal / noise), 1e-3);
}

TEST_F(OutputLosses, ShowWhatSmoothingGains) {
  quantize("plain", {.kind = format::SchemeKind::w8a8});
  quantize("smooth", {.kind = format::SchemeKind::w8a8}, true);
  Comparison comparison = compare({folder_ / "plain", folder_ / "smooth"});
  base::Silence silence;
  ASSERT_TRUE(measure::measure_outputs(kText, 1, comparison, silence).ok());
  const auto plain = by_module(comparison.quantized[0]), smooth = by_module(comparison.quantized[1]);
  ASSERT_EQ(plain.size(), 14u);
  for (const auto& [module, db] : plain) {
    EXPECT_GT(db, 20) << module;
    EXPECT_LT(db, 60) << module;
  }
  for (const char* const name : {"q_proj", "k_proj", "v_proj"}) {
    const std::string module = std::string("model.layers.0.self_attn.") + name;
    EXPECT_GT(smooth.at(module), plain.at(module) + 3) << module;
  }
  // These are not smoothed, and read the same.
  for (const char* const module : {"model.layers.1.self_attn.o_proj", "model.layers.1.mlp.down_proj"})
    EXPECT_EQ(smooth.at(module), plain.at(module)) << module;

  for (const int threads : {3, 0}) {
    Comparison again = compare({folder_ / "plain", folder_ / "smooth"});
    ASSERT_TRUE(measure::measure_outputs(kText, threads, again, silence).ok());
    EXPECT_EQ(by_module(again.quantized[0]), plain);
    EXPECT_EQ(by_module(again.quantized[1]), smooth);
  }
}

TEST_F(OutputLosses, RefuseWhatCannotBeRun) {
  quantize("plain", {.kind = format::SchemeKind::w8a8});
  Comparison comparison = compare({folder_ / "plain"});
  base::Silence silence;
  const Status empty = measure::measure_outputs({}, 1, comparison, silence);
  EXPECT_NE(empty.message().find("no tokens"), std::string::npos) << empty.message();
  comparison.quantized[0].path = folder_ / "model";
  const Status unquantized = measure::measure_outputs(kText, 1, comparison, silence);
  EXPECT_NE(unquantized.message().find("quantization_config"), std::string::npos) << unquantized.message();
}

}  // namespace
}  // namespace kvant::tests
