// The element-wise conveyor, compiled once for each instruction set: cut a part into lines and those into runs or
// columns (lines-inl.h), load a block (blocks-inl.h) with its parameters (parameters-inl.h), apply an operator
// (operators-inl.h), store it. All arithmetic is in semantics/.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/guarantee.h"
#include "core/type_lists.h"
#include "cpu/elementwise_kernel.h"
#include "cpu/lines-inl.h"
#include "cpu/operators-inl.h"
#include "kvant/element.h"
#include "kvant/sku.h"

namespace kvant::cpu {

template <class L>
void finish_streaming() {
  L::finish_streaming();
}

template <class T>
inline constexpr bool kIsSixteenBitFloat = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

// Op reads InElement and writes OutElement in memory; at most one of them is packed.
template <class L, class Op, class InElement, class OutElement>
void run_part(const ElementwiseWork& job, const ElementwisePart& part) {
  constexpr bool kSixteenBit = kIsSixteenBitFloat<typename Op::In> || kIsSixteenBitFloat<typename Op::Out>;
  if (job.runs.run != 1)
    run_line_by_line<L, Op, InElement, OutElement>(
        job, part,
        [&](std::int64_t first, const auto& piece, std::int64_t fetch_ahead, auto& table)
            KVANT_INLINE_LAMBDA { walk_runs<L, Op>(job, first, piece, fetch_ahead, table); });
  else if constexpr (kSixteenBit)
    run_lines_in_tiles<L, Op, InElement, OutElement>(job, part);
  else
    run_line_by_line<L, Op, InElement, OutElement>(
        job, part,
        [&](std::int64_t first, const auto& piece, std::int64_t fetch_ahead, auto& table)
            KVANT_INLINE_LAMBDA { walk_directly<L, Op>(job, first, piece, fetch_ahead, table); });
}

// ---- The table ------------------------------------------------------------------------------------------------

// An operator for a floating-point and a code type. Backward passes read and write the floating-point type, whatever
// the forward pass does.
template <class Isa, QuantizeKind kOp, class F, class Code>
constexpr ElementwiseKernel elementwise_kernel() {
  constexpr const ElementwiseOperator& kOperator = elementwise_operator(kOp);
  using L = typename Isa::template Lanes<compute_t<F>>;
  constexpr bool kCodes = core::has_codes(kOperator);
  using In = std::conditional_t<kCodes && kOperator.input == ElementClass::code, Code, F>;
  using Out = std::conditional_t<kCodes && kOperator.output == ElementClass::code, Code, F>;
  using Op = typename decltype(body_of<kOp, L, F, core::unpacked_t<Code>>())::type;
  ElementwiseKernel kernel = {};
  kernel.sku = detail::bit_stable_sku<compute_t<F>>(Isa::kArch, kOp, kind_of<In>, kind_of<Out>);
  kernel.launch = &launch_elementwise;
  kernel.run = &run_part<L, Op, core::in_memory_t<In>, core::in_memory_t<Out>>;
  kernel.finish_streaming = &finish_streaming<L>;
  return kernel;
}

// Every kernel of one instruction set: rows of the table × floating-point types, × code types where there are codes.
template <class Isa>
constexpr auto make_elementwise_kernels() {
  constexpr std::size_t kReal = core::RealTypes::kSize, kCodes = core::CodeTypes::kSize;
  std::array<ElementwiseKernel, core::elementwise_kernel_count(kReal, kCodes)> all{};
  std::size_t n = 0;
  core::for_each_elementwise_operator([&]<QuantizeKind kOp>(core::OperatorTag<kOp>) {
    core::for_each_type(core::RealTypes{}, [&]<class F>(TypeList<F>) {
      if constexpr (core::has_codes(elementwise_operator(kOp)))
        core::for_each_type(core::CodeTypes{},
                            [&]<class Code>(TypeList<Code>) { all[n++] = elementwise_kernel<Isa, kOp, F, Code>(); });
      else
        all[n++] = elementwise_kernel<Isa, kOp, F, std::int8_t>();  // there is no code: any will do
    });
  });
  return all;
}

}  // namespace kvant::cpu
