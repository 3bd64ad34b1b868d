// The element-wise operators: which formula of semantics/ serves which parameters. Compiled once for each instruction
// set.
//
// Each is one or more bodies, Body::block(job, parameters, stretch, stream) for one block, and with_body(), which calls
// f(Body{}) with the one that the numerics mode and the flags of the parameters allow. kFlagsAreKnown is false where
// parameters were not prepared, so that only the bodies that serve all of them are compiled.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cpu/blocks-inl.h"
#include "cpu/elementwise_kernel.h"
#include "cpu/lanes/block.h"
#include "cpu/parameters-inl.h"
#include "kvant/element.h"
#include "semantics/quantize.h"

namespace kvant::cpu {

// What an operator reads and writes.
template <class L, class InType, class OutType>
struct OperatorTypes {
  using In = InType;
  using Out = OutType;
  using Span = Stretch<In, Out>;
  using F = typename L::F;
  using I = typename L::I;
};

template <class L, class In, class Out>
struct Quantize : OperatorTypes<L, In, Out> {
  using typename OperatorTypes<L, In, Out>::Span, typename OperatorTypes<L, In, Out>::F,
      typename OperatorTypes<L, In, Out>::I;
  static constexpr Order kOrder = L::template kUniformOrder<In>;

  // For parameters with clamps_input. kBounded: x is known to be finite and inside the input bounds.
  template <class Quotient, bool kBounded>
  struct Narrow {
    static constexpr Order kParameterOrder = kOrder;
    template <class Parameters>
    static KVANT_INLINE void block(const ElementwiseWork&, const Parameters& p, const Span& s, bool stream) {
      const auto x = L::template load<kOrder>(s.x);
      if constexpr (kBounded) {
        const auto q = map([](F v, F scale, F inverse)
                               KVANT_INLINE_LAMBDA { return L::to_int(Quotient::template of<L>(scale, inverse)(v)); },
                           x, p.scale(), p.inverse());
        L::template store_narrow<kOrder, false>(s.out, q, p.zero_point(), stream);
      } else {
        const auto q = map(
            [](F v, F scale, F inverse, F lo, F hi) KVANT_INLINE_LAMBDA {
              return semantics::rounded_quotient_of_clamped_input<L>(v, Quotient::template of<L>(scale, inverse),
                                                                     {lo, hi});
            },
            x, p.scale(), p.inverse(), p.input_lo(), p.input_hi());
        L::template store_narrow<kOrder, true>(s.out, q, p.zero_point(), stream);
      }
    }
  };

  template <class Quotient>
  struct General {
    static constexpr Order kParameterOrder = Order::natural;
    template <class Parameters>
    static KVANT_INLINE void block(const ElementwiseWork& job, const Parameters& p, const Span& s, bool stream) {
      const I q_min = L::set_int(job.q_min), q_max = L::set_int(job.q_max);
      const auto q = map(
          [&](F x, F scale, F inverse, I zp) KVANT_INLINE_LAMBDA {
            return semantics::quantize<L>(x, Quotient::template of<L>(scale, inverse), zp, q_min, q_max);
          },
          L::template load<Order::natural>(s.x), p.scale(), p.inverse(), p.zero_point());
      L::store_codes(s.out, q, stream);
    }
  };

  template <bool kFlagsAreKnown, class Function>
  static KVANT_INLINE void with_body(const ElementwiseWork& job, Flags flags, const Function& f) {
    const bool reciprocal = job.numerics == Numerics::reciprocal;
    if constexpr (kFlagsAreKnown && L::kHasNarrowCodes) {
      // NaN becomes the zero point, and saturation clamps that where the range of codes is the type's.
      const bool saturates = job.q_min == code_range(kind_of<Out>).min && job.q_max == code_range(kind_of<Out>).max;
      if (flags.clamps_input && job.bounded)
        return reciprocal ? f(Narrow<MultiplyByInverse, true>{}) : f(Narrow<MultiplyAndCorrect, true>{});
      if (flags.clamps_input && (flags.contains_zero || saturates))
        return reciprocal ? f(Narrow<MultiplyByInverse, false>{}) : f(Narrow<MultiplyAndCorrect, false>{});
    }
    return reciprocal ? f(General<MultiplyByInverse>{}) : f(General<DivideByScale>{});
  }

