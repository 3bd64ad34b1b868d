// The arithmetic of a linear layer: sums of products in integers, zero points taken off them, and the floating-point
// end. The public contract is in include/kvant/linear.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/inline.h"
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
// A kernel that works on the other kind of byte adds `shift` to every code, 128 or -128, and so to their zero point.

// The limit is that of every zero point from a tensor.
template <class L>
KVANT_INLINE typename L::I shifted_act_zero_point(typename L::I given, std::int32_t shift) {
  return L::add_int(limit_zero_point<L>(given), L::set_int(shift));
}

// The zero point of a weight counts as the nearest code, from min to max.
template <class L>
KVANT_INLINE typename L::I shifted_weight_zero_point(typename L::I given, std::int32_t min, std::int32_t max,
                                                     std::int32_t shift) {
  return L::add_int(L::min_int(L::max_int(given, L::set_int(min)), L::set_int(max)), L::set_int(shift));
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
  Wrapping act_zero_point;    // za
  Wrapping distance_sum = 0;  // Σ a - K za; may stay 0 where all weights have zero point 0

  KVANT_INLINE explicit RowCorrection(std::int32_t za) : act_zero_point(wrapped(za)) {}
  KVANT_INLINE RowCorrection(std::int32_t za, std::int64_t row_sum, std::int64_t depth)
      : act_zero_point(wrapped(za)), distance_sum(wrapped(row_sum - depth * za)) {}

  // What a column with that Σ w and zw takes off.
  KVANT_INLINE Wrapping of_column(std::int64_t column_sum, std::int32_t weight_zero_point) const {
    return act_zero_point * wrapped(column_sum) + distance_sum * wrapped(weight_zero_point);
  }
  static KVANT_INLINE Sum corrected(Sum products, Wrapping correction) {
    return static_cast<Sum>(static_cast<Wrapping>(products) - correction);
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
  bool has_products;

  // `bias` is 0 where there is none.
  KVANT_INLINE typename L::F operator()(typename L::F act_scale, typename L::F weight_scale, typename L::F sum,
                                        typename L::F bias) const {
    typename L::F y = scaled_sum<L>(act_scale, weight_scale, sum);
    if (has_bias) y = L::add(y, bias);
    return has_products ? y : bias;
  }
};

}  // namespace kvant::semantics
