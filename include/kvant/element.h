// Element types: what a tensor is made of.
//
//   f32  float                 s8  std::int8_t     [-128, 127]
//   f64  double                u8  std::uint8_t    [0, 255]
//   f16  Half      (IEEE)      s4  Int4            [-8, 7]    two to a byte
//   bf16 BFloat16              u4  UInt4           [0, 15]    two to a byte
//   s32  std::int32_t          zero points only
//
// s4 and u4 are stored packed: element 2i of a row in the low nibble of byte i, element 2i+1 in the high
// nibble. A row is the last dimension of a tensor of any rank and starts on a byte boundary; the high
// nibble behind an odd last element is zero.
#pragma once

#include <cstdint>
#include <string_view>

#include "kvant/export.h"

namespace kvant {

enum class ElementKind : std::uint8_t { f32, f64, f16, bf16, s8, u8, s4, u4, s32 };

// IEEE binary16, as its bits. Arithmetic happens in float; see to_float and to_half.
struct Half {
  std::uint16_t bits;
};

// The upper 16 bits of a float.
struct BFloat16 {
  std::uint16_t bits;
};

// Tags for packed 4-bit elements; a buffer of them is a buffer of bytes (storage_t).
struct Int4 {};
struct UInt4 {};

// Exact widening, and rounding to nearest, ties to even (NaN stays NaN, overflow gives infinity).
KVANT_API float to_float(Half value);
KVANT_API float to_float(BFloat16 value);
KVANT_API Half to_half(float value);
KVANT_API BFloat16 to_bfloat16(float value);

template <class T>
struct ElementTraits;
template <>
struct ElementTraits<float> {
  static constexpr ElementKind kKind = ElementKind::f32;
  using Storage = float;
};
template <>
struct ElementTraits<double> {
  static constexpr ElementKind kKind = ElementKind::f64;
  using Storage = double;
};
template <>
struct ElementTraits<Half> {
  static constexpr ElementKind kKind = ElementKind::f16;
  using Storage = Half;
};
template <>
struct ElementTraits<BFloat16> {
  static constexpr ElementKind kKind = ElementKind::bf16;
  using Storage = BFloat16;
};
template <>
struct ElementTraits<std::int8_t> {
  static constexpr ElementKind kKind = ElementKind::s8;
  using Storage = std::int8_t;
};
template <>
struct ElementTraits<std::uint8_t> {
  static constexpr ElementKind kKind = ElementKind::u8;
  using Storage = std::uint8_t;
};
template <>
struct ElementTraits<Int4> {
  static constexpr ElementKind kKind = ElementKind::s4;
  using Storage = std::uint8_t;
};
template <>
struct ElementTraits<UInt4> {
  static constexpr ElementKind kKind = ElementKind::u4;
  using Storage = std::uint8_t;
};
template <>
struct ElementTraits<std::int32_t> {
  static constexpr ElementKind kKind = ElementKind::s32;
  using Storage = std::int32_t;
};

template <class T>
inline constexpr ElementKind kind_of = ElementTraits<T>::kKind;

// What a buffer of T is made of in memory: T itself, or bytes for the packed types.
template <class T>
using storage_t = typename ElementTraits<T>::Storage;

// The type that arithmetic on T happens in, which is also the type of its scales: double for double, float
// for f32, f16 and bf16.
template <class T>
struct ComputeType {
  using Type = float;
};
template <>
struct ComputeType<double> {
  using Type = double;
};
template <class T>
using compute_t = typename ComputeType<T>::Type;
template <class T>
using scale_t = compute_t<T>;

constexpr bool is_float(ElementKind kind) { return kind <= ElementKind::bf16; }
constexpr bool is_code(ElementKind kind) { return kind >= ElementKind::s8 && kind <= ElementKind::u4; }
constexpr bool is_packed(ElementKind kind) { return kind == ElementKind::s4 || kind == ElementKind::u4; }

// The kind of the scales that belong to a floating-point kind.
constexpr ElementKind scale_kind(ElementKind kind) {
  return kind == ElementKind::f64 ? ElementKind::f64 : ElementKind::f32;
}

constexpr int bits_per_element(ElementKind kind) {
  switch (kind) {
    case ElementKind::f64: return 64;
    case ElementKind::f32:
    case ElementKind::s32: return 32;
    case ElementKind::f16:
    case ElementKind::bf16: return 16;
    case ElementKind::s8:
    case ElementKind::u8: return 8;
    case ElementKind::s4:
    case ElementKind::u4: return 4;
  }
  return 0;
}

// Bytes that a row of `count` elements takes; packed rows are rounded up to a whole byte.
constexpr std::int64_t row_bytes(ElementKind kind, std::int64_t count) {
  return is_packed(kind) ? count / 2 + count % 2 : count * (bits_per_element(kind) / 8);
}

// The least and greatest value of an integer code type.
struct CodeRange {
  std::int32_t min;
  std::int32_t max;
};
constexpr CodeRange code_range(ElementKind kind) {
  switch (kind) {
    case ElementKind::s8: return {-128, 127};
    case ElementKind::u8: return {0, 255};
    case ElementKind::s4: return {-8, 7};
    case ElementKind::u4: return {0, 15};
    default: return {0, 0};
  }
}

// "f32", "s4" and so on.
KVANT_API std::string_view name(ElementKind kind);

}  // namespace kvant
