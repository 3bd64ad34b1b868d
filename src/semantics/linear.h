// The arithmetic of a linear layer: sums of products in integers, zero points taken off them, and the end, which is a
// floating-point number or a code. The public contract is in include/kvant/linear.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/inline.h"
#include "kvant/element.h"
#include "semantics/lanes.h"
#include "semantics/quantize.h"

namespace kvant::semantics {

// ---- Sums of products -----------------------------------------------------------------------------------------

// The largest magnitudes of a product of codes, by the kinds of its factors.
inline constexpr std::int64_t kMaxProductU8S8 = 255 * 128;
inline constexpr std::int64_t kMaxProductS8S8 = 128 * 128;

// True if 32 bits hold every sum of `count` products of at most that magnitude.
KVANT_INLINE constexpr bool sum_fits_32_bits(std::int64_t magnitude, std::int64_t count) {
  constexpr std::int64_t kMax = 0x7FFFFFFF;
  return count <= kMax && magnitude <= kMax && magnitude * count <= kMax;
}

// ---- Zero points ----------------------------------------------------------------------------------------------
//
// A kernel multiplies codes as they are and takes the zero points off its sums:
//
//   Σ (a - za)(w - zw)  =  Σ a w - za Σ w - zw (Σ a - K za)
//
// A kernel that works on the other kind of byte adds 128 or -128 to every code, and to the zero point once it is
// limited.

// Of a weight: the nearest code, from min to max. An activation's has the limit of every zero point,
// limit_zero_point().
template <class L>
KVANT_INLINE typename L::I limit_weight_zero_point(typename L::I zp, typename L::I min, typename L::I max) {
  return L::min_int(L::max_int(zp, min), max);
}

// The largest |code - zero_point| of codes from min to max.
KVANT_INLINE std::int64_t largest_distance(std::int64_t min, std::int64_t max, std::int64_t zero_point) {
  return zero_point - min > max - zero_point ? zero_point - min : max - zero_point;
}

// What the sums of one row are corrected by. Wraps: where the corrected sum fits Sum, nothing that overflows on the way
// matters.
template <class Sum>
struct RowCorrection {
  using Wrapping = std::make_unsigned_t<Sum>;
  std::int32_t act_zero_point;  // za
  std::int64_t row_sum = 0;     // Σ a; it and the depth may stay 0 where all weights have zero point 0
  std::int64_t depth = 0;       // K

  // za Σ w, all that there is to take off where the weight's zero point is 0.
  KVANT_INLINE Wrapping column_term(std::int64_t column_sum) const {
    return wrapped(act_zero_point) * wrapped(column_sum);
  }
  static KVANT_INLINE Sum without(Sum products, Wrapping term) {
    return static_cast<Sum>(static_cast<Wrapping>(products) - term);
  }
  KVANT_INLINE Sum corrected(Sum products, std::int64_t column_sum, std::int32_t weight_zero_point) const {
    const Sum without_column = without(products, column_term(column_sum));
    return without(without_column, wrapped(weight_zero_point) * wrapped(row_sum - depth * act_zero_point));
  }

 private:
  static KVANT_INLINE Wrapping wrapped(std::int64_t x) { return static_cast<Wrapping>(x); }
};

// ---- The floating-point end -----------------------------------------------------------------------------------

// (act_scale * weight_scale) * sum. The order is part of the contract: another one rounds differently.
template <class L>
KVANT_INLINE typename L::F scaled_sum(typename L::F act_scale, typename L::F weight_scale, typename L::F sum) {
  return L::mul(L::mul(act_scale, weight_scale), sum);
}

// From corrected sums to outputs. Without a bias nothing is added, as adding 0 would turn -0.0 into +0.0. Without
// products, at depth 0, there is nothing to scale, not even infinity or NaN.
template <class L>
struct LinearEnd {
  bool has_bias;
  bool has_no_products;  // depth 0

  // `bias` is 0 where there is none.
  KVANT_INLINE typename L::F operator()(typename L::F act_scale, typename L::F weight_scale, typename L::F sum,
                                        typename L::F bias) const {
    typename L::F y = scaled_sum<L>(act_scale, weight_scale, sum);
    if (has_bias) y = L::add(y, bias);
    return has_no_products ? bias : y;
  }
};

// ---- The end in codes -----------------------------------------------------------------------------------------

// An output of s8 or u8. Kernels of both are one: the range of the codes tells which of the two it is.
struct CodeByte {
  std::uint8_t bits;
};

// What a sum is converted to. A code's is f64, where the product of a sum below 2^29 and an f32 is exact, so that
// rounding to the code is the only rounding after that of the factor.
template <class Out>
using sum_t = std::conditional_t<std::is_same_v<Out, CodeByte>, double, compute_t<Out>>;

// How many steps of the output one unit of the sum is worth, in f32: (act_scale * weight_scale) / output_scale. The
// order is part of the contract, as it is ONNX's.
template <class L>
KVANT_INLINE typename L::F output_factor(typename L::F act_scale, typename L::F weight_scale,
                                         typename L::F output_scale) {
  return L::div(L::mul(act_scale, weight_scale), output_scale);
}

// A bias in steps of the output, in f64.
template <class L>
KVANT_INLINE typename L::F bias_in_steps(typename L::F bias, typename L::F output_scale) {
  return L::div(bias, output_scale);
}

// From corrected sums to codes: clamp(rne(sum * factor + bias) + zero_point, q_min, q_max), in f64 and without a fused
// multiply-add. NaN counts as 0. Biases and products are left out as in LinearEnd.
template <class L>
struct RequantizingEnd {
  bool has_bias;
  bool has_no_products;  // depth 0
  typename L::I zero_point;
  typename L::I q_min;
  typename L::I q_max;

  // `factor` is output_factor(), `bias` is bias_in_steps(), or 0 where there is none.
  KVANT_INLINE typename L::I operator()(typename L::F factor, typename L::F sum, typename L::F bias) const {
    const auto steps = [&](typename L::F s) KVANT_INLINE_LAMBDA {
      typename L::F y = L::mul(s, factor);
      if (has_bias) y = L::add(y, bias);
      return has_no_products ? bias : y;
    };
    return quantize<L>(sum, steps, zero_point, q_min, q_max);
  }
};

}  // namespace kvant::semantics
