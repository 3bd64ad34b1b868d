// What the outputs of the demonstration model lose, plainly and smoothed.
#include "measure/output_losses.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "format/module_name.h"
#include "quantize/quantize_checkpoint.h"
#include "tests/support/scratch.h"

namespace kvant::measure {
namespace {

namespace fs = std::filesystem;
using model::write_demo_model;
using tests::ScratchFolder;

constexpr model::DemoModel kSmall = {.hidden = 64, .intermediate = 96, .vocabulary = 32, .layers = 2, .shards = 2};

TEST(OutputLosses, ShowWhatSmoothingGains) {
  const ScratchFolder folder;
  const fs::path original = folder / "model", stats = folder / "stats.safetensors";
  ASSERT_TRUE(write_demo_model(kSmall, original, stats).ok());
  base::Silence silence;
  std::map<std::string, double> by_kind[2];  // mean over the layers
  for (const bool smooth : {false, true}) {
    quantize::QuantizeOptions options;
    options.input = original;
    options.output = folder / (smooth ? "smooth" : "plain");
    options.threads = 1;
    options.smooth = smooth;
    if (smooth) options.stats = stats;
    auto quantizer = quantize::CheckpointQuantizer::plan(options);
    ASSERT_TRUE(quantizer.ok()) << quantizer.status().message();
    const auto outcome = quantizer->run(silence);
    ASSERT_TRUE(outcome.ok()) << outcome.status().message();
    const auto losses = output_losses(kSmall, original, options.output, Stream::cpu(1));
    ASSERT_TRUE(losses.ok()) << losses.status().message();
    ASSERT_EQ(losses->size(), 14u);
    EXPECT_EQ(losses->front().module, "model.layers.0.self_attn.q_proj");
    for (const OutputLoss& loss : *losses) {
      by_kind[smooth ? 1 : 0][std::string(format::last_component(loss.module))] += loss.sqnr_db / kSmall.layers;
      EXPECT_GT(loss.sqnr_db, 20) << loss.module;
      EXPECT_LT(loss.sqnr_db, 60) << loss.module;
    }
    // The same for any number of threads.
    const auto again = output_losses(kSmall, original, options.output, Stream::cpu(3));
    ASSERT_TRUE(again.ok());
    for (std::size_t i = 0; i < losses->size(); ++i) EXPECT_EQ((*again)[i].sqnr_db, (*losses)[i].sqnr_db);
  }
  for (const char* const kind : {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"})
    EXPECT_GT(by_kind[1][kind], by_kind[0][kind] + 3) << kind;
  for (const char* const kind : {"o_proj", "down_proj"}) EXPECT_EQ(by_kind[1][kind], by_kind[0][kind]) << kind;
}

TEST(OutputLosses, RefuseWhatIsNotTheDemosOwn) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_demo_model(kSmall, folder / "model", folder / "stats.safetensors").ok());
  const auto unquantized = output_losses(kSmall, folder / "model", folder / "model", Stream::cpu(1));
  ASSERT_FALSE(unquantized.ok());
  EXPECT_NE(unquantized.status().message().find("quantization_config"), std::string::npos)
      << unquantized.status().message();
  EXPECT_FALSE(output_losses(kSmall, folder / "none", folder / "model", Stream::cpu(1)).ok());
}

}  // namespace
}  // namespace kvant::measure
