// The element-wise kernels of the CUDA backend.
#include "cuda/elementwise.cuh"

#include <array>

#include "base/divide_up.h"
#include "core/elementwise_kernel.h"
#include "cuda/grid.h"
#include "cuda/table.h"

namespace kvant::cuda {
namespace {

template <class Op>
Status launch(const detail::ElementwiseKernel&, const Stream& stream, const detail::ElementwiseJob& job,
              const base::Who& who) {
  constexpr int N = kChunk<typename Op::In, typename Op::Out>;
  // One chunk more than whole ones make: the first may be short.
  const std::int64_t chunks = base::divide_up(job.runs.length, N) + 1;
  const detail::DeviceStream& device = stream.device();
  return launched(who, device::launch(device, rectangle(device, chunks, job.runs.lines), &elementwise_kernel<Op>, job));
}

template <QuantizeKind kOp, class F, class Code>
constexpr detail::ElementwiseKernel kernel() {
  constexpr const ElementwiseOperator& kOperator = elementwise_operator(kOp);
  constexpr bool kCodes = core::has_codes(kOperator);
  using In = std::conditional_t<kCodes && kOperator.input == ElementClass::code, Code, F>;
  using Out = std::conditional_t<kCodes && kOperator.output == ElementClass::code, Code, F>;
  using Op = typename decltype(operator_of<kOp, F, core::in_memory_t<Code>>())::type;
  return {device_sku<compute_t<F>>(kOp, kind_of<In>, kind_of<Out>), &launch<Op>};
}

// Rows of the table × floating-point types, × code types where there are codes.
constexpr auto make_kernels() {
  constexpr std::size_t kReal = core::RealTypes::kSize, kCodes = core::CodeTypes::kSize;
  std::array<detail::ElementwiseKernel, core::elementwise_kernel_count(kReal, kCodes)> all{};
  std::size_t n = 0;
  core::for_each_elementwise_operator([&]<QuantizeKind kOp>(core::OperatorTag<kOp>) {
    core::for_each_type(core::RealTypes{}, [&]<class F>(TypeList<F>) {
      if constexpr (core::has_codes(elementwise_operator(kOp)))
        core::for_each_type(core::CodeTypes{}, [&]<class Code>(TypeList<Code>) { all[n++] = kernel<kOp, F, Code>(); });
      else
        all[n++] = kernel<kOp, F, std::int8_t>();  // there is no code: any will do
    });
  });
  return all;
}

const auto kKernels = make_kernels();
const auto kPointers = pointers_to<detail::ElementwiseKernel>(kKernels);

}  // namespace

template <>
detail::KernelList<detail::ElementwiseKernel> kernels<detail::ElementwiseKernel>() {
  return {kPointers.data(), kPointers.size()};
}

}  // namespace kvant::cuda
