// Quantizes a small matrix to int8 with one scale for each row, brings it back, and prints the largest error.
#include <kvant/kvant.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  constexpr std::int64_t kRows = 64, kColumns = 128;
  const kvant::Shape shape = {kRows, kColumns};
  std::vector<float> x(kRows * kColumns), back(x.size()), scale(kRows);
  std::vector<std::int8_t> q(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = std::sin(static_cast<float>(i)) * static_cast<float>(1 + i / kColumns);
  for (std::size_t row = 0; row < kRows; ++row) {
    float most = 0;
    for (std::size_t i = 0; i < kColumns; ++i) most = std::max(most, std::fabs(x[row * kColumns + i]));
    scale[row] = most / 127;
  }
  const kvant::TensorRef<float> scales(scale.data(), {kRows});

  // Select once: the plan knows shape, types and kernel, and may be used by many threads.
  const kvant::Stream stream = kvant::Stream::cpu();
  const auto quantize = kvant::QuantizePerTokenPlan<float, std::int8_t>::select(stream, {.shape = shape});
  const auto dequantize = kvant::DequantizePerTokenPlan<std::int8_t, float>::select(stream, {.shape = shape});
  if (!quantize.ok() || !dequantize.ok()) return 1;

  // Run often: no allocation, no lock, no dispatch.
  kvant::Status status =
      quantize->run(stream, {}, {.input = {x.data(), shape}, .output = {q.data(), shape}, .scale = scales});
  if (status.ok())
    status = dequantize->run(stream, {}, {.input = {q.data(), shape}, .output = {back.data(), shape}, .scale = scales});
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    return 1;
  }

  // The same scales, found on the way: dynamic-range quantization.
  std::vector<float> found(kRows);
  std::vector<std::int8_t> q_again(x.size());
  const auto dynamic = kvant::DynamicRangeQuantizePlan<float, std::int8_t>::select(
      stream, {.shape = shape, .scope = kvant::PerToken{}, .mode = kvant::DynamicRangeMode::symmetric});
  if (!dynamic.ok()) return 1;
  std::vector<std::byte> scratch(dynamic->workspace_size());
  status = dynamic->run(
      stream, {scratch.data(), scratch.size()},
      {.input = {x.data(), shape}, .output = {q_again.data(), shape}, .scale_out = {found.data(), {kRows}}});
  if (!status.ok() || found != scale || q_again != q) return 1;

  float worst = 0;  // in units of the row's scale; rounding to nearest keeps it at half a step
  for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::fabs(x[i] - back[i]) / scale[i / kColumns]);
  std::printf("%s: largest error %.3f steps\n", quantize->sku().name().c_str(), static_cast<double>(worst));
  return worst <= 0.5001f ? 0 : 1;
}
