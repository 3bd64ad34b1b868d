// Quantizes a generated weight matrix by its own range with every scheme, brings it back, and prints what each loses
// and how fast it is. The matrix is bell-shaped with a few large columns, as the layers of language models have them.
#include <kvant/kvant.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::int64_t kRows = 2048, kColumns = 4096, kGroup = 128;
const kvant::Shape kShape = {kRows, kColumns};

struct Scheme {
  const char* name;
  kvant::Granularity granularity;
};

[[noreturn]] void fail(const kvant::Status& status) {
  std::fprintf(stderr, "schemes: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

// The best of several runs, in elements a second.
template <class Function>
double speed(const Function& f) {
  double best = 1e9;
  for (int i = 0; i < 7; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return static_cast<double>(kRows * kColumns) / best;
}

}  // namespace

int main() {
  std::vector<float> x(static_cast<std::size_t>(kRows * kColumns)), back(x.size());
  std::vector<std::uint8_t> codes(x.size());
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = normal(random) * (i % 512 == 7 ? 20.0f : 1.0f);

  const kvant::Stream stream = kvant::Stream::cpu();
  const Scheme schemes[] = {{"tensor", kvant::PerTensor{}},
                            {"channel (rows)", kvant::PerChannel{0}},
                            {"channel (columns)", kvant::PerChannel{1}},
                            {"token", kvant::PerToken{}},
                            {"group of 128", kvant::PerGroup{1, kGroup}}};
  const kvant::ElementKind kinds[] = {kvant::ElementKind::s8, kvant::ElementKind::u8, kvant::ElementKind::s4,
                                      kvant::ElementKind::u4};

  std::printf("kvant %s on %d threads: a generated f32 matrix of %lld x %lld with outlier columns, there and back\n\n",
              std::string(kvant::version()).c_str(), stream.threads(), static_cast<long long>(kRows),
              static_cast<long long>(kColumns));
  std::printf("%-18s %-5s %-11s %9s %12s %10s %13s %15s  %s\n", "scheme", "code", "mode", "SQNR dB", "largest err",
              "bits/elem", "quantize G/s", "dequantize G/s", "kernel");
  for (const Scheme& scheme : schemes)
    for (const kvant::ElementKind kind : kinds) {
      // Symmetric for signed codes; unsigned ones need a zero point.
      const auto mode =
          kvant::code_range(kind).min < 0 ? kvant::DynamicRangeMode::symmetric : kvant::DynamicRangeMode::asymmetric;
      const auto quantize = kvant::AnyDynamicRangeQuantizePlan::select(stream, {.shape = kShape,
                                                                                .scope = scheme.granularity,
                                                                                .mode = mode,
                                                                                .input = kvant::ElementKind::f32,
                                                                                .output = kind});
      if (!quantize.ok()) fail(quantize.status());
      const auto dequantize = kvant::ElementwisePlan::select(stream, {.op = kvant::QuantizeKind::dequantize,
                                                                      .shape = kShape,
                                                                      .granularity = scheme.granularity,
                                                                      .input = kind,
                                                                      .output = kvant::ElementKind::f32});
      if (!dequantize.ok()) fail(dequantize.status());

      const kvant::Shape parameters = *kvant::parameter_shape(kShape, scheme.granularity);
      std::vector<float> scale(static_cast<std::size_t>(*parameters.element_count()));
      std::vector<std::int32_t> zero_point(scale.size());
      std::vector<std::byte> scratch(quantize->workspace_size());
      const kvant::AnyDynamicRangeQuantizeArgs there{
          .input = {x.data(), kvant::ElementKind::f32, kShape, 0},
          .output = {codes.data(), kind, kShape, 0},
          .scale_out = {scale.data(), kvant::ElementKind::f32, parameters, 0},
          .zero_point_out = {zero_point.data(), kvant::ElementKind::s32, parameters, 0}};
      kvant::ElementwiseArgs again;
      again.input = there.output;
      again.output = {back.data(), kvant::ElementKind::f32, kShape, 0};
      again.scale = kvant::AnyParameter(there.scale_out);
      again.zero_point = kvant::AnyParameter(there.zero_point_out);
      const double there_speed = speed([&] {
        if (const kvant::Status s = quantize->run(stream, {scratch.data(), scratch.size()}, there); !s.ok()) fail(s);
      });
      const double back_speed = speed([&] {
        if (const kvant::Status s = dequantize->run(stream, {}, again); !s.ok()) fail(s);
      });

      double signal = 0, noise = 0, largest = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double error = static_cast<double>(x[i]) - static_cast<double>(back[i]);
        signal += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        noise += error * error;
        largest = std::max(largest, std::fabs(error));
      }
      const double parameter_bits = mode == kvant::DynamicRangeMode::symmetric ? 32 : 64;
      const double bits = kvant::bits_per_element(kind) +
                          parameter_bits * static_cast<double>(scale.size()) / static_cast<double>(x.size());
      std::printf("%-18s %-5s %-11s %9.2f %12.2e %10.2f %13.2f %15.2f  %s\n", scheme.name,
                  std::string(kvant::name(kind)).c_str(), std::string(kvant::name(mode)).c_str(),
                  10 * std::log10(signal / noise), largest, bits, there_speed / 1e9, back_speed / 1e9,
                  quantize->sku().name().c_str());
    }
  std::printf(
      "\nSQNR: signal to quantization noise, higher is better. G/s: billion elements per second, finding "
      "the range included, the best of 7.\n");
}
