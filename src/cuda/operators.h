// The element-wise operators as device code: which formula of semantics/ serves which parameters. Each has
//
//   In, Out     what is read and written      F   the floating-point type, L   its lanes
//   kReadsDy    there is a second input
//   may_correct(p)        parameters for which Way::corrected gives the bits of Way::divide
//   one<kWay>(p, s, x, dy)  one element
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/chunk.h"
#include "cuda/lanes.h"
#include "kvant/plan.h"
#include "kvant/sku.h"
#include "semantics/float_grid.h"
#include "semantics/quantize.h"

namespace kvant::cuda {

// How quotients are evaluated: see the quotients of semantics/quantize.h.
enum class Way { divide, multiply, corrected };

template <class L, Way kWay>
KVANT_DEVICE auto quotient(const semantics::Prepared<L>& p) {
  if constexpr (kWay == Way::divide)
    return semantics::Divide<L>{p.scale};
  else if constexpr (kWay == Way::multiply)
    return semantics::Multiply<L>{p.inverse};
  else
    return semantics::CorrectedMultiply<L>{p.scale, p.inverse};
}

// What all elements of a launch share.
struct Settings {
  int q_min;
  int q_max;
  bool reciprocal;
  semantics::FloatGrid grid;  // without bits: the grid is one of integers
};

// What operators have in common.
template <class InType, class OutType, class FloatType>
struct Operator {
  using In = InType;
  using Out = OutType;
  using F = FloatType;
  using C = compute_t<F>;
  using L = DeviceLanes<C>;
  using Prepared = semantics::Prepared<L>;
  static constexpr bool kReadsDy = false;
  static KVANT_DEVICE bool may_correct(const Prepared&) { return false; }
};

// The code of y on a floating-point grid: one instruction where the GPU has it, which gives the bits of the formula.
template <class L>
KVANT_DEVICE int grid_code(typename L::C y, typename L::C signed_like, const semantics::FloatGrid& grid) {
  if constexpr (device::kHasFloat8 && sizeof(typename L::C) == 4) {
    if (grid.bits == 8 && grid.saturate)
      return device::to_float8(device::with_sign(y, signed_like), grid.half_shift == 7);
  }
  return semantics::to_grid_code<L>(y, signed_like, grid);
}

template <class F, class Code>
struct Quantize : Operator<F, Code, F> {
  using Base = Operator<F, Code, F>;
  using typename Base::C, typename Base::L, typename Base::Prepared;
  static constexpr bool kGrid = kHasFloatGrid<Code>;
  static KVANT_DEVICE bool may_correct(const Prepared& p) { return kGrid ? p.corrected : p.clamps_input; }

  template <Way kWay>
  static KVANT_DEVICE int one(const Prepared& p, const Settings& s, C x, C) {
    if constexpr (kWay == Way::corrected && kGrid) {
      const auto q = semantics::signed_quotient<L>(x, quotient<L, kWay>(p), p.input_bounds);
      return grid_code<L>(q.y, q.signed_like, s.grid);
    } else if constexpr (kWay == Way::corrected) {
      // NaN becomes 0 here, as it does there.
      const int q = semantics::rounded_quotient_of_clamped_input<L>(x, quotient<L, kWay>(p), p.input_bounds);
      return L::min_int(s.q_max, L::max_int(s.q_min, q + p.zero_point));
    } else {
      return with_quotient(quotient<L, kWay>(p), p.zero_point, s, x);
    }
  }

  // With any scale.
  template <class Quotient>
  static KVANT_DEVICE int with_quotient(const Quotient& quotient_of, int zero_point, const Settings& s, C x) {
    if constexpr (kGrid) {
      const C y = quotient_of(x);
      return grid_code<L>(y, y, s.grid);
    } else {
      return semantics::quantize<L>(x, quotient_of, zero_point, s.q_min, s.q_max);
    }
  }
};

template <class F, class Code>
struct Dequantize : Operator<Code, F, F> {
  using Base = Operator<Code, F, F>;
  using typename Base::C, typename Base::L, typename Base::Prepared;
  template <Way>
  static KVANT_DEVICE C one(const Prepared& p, const Settings& s, int q, C) {
    if constexpr (kHasFloatGrid<Code>) return L::mul(p.scale, semantics::from_grid_code<L>(q, s.grid));
    return semantics::dequantize<L>(q, p.scale, p.zero_point);
  }
};

template <class F>
struct FakeQuantize : Operator<F, F, F> {
  using Base = Operator<F, F, F>;
  using typename Base::C, typename Base::L, typename Base::Prepared;
  static KVANT_DEVICE bool may_correct(const Prepared& p) { return p.clamps_input; }

