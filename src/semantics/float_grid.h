// Grids of small floating-point numbers: codes of e4m3 and its like, from a quotient and back. The public contract is
// in include/kvant/elementwise.h.
//
// Rounding takes one addition. For |y| in [2^e, 2^(e+1)) neighbours of the grid are 2^(e-M) apart, with M mantissa
// bits, and so are the numbers of the compute type around 2^(e+P-M), with its P fraction bits. So |y| + 2^(e+P-M) is
// rounded to the grid by the addition itself, to nearest even, once. Below the smallest normal number of the grid e
// stays the exponent of that number, which makes the subnormal ones. With k the steps of that size in the sum, the code
// of the magnitude is
//
//   k + ((e - min_exponent) << M)
//
// for normal and subnormal numbers alike, and a carry into the next exponent comes out right.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/inline.h"
#include "kvant/element.h"
#include "semantics/lanes.h"

namespace kvant::semantics {

// The numbers of a grid in one compute type.
template <class C>
struct FloatGridNumbers {
  using Bits = std::conditional_t<sizeof(C) == 4, std::uint32_t, std::uint64_t>;
  static constexpr int kFractionBits = sizeof(C) == 4 ? 23 : 52;
  static constexpr int kBias = sizeof(C) == 4 ? 127 : 1023;

  int fraction_shift = 0;    // P - M
  int sign_shift = 0;        // from the sign of a code to that of a number
  int code_offset = 0;       // the exponent of a sum around min_normal, shifted so
  Bits exponent_mask = 0;    // of a number
  Bits sign_mask = 0;        // of a number
  Bits rounding_offset = 0;  // from the bits of 2^e to those of 2^(e+P-M)
  Bits least_bits = 0;       // of min_normal; also from a magnitude, shifted into place, to twice its number
  C min_normal = 0;
  C max = 0;
  C limit = 0;     // quotients are clamped to it: max, or the power of two above
  C overflow = 0;  // what a number above max becomes
  C twice_min_normal = 0;
  C twice_max = 0;
  C last_doubled = 0;  // twice the last number that is not NaN, counting infinity as the number after max
  C nan = 0;
};

// A grid as kernels are given it: plain data, the same for every backend.
struct FloatGrid {
  int bits = 0;  // of a code; 0: the grid is one of integers
  int sign_code = 0;
  int magnitude_mask = 0;
  int overflow_code = 0;  // what a number above max becomes
  int nan_code = 0;
  int max_code = 0;      // of max
  bool saturate = true;  // numbers above max become max
  // Magnitude and sign, shifted to those of an f16, make the number over half_factor. (Subnormal ones too.)
  int half_shift = 0;
  float half_factor = 0;
  FloatGridNumbers<float> f32;
  FloatGridNumbers<double> f64;

  // Of max, or of infinity where there is one: NaN is beyond.
  KVANT_INLINE int last_code() const { return overflow_code == nan_code ? max_code : overflow_code; }
  KVANT_INLINE bool has_infinity() const { return last_code() != max_code; }

