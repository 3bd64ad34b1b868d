// The tables of elements and operators as the lists that tests walk.
#pragma once

#include <array>
#include <cstddef>

#include "kvant/element.h"
#include "kvant/sku.h"

namespace kvant::tests {

template <ElementClass kClass>
consteval auto kinds_of() {
  constexpr auto kCount = [] {
    std::size_t n = 0;
    for (const ElementInfo& element : kElements) n += element.element_class == kClass ? 1u : 0u;
    return n;
  }();
  std::array<ElementKind, kCount> kinds = {};
  std::size_t n = 0;
  for (const ElementInfo& element : kElements)
    if (element.element_class == kClass) kinds[n++] = element.kind;
  return kinds;
}
inline constexpr auto kFloatKinds = kinds_of<ElementClass::real>();
inline constexpr auto kCodeKinds = kinds_of<ElementClass::code>();

// The codes with a floating-point grid.
inline constexpr auto kFloatGrids = [] {
  constexpr std::size_t kCount = [] {
    std::size_t n = 0;
    for (const ElementKind kind : kCodeKinds) n += has_float_grid(kind) ? 1u : 0u;
    return n;
  }();
  std::array<ElementKind, kCount> kinds = {};
  std::size_t n = 0;
  for (const ElementKind kind : kCodeKinds)
    if (has_float_grid(kind)) kinds[n++] = kind;
  return kinds;
}();
// What scales are stored as, besides the type that is computed in.
inline constexpr std::array kScaleCodes = {ElementKind::f16, ElementKind::bf16, ElementKind::e8m0, ElementKind::e4m3};

inline constexpr auto kElementwiseKinds = [] {
  std::array<QuantizeKind, kElementwiseOperators.size()> kinds = {};
  for (std::size_t i = 0; i < kinds.size(); ++i) kinds[i] = kElementwiseOperators[i].op;
  return kinds;
}();

inline bool is_backward(QuantizeKind op) { return elementwise_operator(op).backward_of.has_value(); }
inline bool reads_input(QuantizeKind op) { return elementwise_operator(op).reads_input; }
// Floating point in and out, with a grid between.
inline bool is_fake(QuantizeKind op) { return elementwise_operator(op).input == elementwise_operator(op).output; }
// Codes that have something for numbers beyond the grid, so that saturate may be false.
inline bool may_overflow(ElementKind code) { return has_float_grid(code) && info(code).format.top != TopCodes::finite; }
inline bool is_dequantize(QuantizeKind op) { return elementwise_operator(op).input == ElementClass::code; }

// Of one instruction set: forward passes that read or write codes for all pairs of types, the others for all
// floating-point types.
inline std::size_t elementwise_kernel_count() {
  std::size_t count = 0;
  for (const QuantizeKind op : kElementwiseKinds)
    count += kFloatKinds.size() * (is_backward(op) || is_fake(op) ? 1 : kCodeKinds.size());
  return count;
}

}  // namespace kvant::tests