  template <Way kWay>
  static KVANT_DEVICE C one(const Prepared& p, const Settings& s, C x, C) {
    if (s.grid.bits != 0) {
      const auto q = semantics::signed_quotient<L>(x, quotient<L, kWay>(p), p.input_bounds);
      return L::mul(p.scale, semantics::to_grid_number<L>(q.y, q.signed_like, s.grid));
    }
    if constexpr (kWay == Way::corrected)
      return semantics::fake_quantize_clamped_input<L>(x, p.scale, quotient<L, kWay>(p), p.input_bounds);
    else
      return semantics::fake_quantize<L>(x, p.scale, quotient<L, kWay>(p), p.bounds);
  }
};

// The two backward passes with a mask; kScaled divides the gradient by the scale.
template <class F, bool kScaled>
struct MaskedBackward : Operator<F, F, F> {
  using Base = Operator<F, F, F>;
  using typename Base::C, typename Base::L, typename Base::Prepared;
  static constexpr bool kReadsDy = true;
  static KVANT_DEVICE bool may_correct(const Prepared& p) { return p.corrected; }

  template <Way kWay>
  static KVANT_DEVICE C one(const Prepared& p, const Settings& s, C x, C dy) {
    constexpr Way kOfDy = kWay == Way::corrected ? Way::divide : kWay;  // it is stored: no shortcut
    const bool inside = s.grid.bits != 0 ? semantics::in_range<L, false>(x, quotient<L, kWay>(p), p.bounds)
                                         : semantics::in_range<L, true>(x, quotient<L, kWay>(p), p.bounds);
    if constexpr (kScaled)
      return semantics::quantize_backward<L>(inside, dy, quotient<L, kOfDy>(p));
    else
      return semantics::fake_quantize_backward<L>(inside, dy);
  }
};

template <class F>
struct DequantizeBackward : Operator<F, F, F> {
  using Base = Operator<F, F, F>;
  using typename Base::C, typename Base::L, typename Base::Prepared;
  template <Way>
  static KVANT_DEVICE C one(const Prepared& p, const Settings&, C dy, C) {
    return semantics::dequantize_backward<L>(dy, p.scale);
  }
};

// Which of them an operator of the table is, for a floating-point and a code type.
template <QuantizeKind kOp, class F, class Code>
constexpr auto operator_of() {
  if constexpr (kOp == QuantizeKind::quantize)
    return std::type_identity<Quantize<F, Code>>{};
  else if constexpr (kOp == QuantizeKind::dequantize)
    return std::type_identity<Dequantize<F, Code>>{};
  else if constexpr (kOp == QuantizeKind::fake_quantize)
    return std::type_identity<FakeQuantize<F>>{};
  else if constexpr (kOp == QuantizeKind::quantize_backward)
    return std::type_identity<MaskedBackward<F, true>>{};
  else if constexpr (kOp == QuantizeKind::dequantize_backward)
    return std::type_identity<DequantizeBackward<F>>{};
  else if constexpr (kOp == QuantizeKind::fake_quantize_backward)
    return std::type_identity<MaskedBackward<F, false>>{};
}

// A chunk whose elements share their parameters.
template <class Op, int N>
KVANT_DEVICE void apply(const semantics::Prepared<typename Op::L>& p, const Settings& s,
                        const number_t<typename Op::In> (&x)[N], const number_t<typename Op::F> (&dy)[N],
                        number_t<typename Op::Out> (&out)[N]) {
  if (s.reciprocal) {
    KVANT_UNROLL
    for (int i = 0; i < N; ++i) out[i] = Op::template one<Way::multiply>(p, s, x[i], dy[i]);
  } else if (Op::may_correct(p)) {
    KVANT_UNROLL
    for (int i = 0; i < N; ++i) out[i] = Op::template one<Way::corrected>(p, s, x[i], dy[i]);
  } else {
    KVANT_UNROLL
    for (int i = 0; i < N; ++i) out[i] = Op::template one<Way::divide>(p, s, x[i], dy[i]);
  }
}

// One element with parameters of its own.
template <class Op>
KVANT_DEVICE number_t<typename Op::Out> apply_one(const semantics::Prepared<typename Op::L>& p, const Settings& s,
                                                  number_t<typename Op::In> x, number_t<typename Op::F> dy) {
  return s.reciprocal ? Op::template one<Way::multiply>(p, s, x, dy) : Op::template one<Way::divide>(p, s, x, dy);
}

}  // namespace kvant::cuda
