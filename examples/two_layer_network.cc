// A small two-layer network, relu(x W1ᵀ + b1) W2ᵀ + b2, in f32 and in W8A8: weights quantized once with a scale for
// each output channel and packed, activations quantized on the way in with a scale for each token. Prints the error and
// the speed-up. The f32 side is a blocked loop with vectors, not a tuned library; `./dev bench` compares with OpenBLAS.
#include <kvant/kvant.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::int64_t kTokens = 64, kInput = 1024, kHidden = 4096, kOutput = 1024;

[[noreturn]] void fail(const kvant::Status& status) {
  std::fprintf(stderr, "two_layer_network: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

template <class T>
T checked(kvant::Result<T> result) {
  if (!result.ok()) fail(result.status());
  return *std::move(result);
}

std::size_t count(std::int64_t rows, std::int64_t columns) { return static_cast<std::size_t>(rows * columns); }

void relu(std::vector<float>& x) {
  for (float& value : x) value = std::max(value, 0.0f);
}

// ---- f32 ----

// y = x Wᵀ + b, four rows by sixteen columns at a time. `panels` holds W in panels of sixteen columns of Wᵀ, each of
// them row after row. Vector is as wide as the machine's registers.
constexpr std::int64_t kRows = 4, kColumns = 16;
template <class Vector>
inline __attribute__((always_inline)) void multiply(const float* x, const float* panels, const float* bias, float* y,
                                                    std::int64_t in, std::int64_t out) {
  constexpr std::int64_t kWidth = sizeof(Vector) / sizeof(float), kVectors = kColumns / kWidth;
  for (std::int64_t n = 0; n < out; n += kColumns)
    for (std::int64_t m = 0; m < kTokens; m += kRows)
      for (std::int64_t v = 0; v < kVectors; v += 2) {  // two vectors of columns: eight sums in registers
        const float* w = panels + n * in + v * kWidth;
        const float *x0 = x + m * in, *x1 = x0 + in, *x2 = x1 + in, *x3 = x2 + in;
        Vector a0, a1, w0, w1;
        std::memcpy(&a0, bias + n + v * kWidth, sizeof a0);
        std::memcpy(&a1, bias + n + (v + 1) * kWidth, sizeof a1);
        Vector b0 = a0, b1 = a1, c0 = a0, c1 = a1, d0 = a0, d1 = a1;
        for (std::int64_t k = 0; k < in; ++k, w += kColumns) {
          std::memcpy(&w0, w, sizeof w0);
          std::memcpy(&w1, w + kWidth, sizeof w1);
          a0 += x0[k] * w0, a1 += x0[k] * w1;
          b0 += x1[k] * w0, b1 += x1[k] * w1;
          c0 += x2[k] * w0, c1 += x2[k] * w1;
          d0 += x3[k] * w0, d1 += x3[k] * w1;
        }
        float* to = y + m * out + n + v * kWidth;
        const Vector* sums[kRows][2] = {{&a0, &a1}, {&b0, &b1}, {&c0, &c1}, {&d0, &d1}};
        for (std::int64_t i = 0; i < kRows; ++i) {
          std::memcpy(to + i * out, sums[i][0], sizeof(Vector));
          std::memcpy(to + i * out + kWidth, sums[i][1], sizeof(Vector));
        }
      }
}

using Four = float __attribute__((vector_size(16)));
using Eight = float __attribute__((vector_size(32)));

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void multiply_avx2(const float* x, const float* panels, const float* bias, float* y,
                                                       std::int64_t in, std::int64_t out) {
  multiply<Eight>(x, panels, bias, y, in, out);
}
#endif
void multiply_f32(const float* x, const float* panels, const float* bias, float* y, std::int64_t in, std::int64_t out) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return multiply_avx2(x, panels, bias, y, in, out);
#endif
  multiply<Four>(x, panels, bias, y, in, out);
}

struct Layer {
  std::int64_t in, out;
  std::vector<float> weight, panels, bias;

  Layer(std::int64_t in_features, std::int64_t out_features, std::mt19937& random)
      : in(in_features),
        out(out_features),
        weight(count(out, in)),
        panels(weight.size()),
        bias(static_cast<std::size_t>(out)) {
    std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(static_cast<float>(in)));
    for (float& w : weight) w = normal(random);
    for (float& b : bias) b = normal(random);
    for (std::int64_t n = 0; n < out; ++n)
      for (std::int64_t k = 0; k < in; ++k)
        panels[count(n / kColumns * in + k, kColumns) + static_cast<std::size_t>(n % kColumns)] =
            weight[count(n, in) + static_cast<std::size_t>(k)];
  }
  void run(const std::vector<float>& x, std::vector<float>& y) const {
    multiply_f32(x.data(), panels.data(), bias.data(), y.data(), in, out);
  }
};