  // The bodies that dynamic range needs for ordinary parameters: of bounded work and, kUnbounded, of other work whose
  // codes saturation or the zero point keeps in their range. False: there is none for this.
  template <bool kUnbounded, class Function>
  static KVANT_INLINE bool with_ordinary_body(const ElementwiseWork& job, Flags flags, const Function& f) {
    const bool reciprocal = job.numerics == Numerics::reciprocal;
    if constexpr (L::kHasNarrowCodes) {
      if (flags.clamps_input && job.bounded) {
        reciprocal ? f(Narrow<MultiplyByInverse, true>{}) : f(Narrow<MultiplyAndCorrect, true>{});
        return true;
      }
      if constexpr (kUnbounded) {
        if (flags.clamps_input && flags.contains_zero && !reciprocal) {
          f(Narrow<MultiplyAndCorrect, false>{});
          return true;
        }
      }
      return false;
    } else {
      reciprocal ? f(General<MultiplyByInverse>{}) : f(General<DivideByScale>{});
    }
    return true;
  }
};

template <class L, class In, class Out>
struct Dequantize : OperatorTypes<L, In, Out> {
  using typename OperatorTypes<L, In, Out>::Span, typename OperatorTypes<L, In, Out>::F,
      typename OperatorTypes<L, In, Out>::I;

  struct Body {
    static constexpr Order kParameterOrder = Order::natural;
    template <class Parameters>
    static KVANT_INLINE void block(const ElementwiseWork&, const Parameters& p, const Span& s, bool stream) {
      const auto x = map([](I q, F scale, I zp) KVANT_INLINE_LAMBDA { return semantics::dequantize<L>(q, scale, zp); },
                         L::load_int(s.x), p.scale(), p.zero_point());
      L::template store<Order::natural>(s.out, x, stream);
    }
  };

  template <bool kFlagsAreKnown, class Function>
  static KVANT_INLINE void with_body(const ElementwiseWork&, Flags, const Function& f) {
    f(Body{});
  }
};

template <class L, class T>
struct FakeQuantize : OperatorTypes<L, T, T> {
  using typename OperatorTypes<L, T, T>::Span, typename OperatorTypes<L, T, T>::F;
  static constexpr Order kOrder = L::template kUniformOrder<T>;

  struct QuadBounds {
    typename L::Quad lo, hi;
  };

  template <class Quotient, bool kClampsInput>
  struct Body {
    static constexpr Order kParameterOrder = kOrder;
    template <class Parameters>
    static KVANT_INLINE QuadBounds quotient_or_input_bounds(const Parameters& p) {
      if constexpr (kClampsInput)
        return {p.input_lo(), p.input_hi()};
      else
        return {p.lo(), p.hi()};
    }
    template <class Parameters>
    static KVANT_INLINE void block(const ElementwiseWork&, const Parameters& p, const Span& s, bool stream) {
      const auto bounds = quotient_or_input_bounds(p);
      const auto y = map(
          [](F x, F scale, F inverse, F lo, F hi) KVANT_INLINE_LAMBDA {
            const auto quotient = Quotient::template of<L>(scale, inverse);
            if constexpr (kClampsInput)
              return semantics::fake_quantize_clamped_input<L>(x, scale, quotient, {lo, hi});
            else
              return semantics::fake_quantize<L>(x, scale, quotient, {lo, hi});
          },
          L::template load<kOrder>(s.x), p.scale(), p.inverse(), bounds.lo, bounds.hi);
      L::template store<kOrder>(s.out, y, stream);
    }
  };

