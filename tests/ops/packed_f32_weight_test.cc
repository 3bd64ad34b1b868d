// Packed weights of f32 linear layers: what they hold, that their bytes come back, and that damaged ones do not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kvant/kvant.h"
#include "tests/support/f32_linear_case.h"

namespace kvant::tests {
namespace {

TEST(PackedF32Weight, SaysWhatItHoldsAndHowMuch) {
  const Stream stream = Stream::cpu(1);
  for (const ArchSku isa : runnable_isas())
    for (const ElementKind weight : kF32WeightKinds)
      for (const auto& [n, k] : {std::pair{0, 0}, {0, 5}, {5, 0}, {1, 1}, {24, 64}, {25, 63}, {100, 300}}) {
        const F32LinearCase c(1, k, n, weight, false, 1);
        const auto packed = PackedF32Weight::pack(stream, {c.w.data(), weight, {n, k}, 0}, {.isa = isa});
        ASSERT_TRUE(packed.ok()) << packed.status().message();
        EXPECT_EQ(packed->out_features(), n);
        EXPECT_EQ(packed->in_features(), k);
        EXPECT_EQ(packed->element(), weight);
        EXPECT_EQ(packed->isa(), isa);
        const auto size = PackedF32Weight::packed_size(stream, weight, n, k, {.isa = isa});
        ASSERT_TRUE(size.ok()) << size.status().message();
        EXPECT_EQ(packed->bytes().size(), *size);
      }
  // 16-bit weights stay 16 bits.
  const auto wide = PackedF32Weight::packed_size(stream, ElementKind::f32, 480, 512);
  const auto narrow = PackedF32Weight::packed_size(stream, ElementKind::bf16, 480, 512);
  ASSERT_TRUE(wide.ok() && narrow.ok());
  EXPECT_EQ(*wide, 64u + 480 * 512 * 4);
  EXPECT_EQ(*narrow, 64u + 480 * 512 * 2);
}

TEST(PackedF32Weight, EqualWeightsGiveEqualBytes) {
  for (const ArchSku isa : runnable_isas())
    for (const ElementKind weight : kF32WeightKinds) {
      const F32LinearCase c(1, 301, 77, weight, false, 1);
      const auto one = PackedF32Weight::pack(Stream::cpu(1), {c.w.data(), weight, {77, 301}, 0}, {.isa = isa});
      const auto three = PackedF32Weight::pack(Stream::cpu(3), {c.w.data(), weight, {77, 301}, 0}, {.isa = isa});
      ASSERT_TRUE(one.ok() && three.ok());
      EXPECT_TRUE(std::ranges::equal(one->bytes(), three->bytes()));
    }
}

std::vector<std::byte> output_with(const F32LinearCase& c, const PackedF32Weight& packed, ArchSku isa) {
  const PreparedF32Linear linear(c, {.isa = isa}, {});
  AnyF32LinearArgs args = linear.args();
  args.weight = {};
  args.packed_weight = &packed;
  std::vector<std::byte> scratch(linear.plan().workspace_size());
  const Status done = linear.plan().run(Stream::cpu(1), {scratch.data(), scratch.size()}, args);
  EXPECT_TRUE(done.ok()) << done.message();
  return linear.output();
}

TEST(PackedF32Weight, ComesBackFromItsBytes) {
  for (const ArchSku isa : runnable_isas())
    for (const ElementKind weight : kF32WeightKinds)
      for (const auto& [n, k] : {std::pair{1, 1}, {50, 61}, {3, 0}, {0, 3}}) {
        const F32LinearCase c(3, k, n, weight, true, 1);
        const auto packed = PackedF32Weight::pack(Stream::cpu(1), {c.w.data(), weight, {n, k}, 0}, {.isa = isa});
        ASSERT_TRUE(packed.ok()) << packed.status().message();
        std::vector<std::byte> kept(packed->bytes().size() + 1);
        std::copy(packed->bytes().begin(), packed->bytes().end(), kept.begin() + 1);  // at an odd address
        const auto back = PackedF32Weight::from_bytes(Stream::cpu(1), std::span(kept).subspan(1));
        ASSERT_TRUE(back.ok()) << back.status().message();
        EXPECT_TRUE(std::ranges::equal(back->bytes(), packed->bytes()));
        EXPECT_EQ(back->element(), weight);
        EXPECT_EQ(back->isa(), isa);
        EXPECT_TRUE(c.equal(output_with(c, *back, isa), c.wanted()));
      }
}

TEST(PackedF32Weight, RefusesDamagedBytes) {
  const auto refused = [](std::span<const std::byte> bytes) {
    const Status status = PackedF32Weight::from_bytes(Stream::cpu(1), bytes).status();
    const bool coded = status.code() == StatusCode::InvalidProblem || status.code() == StatusCode::Unsupported;
    return !status.ok() && coded && status.message().find("packed_f32_weight") != std::string_view::npos;
  };
  for (const ArchSku isa : runnable_isas())
    for (const ElementKind weight : kF32WeightKinds) {
      const F32LinearCase c(1, 67, 19, weight, false, 1);
      const auto packed = PackedF32Weight::pack(Stream::cpu(1), {c.w.data(), weight, {19, 67}, 0}, {.isa = isa});
      ASSERT_TRUE(packed.ok()) << packed.status().message();
      const std::vector<std::byte> good(packed->bytes().begin(), packed->bytes().end());
      ASSERT_FALSE(refused(good));
      for (const std::size_t size : {std::size_t{0}, std::size_t{63}, std::size_t{64}, good.size() - 1})
        EXPECT_TRUE(refused(std::span(good).first(size))) << size << " of " << good.size();
      std::vector<std::byte> bad = good;
      bad.push_back(std::byte{0});
      EXPECT_TRUE(refused(bad));
      bad.pop_back();
      for (std::size_t at = 0; at < good.size(); ++at)
        for (unsigned bit = 0; bit < 8; ++bit) {
          if (at >= 128 && (at * 8 + bit) % 29 != 0) continue;
          bad[at] ^= std::byte{1} << bit;
          EXPECT_TRUE(refused(bad)) << "bit " << bit << " of byte " << at << " of " << good.size();
          bad[at] = good[at];
        }
      EXPECT_TRUE(refused(std::vector<std::byte>(good.size(), std::byte{0})));
    }
  // A weight of the other kind of layers.
  const std::int8_t codes[6] = {1, 2, 3, 4, 5, 6};
  const auto other = PackedWeight::pack(Stream::cpu(1), TensorRef<std::int8_t>(codes, {2, 3}));
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE(refused(other->bytes()));
}

TEST(PackedF32Weight, ServesManyThreadsAtOnce) {
  const F32LinearCase c(9, 130, 60, ElementKind::f16, true, 7);
  const std::vector<std::byte> want = c.wanted();
  const auto packed = PackedF32Weight::pack(Stream::cpu(1), {c.w.data(), c.weight, {60, 130}, 0});
  ASSERT_TRUE(packed.ok());
  const auto plan = AnyF32LinearPlan::select(
      Stream::cpu(1), {.max_rows = 9, .in_features = 130, .out_features = 60, .weight = c.weight});
  ASSERT_TRUE(plan.ok());
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  threads.reserve(wrong.size());
  for (int& mistakes : wrong)
    threads.emplace_back([&] {
      std::vector<std::byte> scratch(plan->workspace_size()), y(want.size());
      for (int i = 0; i < 50; ++i) {
        std::fill(y.begin(), y.end(), std::byte{0xFF});
        const Status done = plan->run(Stream::cpu(2), {scratch.data(), scratch.size()},
                                      {.input = {c.x.data(), ElementKind::f32, {9, 130}, 0},
                                       .packed_weight = &*packed,
                                       .bias = {c.bias.data(), ElementKind::f32, {60}, 0},
                                       .output = {y.data(), ElementKind::f32, {9, 60}, 0}});
        mistakes += done.ok() && c.equal(y, want) ? 0 : 1;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

}  // namespace
}  // namespace kvant::tests