  template <class C>
  KVANT_INLINE const FloatGridNumbers<C>& numbers() const {
    if constexpr (sizeof(C) == sizeof(double))
      return f64;
    else
      return f32;
  }
};

// 2^exponent, of a normal number.
template <class C>
constexpr typename FloatGridNumbers<C>::Bits bits_of_power(int exponent) {
  using N = FloatGridNumbers<C>;
  return static_cast<typename N::Bits>(exponent + N::kBias) << N::kFractionBits;
}
template <class C>
constexpr C power_of_two(int exponent) {
  return __builtin_bit_cast(C, bits_of_power<C>(exponent));
}

template <class C>
constexpr FloatGridNumbers<C> float_grid_numbers(const FloatFormat& f, bool saturate) {
  using N = FloatGridNumbers<C>;
  using Bits = typename N::Bits;
  N n;
  const int bits = 1 + f.exponent_bits + f.mantissa_bits;
  n.fraction_shift = N::kFractionBits - f.mantissa_bits;
  n.sign_shift = 8 * static_cast<int>(sizeof(C)) - bits;
  n.exponent_mask = bits_of_power<C>(N::kBias + 1);
  n.sign_mask = static_cast<Bits>(Bits{1} << (8 * sizeof(C) - 1));
  n.rounding_offset = static_cast<Bits>(n.fraction_shift) << N::kFractionBits;
  n.least_bits = bits_of_power<C>(f.min_exponent());
  n.code_offset = static_cast<int>((n.least_bits + n.rounding_offset) >> n.fraction_shift);
  n.min_normal = power_of_two<C>(f.min_exponent());
  n.max = static_cast<C>(f.max());
  n.limit = saturate ? n.max : power_of_two<C>(f.max_exponent() + 1);
  const C infinity = __builtin_bit_cast(C, n.exponent_mask);
  n.nan = static_cast<C>(__builtin_nan(""));
  n.overflow = f.top == TopCodes::infinity_and_nan ? infinity : n.nan;
  n.twice_min_normal = 2 * n.min_normal;
  n.twice_max = 2 * n.max;
  n.last_doubled = f.top == TopCodes::infinity_and_nan ? power_of_two<C>(f.max_exponent() + 2) : n.twice_max;
  return n;
}

// The grid of a floating-point code.
constexpr FloatGrid float_grid(ElementKind kind, bool saturate) {
  const FloatFormat& f = info(kind).format;
  const int bits = info(kind).bits;
  const int magnitudes = (1 << (bits - 1)) - 1;
  const int infinity = ((1 << f.exponent_bits) - 1) << f.mantissa_bits;
  return {.bits = bits,
          .sign_code = 1 << (bits - 1),
          .magnitude_mask = magnitudes,
          .overflow_code = f.top == TopCodes::infinity_and_nan ? infinity : magnitudes,
          .nan_code = f.top == TopCodes::finite ? 0 : magnitudes,
          .max_code = f.top == TopCodes::finite ? magnitudes
                      : f.top == TopCodes::nan  ? magnitudes - 1
                                                : infinity - 1,
          .saturate = saturate,
          .half_shift = 10 - f.mantissa_bits,
          .half_factor = power_of_two<float>(15 - f.bias),
          .f32 = float_grid_numbers<float>(f, saturate),
          .f64 = float_grid_numbers<double>(f, saturate)};
}

// A grid that saturates, where it is known when compiling.
template <ElementKind kKind>
inline constexpr FloatGrid kFloatGrid = float_grid(kKind, true);

// A magnitude on its way to the grid: rounded by the addition of power().
template <class L>
struct RoundedToGrid {
  typename L::F sum;
  typename L::B exponent;  // bits of 2^e

  KVANT_INLINE RoundedToGrid(typename L::F magnitude, const FloatGridNumbers<typename L::C>& n) {
    exponent = L::and_bits(L::bits(L::max(L::set(n.min_normal), magnitude)), L::set_bits(n.exponent_mask));
    sum = L::add(magnitude, power(n));
  }
  KVANT_INLINE typename L::F power(const FloatGridNumbers<typename L::C>& n) const {
    return L::from_bits(L::add_bits(exponent, L::set_bits(n.rounding_offset)));
  }
};

// The sum of a RoundedToGrid, by an operation less where a fused multiply-add is an instruction: 2^e times 2^(P-M) is
// exact, so it rounds once too. Its low bits count the steps, and the exponent above them is that of power(), so the
// code of a magnitude as magnitude_code() takes it is
//
//   (the lowest 16 bits of the sum) + (sum >> fraction_shift) - code_offset
template <class L>
struct GridSum {
  typename L::F min_normal;
  typename L::F factor;  // 2^(P-M)
  typename L::B exponent_mask;