  template <bool kFlagsAreKnown, class Function>
  static KVANT_INLINE void with_body(const ElementwiseWork& job, Flags flags, const Function& f) {
    if (job.numerics == Numerics::reciprocal) return f(Body<MultiplyByInverse, false>{});
    if constexpr (kFlagsAreKnown && L::kHasFma) {
      if (flags.clamps_input) return f(Body<MultiplyAndCorrect, true>{});
    }
    return f(Body<DivideByScale, false>{});
  }
};

// The two backward passes with a mask; kScaled divides the gradient by the scale.
template <class L, class T, bool kScaled>
struct MaskedBackward : OperatorTypes<L, T, T> {
  using typename OperatorTypes<L, T, T>::Span, typename OperatorTypes<L, T, T>::F;
  static constexpr Order kOrder = L::template kUniformOrder<T>;

  template <class QuotientOfX, class QuotientOfDy>
  struct Body {
    static constexpr Order kParameterOrder = kOrder;
    template <class Parameters>
    static KVANT_INLINE void block(const ElementwiseWork&, const Parameters& p, const Span& s, bool stream) {
      const auto dx = map(
          [](F x, F dy, F scale, F inverse, F lo, F hi) KVANT_INLINE_LAMBDA {
            const auto of_x = QuotientOfX::template of<L>(scale, inverse);
            if constexpr (kScaled)
              return semantics::quantize_backward<L>(x, dy, of_x, QuotientOfDy::template of<L>(scale, inverse),
                                                     {lo, hi});
            else
              return semantics::fake_quantize_backward<L>(x, dy, of_x, {lo, hi});
          },
          L::template load<kOrder>(s.x), L::template load<kOrder>(s.dy), p.scale(), p.inverse(), p.lo(), p.hi());
      L::template store<kOrder>(s.out, dx, stream);
    }
  };

  template <bool kFlagsAreKnown, class Function>
  static KVANT_INLINE void with_body(const ElementwiseWork& job, Flags flags, const Function& f) {
    if (job.numerics == Numerics::reciprocal) return f(Body<MultiplyByInverse, MultiplyByInverse>{});
    if constexpr (kFlagsAreKnown && L::kHasFma) {
      if (flags.corrected) return f(Body<MultiplyAndCorrect, DivideByScale>{});
    }
    return f(Body<DivideByScale, DivideByScale>{});
  }
};

template <class L, class T>
struct DequantizeBackward : OperatorTypes<L, T, T> {
  using typename OperatorTypes<L, T, T>::Span, typename OperatorTypes<L, T, T>::F;

  struct Body {
    static constexpr Order kParameterOrder = L::template kUniformOrder<T>;
    template <class Parameters>
    static KVANT_INLINE void block(const ElementwiseWork&, const Parameters& p, const Span& s, bool stream) {
      const auto dq =
          map([](F dy, F scale) KVANT_INLINE_LAMBDA { return semantics::dequantize_backward<L>(dy, scale); },
              L::template load<kParameterOrder>(s.x), p.scale());
      L::template store<kParameterOrder>(s.out, dq, stream);
    }
  };

  template <bool kFlagsAreKnown, class Function>
  static KVANT_INLINE void with_body(const ElementwiseWork&, Flags, const Function& f) {
    f(Body{});
  }
};

// Which of them an operator of the table is, for a floating-point type and the integer type of its codes.
template <QuantizeKind kOp, class L, class F, class Code>
consteval auto body_of() {
  if constexpr (kOp == QuantizeKind::quantize)
    return std::type_identity<Quantize<L, F, Code>>{};
  else if constexpr (kOp == QuantizeKind::dequantize)
    return std::type_identity<Dequantize<L, Code, F>>{};
  else if constexpr (kOp == QuantizeKind::fake_quantize)
    return std::type_identity<FakeQuantize<L, F>>{};
  else if constexpr (kOp == QuantizeKind::quantize_backward)
    return std::type_identity<MaskedBackward<L, F, true>>{};
  else if constexpr (kOp == QuantizeKind::dequantize_backward)
    return std::type_identity<DequantizeBackward<L, F>>{};
  else if constexpr (kOp == QuantizeKind::fake_quantize_backward)
    return std::type_identity<MaskedBackward<L, F, false>>{};
}

}  // namespace kvant::cpu
