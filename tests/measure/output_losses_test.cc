// What outputs of linears lose on a text: beside a plain form in double precision, what smoothing gains where inputs
// have outliers, any number of threads, refusals.
#include "measure/output_losses.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
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

  Result<measure::OutputLosses> try_measure(const std::vector<std::filesystem::path>& quantized,
                                            const model::TokenText& text = kText, int threads = 1) {
    base::Silence silence;
    return measure::measure_outputs(folder_ / "model", quantized, text, threads, silence);
  }
  measure::OutputLosses measure(const std::vector<std::filesystem::path>& quantized, int threads = 1) {
    auto losses = try_measure(quantized, kText, threads);
    must(losses.status());
    return std::move(losses).value();
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

TEST_F(OutputLosses, ArePlainSumsOverTheText) {
  quantize("w4a16", w4a16(16));
  const measure::OutputLosses losses = measure({folder_ / "w4a16"});
  ASSERT_EQ(losses.size(), 1u);

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
  EXPECT_NEAR(losses[0].at(module), 10 * std::log10(signal / noise), 1e-3);
}

TEST_F(OutputLosses, ShowWhatSmoothingGains) {
  quantize("plain", w8a8());
  quantize("smooth", w8a8(), true);
  const measure::OutputLosses losses = measure({folder_ / "plain", folder_ / "smooth"});
  ASSERT_EQ(losses.size(), 2u);
  const auto &plain = losses[0], &smooth = losses[1];
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

  for (const int threads : {3, 0}) EXPECT_EQ(measure({folder_ / "plain", folder_ / "smooth"}, threads), losses);
}

// The worst layers are those of outputs, where these are known.
TEST_F(OutputLosses, DecideWhichLayersHaveDetails) {
  quantize("plain", w8a8());
  measure::OutputLosses losses = measure({folder_ / "plain"});
  const auto details = [&](const measure::OutputLosses& outputs) {
    base::Silence silence;
    auto comparison = measure::compare({.original = folder_ / "model",
                                        .quantized = {folder_ / "plain"},
                                        .stats = folder_ / "stats",
                                        .outputs = outputs,
                                        .details = true},
                                       silence);
    must(comparison.status());
    EXPECT_EQ(comparison->quantized[0].layers[0].output_sqnr_db.has_value(), !outputs.empty());
    std::vector<std::pair<double, std::string>> order;
    for (const measure::LayerLoss& layer : comparison->quantized[0].layers)
      order.emplace_back(sqnr_db_of(layer, judged_by(*comparison)).value(), layer.module);
    std::ranges::sort(order);
    std::vector<std::string> modules;
    for (std::size_t i = 0; i < order.size(); ++i) {
      modules.push_back(order[i].second);
      EXPECT_EQ(comparison->details.at(i).module, order[i].second) << i;
    }
    return modules;
  };
  const auto estimated = details({}), measured = details(losses);
  const std::string last = measured.back();
  losses[0][last] = -5;
  EXPECT_EQ(details(losses).front(), last);
  EXPECT_EQ(details({}), estimated);
}

TEST_F(OutputLosses, RefuseWhatCannotBeRun) {
  quantize("plain", w8a8());
  const Status empty = try_measure({folder_ / "plain"}, {}).status();
  EXPECT_NE(empty.message().find("no tokens"), std::string::npos) << empty.message();
  const Status unquantized = try_measure({folder_ / "model"}).status();
  EXPECT_NE(unquantized.message().find("quantization_config"), std::string::npos) << unquantized.message();
}

}  // namespace
}  // namespace kvant::tests