// ---- W8A8 ----

class QuantizedLayer {
 public:
  QuantizedLayer(const kvant::Stream& stream, const Layer& layer)
      : layer_(layer),
        weight_scale_(static_cast<std::size_t>(layer.out)),
        packed_(pack(stream, layer, weight_scale_)),
        plan_(checked(kvant::QuantizedLinearPlan<float>::select(
            stream, {.max_rows = kTokens, .in_features = layer.in, .out_features = layer.out}))),
        scratch_(plan_.workspace_size()) {}

  void run(const kvant::Stream& stream, const std::vector<float>& x, std::vector<float>& y) {
    const kvant::Status status = plan_.run(stream, {scratch_.data(), scratch_.size()},
                                           {.input = {x.data(), {kTokens, layer_.in}},
                                            .packed_weight = &packed_,
                                            .weight_scale = kvant::TensorRef<float>(weight_scale_.data(), {layer_.out}),
                                            .bias = kvant::TensorRef<float>(layer_.bias.data(), {layer_.out}),
                                            .output = {y.data(), {kTokens, layer_.out}}});
    if (!status.ok()) fail(status);
  }
  std::size_t bytes() const { return packed_.bytes().size(); }

 private:
  // A scale for each output channel, from its own range.
  static kvant::PackedWeight pack(const kvant::Stream& stream, const Layer& layer, std::vector<float>& scale) {
    const kvant::Shape shape = {layer.out, layer.in};
    std::vector<std::int8_t> codes(layer.weight.size());
    const auto quantize = checked(kvant::DynamicRangeQuantizePlan<float, std::int8_t>::select(
        stream, {.shape = shape, .scope = kvant::PerChannel{0}}));
    std::vector<std::byte> scratch(quantize.workspace_size());
    const kvant::Status status = quantize.run(stream, {scratch.data(), scratch.size()},
                                              {.input = {layer.weight.data(), shape},
                                               .output = {codes.data(), shape},
                                               .scale_out = {scale.data(), {layer.out}}});
    if (!status.ok()) fail(status);
    return checked(kvant::PackedWeight::pack(stream, kvant::TensorRef<std::int8_t>(codes.data(), shape)));
  }

  const Layer& layer_;
  std::vector<float> weight_scale_;
  kvant::PackedWeight packed_;
  kvant::QuantizedLinearPlan<float> plan_;
  std::vector<std::byte> scratch_;
};

// The best of several runs, in seconds.
template <class Function>
double seconds(const Function& f) {
  double best = 1e9;
  for (int i = 0; i < 7; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

}  // namespace

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(count(kTokens, kInput));
  for (float& value : x) value = normal(random);
  const Layer first(kInput, kHidden, random), second(kHidden, kOutput, random);

  std::vector<float> hidden(count(kTokens, kHidden)), y(count(kTokens, kOutput)), quantized(y.size());
  const double f32_seconds = seconds([&] {
    first.run(x, hidden);
    relu(hidden);
    second.run(hidden, y);
  });

  const kvant::Stream stream = kvant::Stream::cpu(1);  // one thread, like the loop above
  QuantizedLayer first_quantized(stream, first), second_quantized(stream, second);
  const double w8a8_seconds = seconds([&] {
    first_quantized.run(stream, x, hidden);
    relu(hidden);
    second_quantized.run(stream, hidden, quantized);
  });

  double error = 0, size = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    error += std::pow(static_cast<double>(quantized[i]) - static_cast<double>(y[i]), 2);
    size += std::pow(static_cast<double>(y[i]), 2);
  }
  const double relative = std::sqrt(error / size);
  const auto f32_bytes = static_cast<double>((first.weight.size() + second.weight.size()) * sizeof(float));
  const auto w8a8_bytes = static_cast<double>(first_quantized.bytes() + second_quantized.bytes());
  std::printf("%lld tokens through %lld -> %lld -> %lld, one thread\n", static_cast<long long>(kTokens),
              static_cast<long long>(kInput), static_cast<long long>(kHidden), static_cast<long long>(kOutput));
  std::printf("f32   %7.2f ms   %5.1f MB of weights\n", 1e3 * f32_seconds, 1e-6 * f32_bytes);
  std::printf("W8A8  %7.2f ms   %5.1f MB of weights\n", 1e3 * w8a8_seconds, 1e-6 * w8a8_bytes);
  std::printf("error %.2f %% of the output (root mean square), speed-up %.1f\n", 100 * relative,
              f32_seconds / w8a8_seconds);
  return relative < 0.02 ? 0 : 1;
}
