// The element-wise kernels of the CUDA backend.
#include "cuda/elementwise.cuh"

#include <array>

#include "base/divide_up.h"
#include "core/elementwise_kernel.h"
#include "cuda/grid.h"
#include "cuda/table.h"

namespace kvant::cuda {
namespace {

using detail::DeviceElementwiseJob;
using detail::DeviceElementwiseKernel;

template <class Op>
int enqueue(const detail::DeviceStream& stream, const DeviceElementwiseJob& job) {
  constexpr int N = kChunk<typename Op::In, typename Op::Out>;
  // One chunk more than whole ones make: the first may be short.
  const std::int64_t chunks = base::divide_up(job.runs.length, N) + 1;
  return device::launch(stream, rectangle(stream, chunks, job.runs.lines), &elementwise_kernel<Op>, job);
}

template <class Op>
constexpr DeviceElementwiseKernel kernel(QuantizeKind op) {
  return {device_sku<compute_t<typename Op::F>>(op, kind_of<typename Op::In>, kind_of<typename Op::Out>), &enqueue<Op>};
}

// Floating-point types × code types, and floating-point types alone.
template <class... F, class... Code>
constexpr auto make_kernels(Types<F...>, Types<Code...>) {
  std::array<DeviceElementwiseKernel, sizeof...(F) * (2 * sizeof...(Code) + 4)> all{};
  std::size_t n = 0;
  const auto append_for = [&]<class One>(Types<One>) {
    ((all[n++] = kernel<Quantize<One, Code>>(QuantizeKind::quantize),
      all[n++] = kernel<Dequantize<One, Code>>(QuantizeKind::dequantize)),
     ...);
    all[n++] = kernel<FakeQuantize<One>>(QuantizeKind::fake_quantize);
    all[n++] = kernel<MaskedBackward<One, true>>(QuantizeKind::quantize_backward);
    all[n++] = kernel<MaskedBackward<One, false>>(QuantizeKind::fake_quantize_backward);
    all[n++] = kernel<DequantizeBackward<One>>(QuantizeKind::dequantize_backward);
  };
  (append_for(Types<F>{}), ...);
  return all;
}

const auto kKernels = make_kernels(FloatTypes{}, CodeTypes{});

}  // namespace

std::span<const DeviceElementwiseKernel> elementwise_kernels() { return kKernels; }

}  // namespace kvant::cuda
