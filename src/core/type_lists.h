// The tables of elements and operators as types: what kernels are instantiated for, on every backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kvant/element.h"
#include "kvant/sku.h"

namespace kvant::core {

namespace lists {

template <class... A, class... B>
TypeList<A..., B...> join(TypeList<A...>, TypeList<B...>);

template <ElementClass kClass>
TypeList<> filter(TypeList<>);
template <ElementClass kClass, class First, class... Rest>
auto filter(TypeList<First, Rest...>) {
  using Kept = std::conditional_t<info(kind_of<First>).element_class == kClass, TypeList<First>, TypeList<>>;
  return decltype(join(Kept{}, decltype(filter<kClass>(TypeList<Rest...>{})){})){};
}

}  // namespace lists

using RealTypes = decltype(lists::filter<ElementClass::real>(ElementTypes{}));
using CodeTypes = decltype(lists::filter<ElementClass::code>(ElementTypes{}));

// f(TypeList<T>{}) for every T of the list, in its order.
template <class... T, class Function>
constexpr void for_each_type(TypeList<T...>, const Function& f) {
  (f(TypeList<T>{}), ...);
}

// An element-wise operator as a type.
template <QuantizeKind kOp>
struct OperatorTag {};

// f(OperatorTag<op>{}) for every row of kElementwiseOperators.
template <class Function>
constexpr void for_each_elementwise_operator(const Function& f) {
  [&]<std::size_t... kRow>(std::index_sequence<kRow...>) { (f(OperatorTag<kElementwiseOperators[kRow].op>{}), ...); }
  (std::make_index_sequence<kElementwiseOperators.size()>{});
}

// Whether the kernels of an operator read or write codes. Backward passes do not: they read and write gradients.
constexpr bool has_codes(const ElementwiseOperator& o) {
  return !o.backward_of && (o.input == ElementClass::code || o.output == ElementClass::code);
}

// How many kernels the table makes for so many floating-point and code types.
consteval std::size_t elementwise_kernel_count(std::size_t real_types, std::size_t code_types) {
  std::size_t count = 0;
  for (const ElementwiseOperator& o : kElementwiseOperators) count += real_types * (has_codes(o) ? code_types : 1);
  return count;
}

// A code of a floating-point grid in a byte. Which grid it is, a kernel is told by its job, so that all of them share
// their kernels.
struct FloatCode {
  std::uint8_t bits;
};

// What a code is computed in: an integer type, its own or for packed ones a byte of its sign, or a FloatCode.
template <class T>
using unpacked_t = std::conditional_t<
    has_float_grid(kind_of<T>), FloatCode,
    std::conditional_t<!is_packed(kind_of<T>), T,
                       std::conditional_t<(code_range(kind_of<T>).min < 0), std::int8_t, std::uint8_t>>>;

// What kernels see of an element in memory: packed types are themselves, the others what they are computed in.
template <class T>
struct InMemory {
  using Type = T;
};
template <class T>
requires(is_code(kind_of<T>) && !is_packed(kind_of<T>)) struct InMemory<T> {
  using Type = unpacked_t<T>;
};
template <class T>
using in_memory_t = typename InMemory<T>::Type;

}  // namespace kvant::core
