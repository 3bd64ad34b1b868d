// Element types: what a tensor is made of.
//
//   f32  float                 s8   std::int8_t     [-128, 127]
//   f64  double                u8   std::uint8_t    [0, 255]
//   f16  Half      (IEEE)      s4   Int4            [-8, 7]           two to a byte
//   bf16 BFloat16              u4   UInt4           [0, 15]           two to a byte
//   s32  std::int32_t          s16  std::int16_t    [-32768, 32767]
//        zero points only      u16  std::uint16_t   [0, 65535]
//   e8m0 Float8E8M0            s2   Int2            [-2, 1]           four to a byte
//        scales only: 2^(b -   u2   UInt2           [0, 3]            four to a byte
//        127), 255 is NaN      e4m3 Float8E4M3      ±448, NaN         OCP FP8 E4M3, the "FN" form
//                              e5m2 Float8E5M2      ±57344, Inf, NaN  OCP FP8 E5M2
//                              e2m1 Float4E2M1      ±{0, 0.5, 1, 1.5, 2, 3, 4, 6}, two to a byte
//
// Codes of less than eight bits are stored packed: the first element of a byte in its lowest bits. A row is the last
// dimension of a tensor of any rank and starts on a byte boundary; the bits after a row's last element are zero.
//
// All facts about element types are in two lists below, ElementTypes and kElements. Adding a type is adding its
// enumerator, its C++ type and its row; names, ranges, packing, the kernels' type lists and Python's names follow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "kvant/export.h"

namespace kvant {

// clang-format off
enum class ElementKind : std::uint8_t {
  f32, f64, f16, bf16, s8, u8, s4, u4, s16, u16, s2, u2, e4m3, e5m2, e2m1, e8m0, s32
};
// clang-format on

// IEEE binary16, as its bits. Arithmetic happens in float; see to_float and to_half.
struct Half {
  std::uint16_t bits;
};

// The upper 16 bits of a float.
struct BFloat16 {
  std::uint16_t bits;
};

// Tags for packed elements of four and two bits; a buffer of them is a buffer of bytes (storage_t).
struct Int4 {};
struct UInt4 {};
struct Int2 {};
struct UInt2 {};
struct Float4E2M1 {};

// Codes of eight bits that stand for small floating-point numbers, as their bits: sign, exponent, mantissa from the
// top.
struct Float8E4M3 {
  std::uint8_t bits;
};
struct Float8E5M2 {
  std::uint8_t bits;
};
// A power of two, as the scale of a block of OCP's MX formats.
struct Float8E8M0 {
  std::uint8_t bits;
};

// Exact widening, and rounding to nearest, ties to even (NaN stays NaN, overflow gives infinity).
KVANT_API float to_float(Half value);
KVANT_API float to_float(BFloat16 value);
KVANT_API Half to_half(float value);
KVANT_API BFloat16 to_bfloat16(float value);

// ---- The table ----

// What an element is for.
enum class ElementClass : std::uint8_t {
  real,     // a number that operators compute with
  code,     // a point of a grid, made by quantization
  scale,    // a scale, and nothing else
  integer,  // a zero point
};

// The min and max code of an integer grid.
struct CodeRange {
  std::int32_t min;
  std::int32_t max;
};

// What the codes of a type stand for. Integer codes stand for themselves, the others for a floating-point number.
enum class GridKind : std::uint8_t { none, integer, floating };

// What the codes with the largest exponent mean: numbers (finite), numbers but for the largest mantissa, which is NaN
// (nan), or infinity and NaN as in IEEE 754 (infinity_and_nan).
enum class TopCodes : std::uint8_t { finite, nan, infinity_and_nan };

// A small floating-point format: a sign bit, then exponent and mantissa. Subnormal numbers as in IEEE 754.
struct FloatFormat {
  int exponent_bits = 0;
  int mantissa_bits = 0;
  int bias = 0;
  TopCodes top = TopCodes::finite;