  KVANT_INLINE explicit GridSum(const FloatGridNumbers<typename L::C>& n)
      : min_normal(L::set(n.min_normal)),
        factor(L::from_bits(L::set_bits(bits_of_power<typename L::C>(0) + n.rounding_offset))),
        exponent_mask(L::set_bits(n.exponent_mask)) {}
  KVANT_INLINE typename L::F power(typename L::F magnitude) const {  // 2^e
    return L::from_bits(L::and_bits(L::bits(L::max(min_normal, magnitude)), exponent_mask));
  }
  KVANT_INLINE typename L::F operator()(typename L::F magnitude) const {
    return L::fma(power(magnitude), factor, magnitude);
  }
  // The number that a magnitude becomes. NaN stays NaN.
  KVANT_INLINE typename L::F number(typename L::F magnitude) const {
    const typename L::F two_to_e = power(magnitude);
    if constexpr (L::kHasFma) return L::fnma(two_to_e, factor, L::fma(two_to_e, factor, magnitude));
    const typename L::F step = L::mul(two_to_e, factor);
    return L::sub(L::add(magnitude, step), step);
  }
  static KVANT_INLINE typename L::I code(typename L::F sum, const FloatGridNumbers<typename L::C>& n) {
    const auto steps = L::to_int_bits(L::and_bits(L::bits(sum), L::set_bits(0xFFFF)));
    const auto above = L::to_int_bits(L::shift_bits_right(L::bits(sum), n.fraction_shift));
    return L::add_int(steps, L::sub_int(above, L::set_int(n.code_offset)));
  }
};

// The code of a magnitude that is at most max, or so little more that it rounds to max; not NaN.
template <class L>
KVANT_INLINE typename L::I magnitude_code(const RoundedToGrid<L>& rounded, const FloatGridNumbers<typename L::C>& n) {
  using B = typename L::B;
  const B steps = L::sub_bits(L::bits(rounded.sum), L::bits(rounded.power(n)));
  const B above = L::shift_bits_right(L::sub_bits(rounded.exponent, L::set_bits(n.least_bits)), n.fraction_shift);
  return L::to_int_bits(L::add_bits(steps, above));
}

// The code of y. `signed_like` has the sign of y: a CorrectedMultiply loses that of -0.0, and x has it. NaN gives the
// code of NaN without a sign, or 0 where there is none.
template <class L>
KVANT_INLINE typename L::I to_grid_code(typename L::F y, typename L::F signed_like, const FloatGrid& grid) {
  const auto& n = grid.numbers<typename L::C>();
  const typename L::F magnitude = L::abs(y);  // NaN passes through all of this
  const RoundedToGrid<L> rounded(L::min(L::set(n.limit), magnitude), n);
  const typename L::I code = L::min_int(magnitude_code<L>(rounded, n), L::set_int(grid.overflow_code));
  const typename L::I sign =
      L::and_int(L::to_int_bits(L::shift_bits_right(L::bits(signed_like), n.sign_shift)), L::set_int(grid.sign_code));
  return L::select_int(L::le(magnitude, magnitude), L::or_int(code, sign), L::set_int(grid.nan_code));
}

// The number of the grid that y becomes. NaN stays NaN.
template <class L>
KVANT_INLINE typename L::F to_grid_number(typename L::F y, typename L::F signed_like, const FloatGrid& grid) {
  const auto& n = grid.numbers<typename L::C>();
  const RoundedToGrid<L> rounded(L::min(L::set(n.limit), L::abs(y)), n);
  const typename L::F magnitude = L::sub(rounded.sum, rounded.power(n));
  const typename L::F kept =
      L::select(L::le(magnitude, L::set(n.max)), magnitude, L::add(magnitude, L::set(n.overflow)));
  const typename L::B sign = L::and_bits(L::bits(signed_like), L::set_bits(n.sign_mask));
  return L::from_bits(L::or_bits(L::bits(kept), sign));
}

// The number that a code stands for. The bits of a magnitude, shifted under the exponent of the compute type and
// raised by that of twice the smallest normal number, are twice a normal number; subnormal ones have got
// min_normal too much instead. NaN is the default NaN.
template <class L>
KVANT_INLINE typename L::F from_grid_code(typename L::I code, const FloatGrid& grid) {
  using F = typename L::F;
  using B = typename L::B;
  const auto& n = grid.numbers<typename L::C>();
  const B magnitude = L::int_bits(L::and_int(code, L::set_int(grid.magnitude_mask)));
  const F doubled =
      L::from_bits(L::add_bits(L::shift_bits_left(magnitude, n.fraction_shift), L::set_bits(n.least_bits)));
  const F finite = L::select(L::le(L::set(n.twice_min_normal), doubled), L::mul(doubled, L::set(0.5)),
                             L::sub(doubled, L::set(n.min_normal)));
  const F kept = L::select(L::le(doubled, L::set(n.twice_max)), finite, L::set(n.overflow));
  const B sign = L::shift_bits_left(L::int_bits(L::and_int(code, L::set_int(grid.sign_code))), n.sign_shift);
  const F result = L::from_bits(L::or_bits(L::bits(kept), sign));
  return L::select(L::le(doubled, L::set(n.last_doubled)), result, L::set(n.nan));
}

}  // namespace kvant::semantics
