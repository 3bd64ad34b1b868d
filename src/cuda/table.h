// What the tables of kernels in this folder are made with.
#pragma once

#include "core/elementwise_kernel.h"
#include "kvant/element.h"
#include "kvant/sku.h"

namespace kvant::cuda {

template <class... T>
struct Types {};
using FloatTypes = Types<float, double, Half, BFloat16>;
using CodeTypes = Types<std::int8_t, std::uint8_t, Int4, UInt4>;

template <class C>
constexpr KernelSku device_sku(QuantizeKind op, ElementKind element, ElementKind aux_element) {
  KernelSku sku;
  sku.op = op;
  sku.element = element;
  sku.aux_element = aux_element;
  sku.arch = ArchSku::sm_80;
  sku.backend = BackendKind::cuda;
  sku.precision_guarantee = detail::bit_stable_guarantee<C>();
  return sku;
}

}  // namespace kvant::cuda