  // Of the largest numbers.
  constexpr int max_exponent() const {
    return (1 << exponent_bits) - (top == TopCodes::infinity_and_nan ? 2 : 1) - bias;
  }
  // Of the smallest normal numbers.
  constexpr int min_exponent() const { return 1 - bias; }
  // The largest number: 1.11… · 2^max_exponent, with a 0 at the end where that code is NaN.
  constexpr float max() const {
    const int all_ones = (2 << mantissa_bits) - 1 - (top == TopCodes::nan ? 1 : 0);
    float power = static_cast<float>(all_ones);
    for (int i = max_exponent(); i < mantissa_bits; ++i) power /= 2;
    for (int i = mantissa_bits; i < max_exponent(); ++i) power *= 2;
    return power;
  }
};

struct ElementInfo {
  ElementKind kind;
  std::string_view name;        // "s4"
  std::string_view numpy_name;  // "int4": what numpy, ml_dtypes and torch call it
  ElementClass element_class;
  int bits;  // of an element in memory
  GridKind grid = GridKind::none;
  CodeRange range = {0, 0};  // of an integer grid
  FloatFormat format = {};   // of a floating-point grid
};

namespace detail {

// The row of a floating-point code.
constexpr ElementInfo float_code(ElementKind kind, std::string_view name, std::string_view numpy_name,
                                 const FloatFormat& format) {
  const int bits = 1 + format.exponent_bits + format.mantissa_bits;
  return {kind, name, numpy_name, ElementClass::code, bits, GridKind::floating, {}, format};
}

}  // namespace detail

template <class... T>
struct TypeList {
  static constexpr std::size_t kSize = sizeof...(T);
};

// The C++ type of each row of kElements.
using ElementTypes = TypeList<float, double, Half, BFloat16, std::int8_t, std::uint8_t, Int4, UInt4, std::int16_t,
                              std::uint16_t, Int2, UInt2, Float8E4M3, Float8E5M2, Float4E2M1, Float8E8M0, std::int32_t>;

inline constexpr std::array<ElementInfo, ElementTypes::kSize> kElements = {{
    {ElementKind::f32, "f32", "float32", ElementClass::real, 32},
    {ElementKind::f64, "f64", "float64", ElementClass::real, 64},
    {ElementKind::f16, "f16", "float16", ElementClass::real, 16},
    {ElementKind::bf16, "bf16", "bfloat16", ElementClass::real, 16},
    {ElementKind::s8, "s8", "int8", ElementClass::code, 8, GridKind::integer, {-128, 127}},
    {ElementKind::u8, "u8", "uint8", ElementClass::code, 8, GridKind::integer, {0, 255}},
    {ElementKind::s4, "s4", "int4", ElementClass::code, 4, GridKind::integer, {-8, 7}},
    {ElementKind::u4, "u4", "uint4", ElementClass::code, 4, GridKind::integer, {0, 15}},
    {ElementKind::s16, "s16", "int16", ElementClass::code, 16, GridKind::integer, {-32768, 32767}},
    {ElementKind::u16, "u16", "uint16", ElementClass::code, 16, GridKind::integer, {0, 65535}},
    {ElementKind::s2, "s2", "int2", ElementClass::code, 2, GridKind::integer, {-2, 1}},
    {ElementKind::u2, "u2", "uint2", ElementClass::code, 2, GridKind::integer, {0, 3}},
    detail::float_code(ElementKind::e4m3, "e4m3", "float8_e4m3fn", {4, 3, 7, TopCodes::nan}),
    detail::float_code(ElementKind::e5m2, "e5m2", "float8_e5m2", {5, 2, 15, TopCodes::infinity_and_nan}),
    detail::float_code(ElementKind::e2m1, "e2m1", "float4_e2m1fn", {2, 1, 1, TopCodes::finite}),
    {ElementKind::e8m0, "e8m0", "float8_e8m0fnu", ElementClass::scale, 8},
    {ElementKind::s32, "s32", "int32", ElementClass::integer, 32},
}};

constexpr const ElementInfo& info(ElementKind kind) { return kElements[static_cast<std::size_t>(kind)]; }

// ---- What follows from it ----

constexpr bool is_float(ElementKind kind) { return info(kind).element_class == ElementClass::real; }
constexpr bool is_code(ElementKind kind) { return info(kind).element_class == ElementClass::code; }
constexpr int bits_per_element(ElementKind kind) { return info(kind).bits; }
constexpr bool is_packed(ElementKind kind) { return info(kind).bits < 8; }
// 1 unless the type is packed.
constexpr int elements_per_byte(ElementKind kind) { return is_packed(kind) ? 8 / info(kind).bits : 1; }
// Whether a row of `count` elements ends at a whole byte. (A division would cost as much as the checks of a plan.)
constexpr bool fills_bytes(ElementKind kind, std::int64_t count) {
  return !is_packed(kind) || count % elements_per_byte(kind) == 0;
}
// The min and max value of an integer code type; 0 and 0 for others.
constexpr CodeRange code_range(ElementKind kind) { return info(kind).range; }
constexpr bool has_float_grid(ElementKind kind) { return info(kind).grid == GridKind::floating; }
// "f32", "s4" and so on.
constexpr std::string_view name(ElementKind kind) { return info(kind).name; }

// Bytes that a row of `count` elements takes; packed rows are rounded up to a whole byte.
constexpr std::int64_t row_bytes(ElementKind kind, std::int64_t count) {
  const int per_byte = elements_per_byte(kind);
  return is_packed(kind) ? count / per_byte + (count % per_byte != 0) : count * (bits_per_element(kind) / 8);
}

namespace detail {

template <class T, class... All>
consteval std::size_t index_of(TypeList<All...>) {
  constexpr bool kSame[] = {std::is_same_v<T, All>...};
  std::size_t i = 0;
  while (i < sizeof...(All) && !kSame[i]) ++i;
  return i;
}

template <class T>
inline constexpr bool is_element = index_of<T>(ElementTypes{}) < ElementTypes::kSize;

}  // namespace detail

template <class T>
requires detail::is_element<T>
inline constexpr ElementKind kind_of = kElements[detail::index_of<T>(ElementTypes{})].kind;

// What a buffer of T is made of in memory: T itself, or bytes for the packed types.
template <class T>
using storage_t = std::conditional_t<is_packed(kind_of<T>), std::uint8_t, T>;

// The type that arithmetic on T happens in, which is also the type of its scales: double for double, float
// for f32, f16 and bf16.
template <class T>
using compute_t = std::conditional_t<std::is_same_v<T, double>, double, float>;
template <class T>
using scale_t = compute_t<T>;

// The kind of the scales that belong to a floating-point kind.
constexpr ElementKind scale_kind(ElementKind kind) {
  return kind == ElementKind::f64 ? ElementKind::f64 : ElementKind::f32;
}

namespace detail {

// Refuses half a row: every fact that the class of the element asks for must be there, in the order of ElementKind, and
// fit the C++ type.
template <class... T>
consteval bool elements_are_complete(TypeList<T...>) {
  constexpr std::size_t kBytes[] = {sizeof(storage_t<T>)...};
  for (std::size_t i = 0; i < kElements.size(); ++i) {
    const ElementInfo& e = kElements[i];
    if (e.kind != static_cast<ElementKind>(i) || e.name.empty() || e.numpy_name.empty()) return false;
    if (e.bits < 8 ? 8 % e.bits != 0 : static_cast<std::size_t>(e.bits) != 8 * kBytes[i]) return false;
    if ((e.element_class == ElementClass::code) != (e.grid != GridKind::none)) return false;
    if (e.grid == GridKind::integer && e.range.max - e.range.min != (1 << e.bits) - 1) return false;
    if (e.grid == GridKind::floating && 1 + e.format.exponent_bits + e.format.mantissa_bits != e.bits) return false;
  }
  return true;
}
static_assert(elements_are_complete(ElementTypes{}), "a row of kElements is incomplete or out of order");

}  // namespace detail
}  // namespace kvant
