#include "ops/registry.h"

#include <algorithm>
#include <vector>

#include "cpu/features.h"

namespace kvant::ops {
namespace {

// The lists of all instruction sets one after the other, best first.
template <class Kernel, class... List>
std::vector<const Kernel*> collect(const List&... lists) {
  std::vector<const Kernel*> all;
  const auto append = [&all](const auto& list) {
    for (std::size_t i = 0; i < list.count; ++i) all.push_back(list.first + i);
  };
  (append(lists), ...);
  return all;
}

bool serves(const KernelSku& sku, const Target& target) {
  if (sku.backend != target.backend) return false;
  return target.isa ? sku.arch == *target.isa : cpu::can_run(sku.arch);
}

// What kernels of one list are told apart by.
bool is(const KernelSku& sku, QuantizeKind op, ElementKind element, ElementKind aux_element) {
  return sku.op == op && sku.element == element && sku.aux_element == aux_element;
}

template <class Kernel, class Predicate>
const Kernel* first_in(std::span<const Kernel> kernels, const Target& target, const Predicate& predicate) {
  const auto found = std::find_if(kernels.begin(), kernels.end(),
                                  [&](const Kernel& k) { return predicate(k.sku) && serves(k.sku, target); });
  return found == kernels.end() ? nullptr : &*found;
}

template <class Kernel, class Predicate>
const Kernel* first_that(std::span<const Kernel* const> kernels, const Predicate& predicate) {
  const auto found = std::find_if(kernels.begin(), kernels.end(), predicate);
  return found == kernels.end() ? nullptr : *found;
}

}  // namespace

std::span<const detail::ElementwiseKernel* const> elementwise_kernels() {
  static const std::vector<const detail::ElementwiseKernel*> all = collect<detail::ElementwiseKernel>(
#if defined(KVANT_HAS_AVX2)
      cpu::elementwise_kernels_avx2(),
#endif
      cpu::elementwise_kernels_scalar());
  return all;
}

std::span<const detail::DynamicRangeKernel* const> dynamic_range_kernels() {
  static const std::vector<const detail::DynamicRangeKernel*> all = collect<detail::DynamicRangeKernel>(
#if defined(KVANT_HAS_AVX2)
      cpu::dynamic_range_kernels_avx2(),
#endif
      cpu::dynamic_range_kernels_scalar());
  return all;
}

std::span<const detail::RangeKernel* const> range_kernels() {
  static const std::vector<const detail::RangeKernel*> all = collect<detail::RangeKernel>(
#if defined(KVANT_HAS_AVX2)
      cpu::range_kernels_avx2(),
#endif
      cpu::range_kernels_scalar());
  return all;
}

std::span<const detail::LinearKernel* const> linear_kernels() {
  static const std::vector<const detail::LinearKernel*> all = collect<detail::LinearKernel>(
#if defined(KVANT_HAS_AVX2)
      cpu::linear_kernels_avx2(),
#endif
      cpu::linear_kernels_scalar());
  return all;
}

std::span<const detail::F32LinearKernel* const> f32_linear_kernels() {
  static const std::vector<const detail::F32LinearKernel*> all = collect<detail::F32LinearKernel>(
#if defined(KVANT_HAS_AVX2)
      cpu::f32_linear_kernels_avx2(),
#endif
      cpu::f32_linear_kernels_scalar());
  return all;
}

const detail::ElementwiseKernel* find_elementwise_kernel(QuantizeKind op, ElementKind element, ElementKind aux_element,
                                                         const Target& target) {
  return first_that(elementwise_kernels(), [&](const detail::ElementwiseKernel* k) {
    return is(k->sku, op, element, aux_element) && serves(k->sku, target);
  });
}

const detail::DynamicRangeKernel* find_dynamic_range_kernel(ElementKind element, ElementKind aux_element,
                                                            const Target& target) {
  return first_that(dynamic_range_kernels(), [&](const detail::DynamicRangeKernel* k) {
    return k->sku.element == element && k->sku.aux_element == aux_element && serves(k->sku, target);
  });
}

const detail::RangeKernel* find_range_kernel(ElementKind element, const Target& target) {
  return first_that(range_kernels(),
                    [&](const detail::RangeKernel* k) { return k->sku.element == element && serves(k->sku, target); });
}

const detail::LinearKernel* find_linear_kernel(ElementKind output, const Target& target) {
  return first_that(linear_kernels(), [&](const detail::LinearKernel* k) {
    return k->sku.aux_element == output && serves(k->sku, target);
  });
}

const detail::F32LinearKernel* find_f32_linear_kernel(ElementKind weight, const Target& target) {
  return first_that(f32_linear_kernels(), [&](const detail::F32LinearKernel* k) {
    return k->sku.element == weight && serves(k->sku, target);
  });
}

const detail::DeviceElementwiseKernel* find_device_elementwise_kernel(QuantizeKind op, ElementKind element,
                                                                      ElementKind aux_element, const Target& target) {
  return first_in(cuda::elementwise_kernels(), target,
                  [&](const KernelSku& sku) { return is(sku, op, element, aux_element); });
}

const detail::DeviceDynamicRangeKernel* find_device_dynamic_range_kernel(ElementKind element, ElementKind aux_element,
                                                                         const Target& target) {
  return first_in(cuda::dynamic_range_kernels(), target, [&](const KernelSku& sku) {
    return is(sku, QuantizeKind::dynamic_range_quantize, element, aux_element);
  });
}

const detail::DeviceRangeKernel* find_device_range_kernel(ElementKind element, const Target& target) {
  return first_in(cuda::range_kernels(), target, [&](const KernelSku& sku) { return sku.element == element; });
}

const detail::DeviceLinearKernel* find_device_linear_kernel(ElementKind output, const Target& target) {
  return first_in(cuda::linear_kernels(), target, [&](const KernelSku& sku) { return sku.aux_element == output; });
}

}  // namespace kvant::ops
