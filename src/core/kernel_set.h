// All kernels of one instruction set. The sets of a build are listed in cpu/instruction_sets.cc and, for CUDA, by
// core/cuda_backend.h; ops/registry.h chooses from them.
#pragma once

#include <cstddef>
#include <tuple>

#include "core/dynamic_range_kernel.h"
#include "core/elementwise_kernel.h"
#include "core/error_sums_kernel.h"
#include "core/f32_linear_kernel.h"
#include "core/linear_kernel.h"
#include "core/network_steps_kernel.h"
#include "core/range_kernel.h"
#include "core/weight_rounding_kernel.h"
#include "kvant/element.h"
#include "kvant/sku.h"

namespace kvant::detail {

// Plain pointers: code for one instruction set fills it, and a std::span's members would be compiled there and could be
// linked into code for another.
template <class Kernel>
struct KernelList {
  const Kernel* const* first = nullptr;
  std::size_t count = 0;

  const Kernel* const* begin() const { return first; }
  const Kernel* const* end() const { return first + count; }
};

// The families, in the order in which they are shown.
using KernelFamilies = TypeList<ElementwiseKernel, RangeKernel, DynamicRangeKernel, LinearKernel, F32LinearKernel,
                                ErrorSumsKernel, NetworkStepsKernel, WeightRoundingKernel>;

template <class Families>
struct KernelListsOf;
template <class... Kernel>
struct KernelListsOf<TypeList<Kernel...>> {
  using Type = std::tuple<KernelList<Kernel>...>;
};

struct KernelSet {
  ArchSku arch;
  KernelListsOf<KernelFamilies>::Type lists;

  template <class Kernel>
  KernelList<Kernel> of() const {
    return std::get<KernelList<Kernel>>(lists);
  }

  // Null if there is none.
  template <class Kernel>
  const Kernel* find(QuantizeKind op, ElementKind element, ElementKind aux_element) const {
    for (const Kernel* kernel : of<Kernel>())
      if (kernel->sku.op == op && kernel->sku.element == element && kernel->sku.aux_element == aux_element)
        return kernel;
    return nullptr;
  }
};

// f(TypeList<Kernel>{}) for every family.
template <class Function, class... Kernel>
void for_each_family(const Function& f, TypeList<Kernel...>) {
  (f(TypeList<Kernel>{}), ...);
}
template <class Function>
void for_each_family(const Function& f) {
  for_each_family(f, KernelFamilies{});
}

// A set from lists<Kernel>() for every family.
template <class Lists, class... Kernel>
KernelSet make_kernel_set(ArchSku arch, const Lists& lists, TypeList<Kernel...>) {
  return {arch, {lists(TypeList<Kernel>{})...}};
}

}  // namespace kvant::detail
