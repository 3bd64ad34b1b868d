// Activations through the codes of every scheme and back, beside plain loops.
#include "model/activation_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/plain_activations.h"
#include "tests/support/refusals.h"

namespace kvant::tests {
namespace {

using format::ActivationScheme;
using format::Dynamic;
using format::Strategy;
using model::ActivationCodes;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

// Of every scheme that has some, of those that others write, and both widths with every kind of scale.
std::vector<ActivationScheme> activation_schemes() {
  std::vector<ActivationScheme> all;
  for (const auto& schemes : {all_schemes(32), foreign_schemes()})
    for (const format::Scheme& scheme : schemes)
      if (scheme.activations && std::find(all.begin(), all.end(), *scheme.activations) == all.end())
        all.push_back(*scheme.activations);
  all.push_back({.code = ElementKind::s4});
  all.push_back({.code = ElementKind::s8, .strategy = Strategy::group, .asymmetric = true, .group_size = 16});
  return all;
}

std::string text_of(const ActivationScheme& scheme) {
  return fmt::format("{} per {} of {}, {}{}{}", name(scheme.code), name(scheme.strategy), scheme.group_size,
                     scheme.dynamic == Dynamic::no      ? "static"
                     : scheme.dynamic == Dynamic::local ? "local"
                                                        : "dynamic",
                     scheme.asymmetric ? ", asymmetric" : "",
                     scheme.scale_code ? fmt::format(", scales of {}", name(*scheme.scale_code)) : "");
}

constexpr std::int64_t kRows = 9, kIn = 96, kStride = 101;

// Rows of several sizes, of zeros, and with what is not finite.
std::vector<float> inputs() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(static_cast<std::size_t>(kRows * kStride));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t row = i / kStride;
    x[i] = normal(random) * (row == 1 ? 1e-3f : row == 2 ? 300.0f : row == 3 ? 0.0f : 1.0f);
    if (row == 4) x[i] = std::abs(x[i]) + 2;  // far from 0
  }
  x[5 * kStride + 3] = kNan;
  x[5 * kStride + 7] = kInf;
  x[5 * kStride + 40] = -kInf;
  x[6 * kStride + 50] = 1000;  // a channel that stands out
  return x;
}

TEST(ActivationCodes, GiveBackWhatLoadersSee) {
  const std::vector<float> x = inputs();
  std::size_t kinds = 0;
  for (const ActivationScheme& scheme : activation_schemes()) {
    SCOPED_TRACE(text_of(scheme));
    ++kinds;
    const bool local = scheme.dynamic == Dynamic::local;
    const PlainActivations plain{scheme, local ? 650.0f : 0.02f, scheme.asymmetric ? -3 : 0};
    const ActivationCodes codes(scheme, kIn, plain.scale, plain.zero_point);
    std::vector<float> one;
    for (const int threads : {1, 3}) {
      const Stream stream = Stream::cpu(threads);
      ASSERT_TRUE(accepted(codes.check(stream)));
      const auto size = codes.workspace_size(stream, kRows);
      ASSERT_TRUE(size.ok()) << size.status().message();
      std::vector<std::byte> workspace(*size + 64, std::byte{0xA5});
      std::vector<float> got(static_cast<std::size_t>(kRows * kIn) + 1, 77);
      ASSERT_TRUE(accepted(codes.run(stream, {workspace.data(), *size}, x.data(), kStride, kRows, got.data())));
      for (std::size_t i = *size; i < workspace.size(); ++i) ASSERT_EQ(workspace[i], std::byte{0xA5}) << i;
      for (std::size_t r = 0; r < kRows; ++r) {
        const auto begin = x.begin() + static_cast<std::ptrdiff_t>(r * kStride);
        const std::vector<float> wanted = plain.row({begin, begin + kIn});
        for (std::size_t c = 0; c < kIn; ++c) {
          const float value = got[r * kIn + c];
          EXPECT_TRUE(value == wanted[c] || (std::isnan(value) && std::isnan(wanted[c])))
              << "row " << r << " channel " << c << ": " << value << " instead of " << wanted[c];
        }
      }
      EXPECT_EQ(got.back(), 77);
      // A row does not depend on the others.
      std::vector<float> alone(static_cast<std::size_t>(kIn));
      ASSERT_TRUE(
          accepted(codes.run(stream, {workspace.data(), *size}, x.data() + 2 * kStride, kStride, 1, alone.data())));
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), got.begin() + 2 * kIn));
    }
  }
  EXPECT_GE(kinds, 10u);
}

// The last group of a row may be short, as the last block of a weight may.
TEST(ActivationCodes, TakeChannelsThatAreNotWholeGroups) {
  const std::vector<float> x = inputs();
  for (const std::string_view name : {"fp8-block", "mxfp8", "mxfp4", "nvfp4"}) {
    SCOPED_TRACE(name);
    const PlainActivations plain{*scheme_of(name).activations, 650};
    const ActivationCodes codes(plain.scheme, 90, plain.scale, 0);
    const auto size = codes.workspace_size(Stream::cpu(1), 1);
    ASSERT_TRUE(size.ok()) << size.status().message();
    std::vector<std::byte> workspace(*size);
    std::vector<float> got(90);
    ASSERT_TRUE(accepted(codes.run(Stream::cpu(1), {workspace.data(), *size}, x.data(), 90, 1, got.data())));
    EXPECT_EQ(got, plain.row({x.begin(), x.begin() + 90}));
  }
}

TEST(ActivationCodes, RefuseScalesThatTheirCodesCannotHave) {
  ActivationScheme scheme = *scheme_of("mxfp8").activations;
  scheme.code = ElementKind::s8;
  EXPECT_TRUE(invalid(ActivationCodes(scheme, 64, 1, 0).check(Stream::cpu(1)), {"e8m0", "s8"}));
}

}  // namespace
}  // namespace kvant::tests
