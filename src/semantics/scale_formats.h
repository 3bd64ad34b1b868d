// Scales that are codes themselves, as memory holds them and as numbers: f16, bf16, e8m0 (a power of two, the MX
// formats) and e4m3 under one global scale for a tensor (NVFP4). The public contract is in include/kvant/elementwise.h.
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "kvant/element.h"
#include "semantics/float_grid.h"
#include "semantics/lanes.h"

namespace kvant::semantics {

// Which scale is written for a range.
enum class ScaleRule : std::uint8_t {
  plain,  // in the compute type
  f16,    // rounded to nearest even
  bf16,
  mx_floor,     // e8m0: the power of two at or below the largest magnitude, by that of the grid's max
  mx_round_up,  // the same, with the next power of two from 1.75 times a power on
  nvfp4,        // e4m3, of the plain scale times the global one
};

// A scale on its way to memory: the number that elements are divided by, and its bits where it is a code.
template <class L>
struct StoredScale {
  typename L::F value;
  typename L::I bits;
};

// ---- e8m0 ----

// 2^(b - 127) for b of 0 to 254, NaN for 255.
template <class L>
KVANT_INLINE typename L::F e8m0_value(typename L::I b) {
  using C = typename L::C;
  using N = FloatGridNumbers<C>;
  using F = typename L::F;
  const auto exponent = L::int_bits(L::add_int(b, L::set_int(N::kBias - 127)));
  // In f32 the exponent field of 2^-127 is that of subnormal numbers, and that of 2^128 says infinity.
  const F power = L::max(L::from_bits(L::shift_bits_left(exponent, N::kFractionBits)), L::set(C(0x1p-127)));
  return L::select(L::le(power, L::set(C(0x1p127))), power, L::set(static_cast<C>(__builtin_nan(""))));
}

// For the largest magnitude of a block and the exponent of the grid's max. All zero: 1.
template <class L>
KVANT_INLINE StoredScale<L> mx_scale(typename L::F magnitude, int max_exponent, bool round_up) {
  using C = typename L::C;
  using N = FloatGridNumbers<C>;
  const auto quarter = L::set_bits(static_cast<typename N::Bits>(round_up ? 1 : 0) << (N::kFractionBits - 2));
  const auto exponent = L::shift_bits_right(L::add_bits(L::bits(magnitude), quarter), N::kFractionBits);
  const auto wanted = L::sub_int(L::to_int_bits(exponent), L::set_int(N::kBias - 127 + max_exponent));
  const auto held = L::min_int(L::set_int(254), L::max_int(L::set_int(0), wanted));
  const auto code = L::select_int(L::le(magnitude, L::set(0)), L::set_int(127), held);
  return {e8m0_value<L>(code), code};
}

// ---- e4m3 under a global scale ----

// number(code) / global
template <class L>
KVANT_INLINE typename L::F nvfp4_value(typename L::I code, typename L::F global) {
  constexpr FloatGrid kGrid = kFloatGrid<ElementKind::e4m3>;
  return L::div(from_grid_code<L>(code, kGrid), global);
}

// e4m3(scale * global); 0 becomes 0.125.
template <class L>
KVANT_INLINE StoredScale<L> nvfp4_scale(typename L::F scale, typename L::F global) {
  constexpr FloatGrid kGrid = kFloatGrid<ElementKind::e4m3>;
  constexpr int kEighth = 0x20;
  const typename L::F wanted = L::mul(scale, global);
  const auto rounded = to_grid_code<L>(wanted, wanted, kGrid);
  const auto code = L::select_int(L::le(L::to_float(rounded), L::set(0)), L::set_int(kEighth), rounded);
  return {nvfp4_value<L>(code, global), code};
}

// 448 · max(grid) / max|x| of the tensor, in f32; 1 where that overflows, as it does for a tensor of zeros, and at
// least the smallest normal number, which large numbers of f64 would go below.
KVANT_INLINE float nvfp4_global_scale(double max_abs, double grid_max) {
  const auto global = static_cast<float>(448 * grid_max / max_abs);
  if (!(global <= 0x1.FFFFFEp127f)) return 1.0f;
  return global < 0x1p-126f ? 0x1p-126f : global;
}

// ---- f16 and bf16 ----

// Rounded to nearest even, at least the smallest normal number and at most the largest finite one. `scale` is positive.
template <class L>
KVANT_INLINE StoredScale<L> narrow_scale(typename L::F scale, bool half) {
  using C = typename L::C;
  using N = FloatGridNumbers<C>;
  using Bits = typename N::Bits;
  const int mantissa_bits = half ? 10 : 7, bias = half ? 15 : 127;
  const int shift = N::kFractionBits - mantissa_bits;
  const auto bits = L::bits(scale);
  const auto last = L::and_bits(L::shift_bits_right(bits, shift), L::set_bits(1));
  const auto raised = L::add_bits(bits, L::add_bits(last, L::set_bits((Bits{1} << (shift - 1)) - 1)));
  const auto kept = L::from_bits(L::and_bits(raised, L::set_bits(~((Bits{1} << shift) - 1))));
  const typename L::F least = L::set(half ? C(0x1p-14) : C(0x1p-126)), most = L::set(half ? C(65504) : C(0x1.FEp127));
  const typename L::F value = L::min(most, L::max(least, kept));
  const auto code = L::sub_int(L::to_int_bits(L::shift_bits_right(L::bits(value), shift)),
                               L::set_int((N::kBias - bias) << mantissa_bits));
  return {value, code};
}

}  // namespace kvant::semantics
