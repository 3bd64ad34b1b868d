// A GGUF as a folder of shards: every tensor in its place, whatever the size of a shard, and a run that goes on.
#include "quantize/convert_gguf.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "io/json.h"
#include "model/gguf_model.h"
#include "tests/support/gguf_model_fixture.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

constexpr auto kBad = StatusCode::InvalidProblem;

class ConvertGgufTest : public testing::Test {
 protected:
  // Embeddings of more than a tile.
  ConvertGgufTest() {
    options_.input = folder_ / "m.gguf";
    put_text(options_.input, GgufFixture{.layers = 1, .vocabulary = 20000, .experts = 3}.writer().file());
  }
  Result<quantize::ConvertOutcome> convert() { return quantize::convert_gguf(options_, silence_); }

  ScratchFolder folder_;
  base::Silence silence_;
  quantize::ConvertOptions options_{.input = {}, .output = folder_ / "out", .threads = 2};
};

TEST_F(ConvertGgufTest, Shards) {
  const auto model = model::GgufModel::open(options_.input);
  ASSERT_TRUE(model.ok()) << model.status().message();
  for (const std::uint64_t most : {1ull, 30'000ull, 5'000'000'000ull}) {
    options_.max_shard_bytes = most;
    options_.force = most != 1;
    const auto outcome = convert();
    ASSERT_TRUE(outcome.ok()) << outcome.status().message();
    EXPECT_EQ(outcome->tensors, model->tensors().size());
    EXPECT_EQ(outcome->rounded, 0u);
    const auto checkpoint = io::Checkpoint::open(options_.output);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_EQ(checkpoint->shards().size(), outcome->shards_written);
    EXPECT_EQ(checkpoint->shards().size() == model->tensors().size(), most == 1);
    EXPECT_EQ(checkpoint->shards().size() == 1, most > 30'000);
    for (const io::SafetensorsFile& shard : checkpoint->shards())
      EXPECT_TRUE(shard.tensors().size() == 1 || shard.tensors().back().end <= most) << most;
    ASSERT_EQ(checkpoint->tensors().size(), model->tensors().size());
    for (const auto& tensor : model->tensors()) {
      std::vector<float> want(tensor.rows() * tensor.columns()), got(want.size());
      ASSERT_TRUE(model->read_rows(tensor, 0, tensor.rows(), want.data()).ok());
      const auto& place = checkpoint->tensors().at(tensor.name);
      EXPECT_EQ(checkpoint->at(place).shape, tensor.shape);
      ASSERT_TRUE(checkpoint->read(place, 0, std::as_writable_bytes(std::span(got))).ok());
      EXPECT_EQ(got, want) << tensor.name;
    }
    EXPECT_EQ((*checkpoint->config())["model_type"], "mixtral");
  }
}

TEST_F(ConvertGgufTest, GoesOn) {
  options_.max_shard_bytes = 30'000;
  ASSERT_TRUE(convert().ok());
  const auto files = [&] {
    std::map<std::string, std::string> texts;
    for (const auto& entry : fs::directory_iterator(options_.output))
      if (entry.is_regular_file()) texts[entry.path().filename()] = text_of(entry.path());
    return texts;
  };
  const std::map<std::string, std::string> whole = files();
  const auto checkpoint = io::Checkpoint::open(options_.output);
  ASSERT_TRUE(checkpoint.ok() && checkpoint->shards().size() > 2);
  fs::remove(options_.output / checkpoint->shard_name(1));
  fs::remove(options_.output / "config.json");
  options_.resume = true;
  const auto outcome = convert();
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(outcome->shards_written, 1u);
  EXPECT_EQ(outcome->shards_kept, checkpoint->shards().size() - 1);
  EXPECT_EQ(files(), whole);
}

TEST_F(ConvertGgufTest, Refuses) {
  options_.dtype = io::DType::i8;
  EXPECT_TRUE(refused(convert().status(), kBad, {"dtype I8", "F32, F16 or BF16"}));
  options_.dtype = io::DType::f32;
  options_.output = "";
  EXPECT_TRUE(refused(convert().status(), kBad, {"output has no name"}));
}

}  // namespace
}  // namespace kvant::tests
