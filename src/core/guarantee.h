// What kernels promise.
#pragma once

#include "kvant/sku.h"

namespace kvant::detail {

// The promise of every kernel that evaluates one formula in C: the same bits everywhere.
template <class C>
consteval PrecisionGuarantee bit_stable_guarantee(AccumulatorKind accumulator = AccumulatorKind::none) {
  return {.math_precision = sizeof(C) == sizeof(double) ? MathPrecision::f64 : MathPrecision::f32,
          .accumulator = accumulator,
          .bit_stable_on_same_hardware = true,
          .bit_stable_across_hardware = true,
          .deterministic = true};
}

// A kernel that computes in C.
template <class C>
consteval KernelSku bit_stable_sku(ArchSku arch, QuantizeKind op, ElementKind element, ElementKind aux_element) {
  KernelSku sku;
  sku.op = op;
  sku.element = element;
  sku.aux_element = aux_element;
  sku.arch = arch;
  sku.backend = info(arch).backend;
  sku.precision_guarantee = bit_stable_guarantee<C>();
  return sku;
}

}  // namespace kvant::detail
