// A linear layer of every scheme beside its plain product: weights as their codes give them back, activations through
// theirs.
#include "model/linear_layer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/plain_activations.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using format::Dynamic;
using format::Scheme;
using io::DType;
using model::LinearLayer;

constexpr std::int64_t kIn = 96, kOut = 40, kRows = 7, kStride = 100;

class StoredLinear {
 public:
  StoredLinear(const Scheme& scheme, bool with_bias) : layer_(make_layer("a", kOut, kIn, DType::bf16, scheme)) {
    CheckpointFixture files;
    files.add(quantized_tensors(layer_, scheme));
    if (with_bias) {
      for (int i = 0; i < kOut; ++i) bias_.push_back(0.125 * i - 2);
      files.add(f32_tensor("a.bias", {kOut}, bias_));
    }
    files.config["quantization_config"] = config_json(scheme);
    files.write(scratch_ / "m");
    auto weights = model::Weights::open(scratch_ / "m");
    must(weights.status());
    weights_ = std::make_unique<model::Weights>(std::move(weights).value());
    if (!scheme.activations) return;
    plain_ = PlainActivations{*scheme.activations};
    if (scheme.activations->dynamic == Dynamic::no) plain_->scale = 0.02f;
    if (scheme.activations->dynamic == Dynamic::local) plain_->scale = 650;
    if (scheme.activations->dynamic == Dynamic::no && scheme.activations->asymmetric) plain_->zero_point = -3;
  }

  const model::Weights& weights() const { return *weights_; }

  // y of one row, and how large its parts are.
  struct Output {
    double y, magnitude;
  };
  Output output(const std::vector<float>& x, std::uint64_t n) const {
    const std::vector<float> read = plain_ ? plain_->row(x) : x;
    Output out{bias_.empty() ? 0 : bias_[n], bias_.empty() ? 0 : std::abs(bias_[n])};
    for (std::size_t k = 0; k < read.size(); ++k) {
      const double product = static_cast<double>(read[k]) * layer_.value(n, k);
      out.y += product;
      out.magnitude += std::abs(product);
    }
    return out;
  }

 private:
  ScratchFolder scratch_;
  FixtureLayer layer_;
  std::vector<double> bias_;
  std::unique_ptr<model::Weights> weights_;
  std::optional<PlainActivations> plain_;
};

TEST(LinearLayer, IsTheProductOfWhatCodesGiveBack) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(kRows * kStride);
  for (float& value : x) value = normal(random);
  for (std::size_t c = 0; c < kIn; ++c) x[2 * kStride + c] = 0;
  for (const auto& schemes : {all_schemes(16), foreign_schemes()})
    for (const Scheme& scheme : schemes)
      for (const bool with_bias : {false, true}) {
        SCOPED_TRACE(format::describe(scheme));
        const StoredLinear stored(scheme, with_bias);
        const model::LinearModule module{.module = "a", .in = kIn, .out = kOut};
        std::vector<float> first;
        for (const int threads : {1, 3}) {
          const Stream stream = Stream::cpu(threads);
          const auto layer = LinearLayer::load(stream, stored.weights(), module, kRows);
          ASSERT_TRUE(layer.ok()) << layer.status().message();
          std::vector<std::byte> workspace(layer->workspace_size() + 128, std::byte{0xA5});
          // Aligned, as callers give it.
          void* at = workspace.data();
          std::size_t space = workspace.size();
          ASSERT_NE(std::align(64, layer->workspace_size(), at, space), nullptr);
          std::vector<float> y(kRows * kOut);
          ASSERT_TRUE(
              accepted(layer->run(stream, {at, layer->workspace_size()}, x.data(), kStride, kRows, y.data(), kOut)));
          if (first.empty()) first = y;
          EXPECT_EQ(y, first) << threads << " threads";
          for (std::size_t i = layer->workspace_size() + 64; i < workspace.size(); ++i)
            ASSERT_EQ(workspace[i], std::byte{0xA5}) << i;
        }
        for (std::size_t r = 0; r < kRows; ++r) {
          const auto begin = x.begin() + static_cast<std::ptrdiff_t>(r * kStride);
          const std::vector<float> row(begin, begin + kIn);
          for (std::uint64_t n = 0; n < kOut; ++n) {
            const auto [y, magnitude] = stored.output(row, n);
            ASSERT_NEAR(static_cast<double>(first[r * kOut + n]), y, 1e-6 * magnitude) << r << " " << n;
          }
        }
      }
}

TEST(LinearLayer, TakesTheMemoryThatItSays) {
  constexpr std::int64_t kMany = 1024;
  for (const Scheme& scheme : all_schemes(16)) {
    SCOPED_TRACE(format::describe(scheme));
    const StoredLinear stored(scheme, false);
    const model::LinearModule module{.module = "a", .in = kIn, .out = kOut};
    const auto memory = LinearLayer::memory(Stream::cpu(1), stored.weights(), module);
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    const auto layer = LinearLayer::load(Stream::cpu(1), stored.weights(), module, kMany);
    ASSERT_TRUE(layer.ok()) << layer.status().message();
    EXPECT_LE(layer->workspace_size(), memory->workspace_row * kMany);
    EXPECT_GE(layer->workspace_size() + 4 * kMany, (memory->workspace_row - 2) * kMany);
    EXPECT_GT(memory->kept, 0u);
  }
}

TEST(LinearLayer, RefusesAnotherShape) {
  for (const Scheme& scheme : {w8a8(), scheme_of("nvfp4")}) {
    const StoredLinear stored(scheme, false);
    EXPECT_TRUE(refused(
        LinearLayer::load(Stream::cpu(1), stored.weights(), {.module = "a", .in = kIn, .out = 41}, kRows).status(),
        StatusCode::InvalidProblem, {"'a' is [40, 96], must be [41, 96]"}));
  }
}

TEST(LinearLayer, RefusesActivationsThatNoPlanTakes) {
  Scheme scheme = w8a8();
  scheme.activations = scheme_of("mxfp8").activations;
  scheme.activations->code = ElementKind::s8;
  const StoredLinear stored(scheme, false);
  EXPECT_TRUE(invalid(
      LinearLayer::load(Stream::cpu(1), stored.weights(), {.module = "a", .in = kIn, .out = kOut}, kRows).status(),
      {"'a': ", "e8m0"}));
}

}  // namespace
}  // namespace kvant::tests
