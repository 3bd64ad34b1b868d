// The element-wise operators: which formula of semantics/ serves which parameters. Compiled once for each instruction
// set.
//
// Each is one or more bodies, Body::block(job, parameters, stretch, stream) for one block, and with_body(), which calls
// f(Body{}) with the one that the numerics mode and the flags of the parameters allow. kFlagsAreKnown is false where
// parameters were not prepared, so that only the bodies that serve all of them are compiled.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/type_lists.h"
#include "cpu/blocks-inl.h"
#include "cpu/elementwise_kernel.h"
#include "cpu/lanes/block.h"
#include "cpu/parameters-inl.h"
#include "kvant/element.h"
#include "semantics/float_grid.h"
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
  static constexpr bool kHasNarrow = L::kHasNarrowCodes && sizeof(Out) == 1;

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
    if constexpr (kFlagsAreKnown && kHasNarrow) {
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
    if constexpr (kHasNarrow) {
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

// f(Quotient{}) for work on a floating-point grid, whose ends need no room for a step beyond them.
template <class L, bool kFlagsAreKnown, class Function>
KVANT_INLINE void with_grid_quotient(const ElementwiseWork& job, Flags flags, const Function& f) {
  if (job.numerics == Numerics::reciprocal) return f(MultiplyByInverse{});
  if constexpr (kFlagsAreKnown && L::kHasFma) {
    if (flags.corrected) return f(MultiplyAndCorrect{});
  }
  return f(DivideByScale{});
}

// Quantize to a floating-point grid.
template <class L, class In>
struct QuantizeToGrid : OperatorTypes<L, In, core::FloatCode> {
  using typename OperatorTypes<L, In, core::FloatCode>::Span, typename OperatorTypes<L, In, core::FloatCode>::F,
      typename OperatorTypes<L, In, core::FloatCode>::I;
  static constexpr Order kOrder = L::template kUniformOrder<In>;

  // kOrdinary: scales are such that x may be clamped in place of the quotient (Prepared::corrected), so that nothing
  // but magnitudes has to be rounded, and signs brought back.
  template <class Quotient, bool kOrdinary>
  struct Body {
    static constexpr Order kParameterOrder = kOrder;
    static constexpr bool kByMagnitudes = kOrdinary && L::kHasGridCodes;
    using Coder = typename L::template GridCoder<In>;

    struct OfWork : ElementwiseWork {
      Coder coder;
    };
    static KVANT_INLINE OfWork of_work(const ElementwiseWork& job) requires(kByMagnitudes) {
      return {job, Coder(job.grid)};
    }
    struct OfRun : RunParameters<L> {
      typename L::B limit;  // of magnitudes that need no clamp
    };
    static KVANT_INLINE OfRun of_run(const OfWork&, const RunParameters<L>& p) requires(kByMagnitudes) {
      return {p, Coder::limit(p.input_hi_)};
    }

    template <bool kClamps, class Parameters>
    static KVANT_INLINE void magnitudes(const OfWork& job, const Parameters& p, const Span& s, bool stream) {
      const auto sums = map(
          [&](F v, F scale, F inverse, F hi) KVANT_INLINE_LAMBDA {
            return job.coder.sum(Quotient::template of<L>(scale, inverse)(kClamps ? L::min(hi, v) : v));
          },
          job.coder.magnitudes(s.x), p.scale(), p.inverse(), p.input_hi());
      job.coder.store(&s.out->bits, sums, s.x, stream);
    }

    template <class Work, class Parameters>
    static KVANT_INLINE void block(const Work& job, const Parameters& p, const Span& s, bool stream) {
      if constexpr (kByMagnitudes) {
        if (job.grid.saturate) {
          // Where the quotient is a product, a clamp costs less than to see that there is nothing to clamp.
          if constexpr (Parameters::kUniform && !std::is_same_v<Quotient, MultiplyByInverse>) {
            if (job.bounded || job.coder.within(s.x, p.limit)) return magnitudes<false>(job, p, s, stream);
          }
          if (job.coder.none_is_nan(s.x)) return magnitudes<true>(job, p, s, stream);
        }
      }
      const auto q = map(
          [&](F v, F scale, F inverse, F lo, F hi) KVANT_INLINE_LAMBDA {
            const auto quotient = semantics::signed_quotient<L>(v, Quotient::template of<L>(scale, inverse), {lo, hi});
            return semantics::to_grid_code<L>(quotient.y, quotient.signed_like, job.grid);
          },
          L::template load<kOrder>(s.x), p.scale(), p.inverse(), p.input_lo(), p.input_hi());
      L::template store_bytes<kOrder>(&s.out->bits, q, stream);
    }
  };

  // For long runs of numbers whose codes are found by steps: those that are not beyond the range, nor so small that
  // their codes are subnormal. Other blocks take a call, so that registers are left for what is done beside this.
  template <class Quotient>
  struct BySteps {
    using Rounded = Body<Quotient, true>;
    using Coder = typename Rounded::Coder;
    using OfWork = typename Rounded::OfWork;
    static constexpr Order kParameterOrder = kOrder;
    static constexpr std::int64_t kLeastRun = 1024;  // to find the steps takes as long as ten blocks

    static KVANT_INLINE OfWork of_work(const ElementwiseWork& job) { return Rounded::of_work(job); }
    struct OfRun {
      typename Rounded::OfRun rounded;
      typename Coder::Steps steps;
    };
    static KVANT_INLINE OfRun of_run(const OfWork& job, const RunParameters<L>& p) {
      return {Rounded::of_run(job, p),
              Coder::steps(Quotient::template of<L>(p.scale_, p.inverse_), p.scale_, p.input_hi_, job.grid)};
    }
    static KVANT_INLINE void block(const OfWork& job, const OfRun& p, const Span& s, bool stream) {
      if (!job.coder.template store_by_steps<false>(&s.out->bits, s.x, p.steps, stream)) other(job, p, s, stream);
    }
    // Columns are no long runs, but whoever has a body for runs compiles one for them too.
    static KVANT_INLINE void block(const OfWork& job, const ColumnParameters<L>& p, const Span& s, bool stream) {
      Rounded::block(job, p, s, stream);
    }
    // Zeros are no numbers of steps, but padding and cut activations are full of them.
    static KVANT_NOINLINE void other(const OfWork& job, const OfRun& p, const Span& s, bool stream) {
      if (!job.coder.template store_by_steps<true>(&s.out->bits, s.x, p.steps, stream))
        Rounded::block(job, p.rounded, s, stream);
    }
  };

  // Bodies that serve all parameters.
  template <class Function>
  static KVANT_INLINE void with_any_body(const ElementwiseWork& job, const Function& f) {
    job.numerics == Numerics::reciprocal ? f(Body<MultiplyByInverse, false>{}) : f(Body<DivideByScale, false>{});
  }

  template <bool kFlagsAreKnown, class Function>
  static KVANT_INLINE void with_body(const ElementwiseWork& job, Flags flags, const Function& f) {
    if constexpr (kFlagsAreKnown && L::kHasGridCodes) {
      if (with_ordinary_body<false>(job, flags, f)) return;
    }
    with_any_body(job, f);
  }

  // As that of integer codes.
  template <bool, class Function>
  static KVANT_INLINE bool with_ordinary_body(const ElementwiseWork& job, Flags flags, const Function& f) {
    if constexpr (L::kHasGridCodes) {
      if (!flags.corrected) return false;
      // A power of two has an exact inverse, and the product with it is the quotient.
      const bool product = job.numerics == Numerics::reciprocal || job.scale.kind == ElementKind::e8m0;
      // Few blocks have all of their numbers among those of four bits.
      if constexpr (L::template GridCoder<In>::kHasSteps) {
        const bool long_runs = job.runs.run >= BySteps<MultiplyAndCorrect>::kLeastRun;
        if (long_runs && job.grid.bits == 8 && job.grid.saturate && !product)
          return f(BySteps<MultiplyAndCorrect>{}), true;
      }
      product ? f(Body<MultiplyByInverse, true>{}) : f(Body<MultiplyAndCorrect, true>{});
    } else {
      with_any_body(job, f);
    }
    return true;
  }
};

// Dequantize from a floating-point grid.
template <class L, class Out>
struct DequantizeFromGrid : OperatorTypes<L, core::FloatCode, Out> {
  using typename OperatorTypes<L, core::FloatCode, Out>::Span, typename OperatorTypes<L, core::FloatCode, Out>::F,
      typename OperatorTypes<L, core::FloatCode, Out>::I;

  // kByHalves: where an instruction set has f16 and the scale is not so large that a power of two more could overflow,
  // codes become f16 by shifts, times a power of two that goes into the scale. Both are exact.
  // To bf16 with one scale there is even less to do: the products of 32 codes, in a table, and an exponent to add. With
  // such a scale nothing overflows or becomes subnormal, and rounding does not depend on the exponent.
  template <bool kByHalves>
  struct Body {
    static constexpr Order kParameterOrder = Order::natural;
    static constexpr bool kByTable = kByHalves && std::is_same_v<Out, BFloat16>;

    struct OfRun : RunParameters<L> {
      typename L::GridProducts products;
    };
    static KVANT_INLINE OfRun of_run(const ElementwiseWork& job, const RunParameters<L>& p) requires(kByTable) {
      const auto product = [&](I code) KVANT_INLINE_LAMBDA {
        return L::mul(p.scale_, semantics::from_grid_code<L>(code, job.grid));
      };
      return {p, L::grid_products(product, job.grid)};
    }

    template <class Parameters>
    static KVANT_INLINE void block(const ElementwiseWork& job, const Parameters& p, const Span& s, bool stream) {
      if constexpr (kByHalves) {
        constexpr bool kHasTable = std::is_same_v<Parameters, OfRun>;
        if ((kHasTable && !job.grid.has_infinity()) || L::bytes_are_finite(&s.x->bits, job.grid)) {
          if constexpr (kHasTable) return L::store_grid_products(s.out, &s.x->bits, p.products, job.grid, stream);
          const F power = L::set(job.grid.half_factor);
          const auto x = map([&](F half, F scale) KVANT_INLINE_LAMBDA { return L::mul(L::mul(scale, power), half); },
                             L::load_as_halves(&s.x->bits, job.grid), p.scale());
          return L::template store<Order::natural>(s.out, x, stream);
        }
      }
      const auto x = map([&](I q, F scale)
                             KVANT_INLINE_LAMBDA { return L::mul(scale, semantics::from_grid_code<L>(q, job.grid)); },
                         L::load_int(&s.x->bits), p.scale());
      L::template store<Order::natural>(s.out, x, stream);
    }
  };

  template <bool kFlagsAreKnown, class Function>
  static KVANT_INLINE void with_body(const ElementwiseWork&, Flags flags, const Function& f) {
    if constexpr (kFlagsAreKnown && L::kHasHalves) {
      if (flags.corrected) return f(Body<true>{});
    }
    f(Body<false>{});
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

  template <class Quotient>
  struct GridBody {
    static constexpr Order kParameterOrder = kOrder;
    template <class Parameters>
    static KVANT_INLINE void block(const ElementwiseWork& job, const Parameters& p, const Span& s, bool stream) {
      const auto y = map(
          [&](F x, F scale, F inverse, F lo, F hi) KVANT_INLINE_LAMBDA {
            const auto quotient = semantics::signed_quotient<L>(x, Quotient::template of<L>(scale, inverse), {lo, hi});
            return L::mul(scale, semantics::to_grid_number<L>(quotient.y, quotient.signed_like, job.grid));
          },
          L::template load<kOrder>(s.x), p.scale(), p.inverse(), p.input_lo(), p.input_hi());
      L::template store<kOrder>(s.out, y, stream);
    }
  };

  template <bool kFlagsAreKnown, class Function>
  static KVANT_INLINE void with_body(const ElementwiseWork& job, Flags flags, const Function& f) {
    if (job.grid.bits != 0)
      return with_grid_quotient<L, kFlagsAreKnown>(
          job, flags, [&]<class Quotient>(Quotient) KVANT_INLINE_LAMBDA { f(GridBody<Quotient>{}); });
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

  // kGrid: a floating-point grid, whose codes are in range where the quotient is.
  template <class QuotientOfX, class QuotientOfDy, bool kGrid>
  struct Body {
    static constexpr Order kParameterOrder = kOrder;
    template <class Parameters>
    static KVANT_INLINE void block(const ElementwiseWork&, const Parameters& p, const Span& s, bool stream) {
      const auto dx = map(
          [](F x, F dy, F scale, F inverse, F lo, F hi) KVANT_INLINE_LAMBDA {
            const auto of_x = QuotientOfX::template of<L>(scale, inverse);
            const typename L::M inside = semantics::in_range<L, !kGrid>(x, of_x, {lo, hi});
            if constexpr (kScaled)
              return semantics::quantize_backward<L>(inside, dy, QuotientOfDy::template of<L>(scale, inverse));
            else
              return semantics::fake_quantize_backward<L>(inside, dy);
          },
          L::template load<kOrder>(s.x), L::template load<kOrder>(s.dy), p.scale(), p.inverse(), p.lo(), p.hi());
      L::template store<kOrder>(s.out, dx, stream);
    }
  };

  template <bool kFlagsAreKnown, class Function>
  static KVANT_INLINE void with_body(const ElementwiseWork& job, Flags flags, const Function& f) {
    return job.grid.bits != 0 ? with_body_of<true, kFlagsAreKnown>(job, flags, f)
                              : with_body_of<false, kFlagsAreKnown>(job, flags, f);
  }
  template <bool kGrid, bool kFlagsAreKnown, class Function>
  static KVANT_INLINE void with_body_of(const ElementwiseWork& job, Flags flags, const Function& f) {
    if (job.numerics == Numerics::reciprocal) return f(Body<MultiplyByInverse, MultiplyByInverse, kGrid>{});
    if constexpr (kFlagsAreKnown && L::kHasFma) {
      if (flags.corrected) return f(Body<MultiplyAndCorrect, DivideByScale, kGrid>{});
    }
    return f(Body<DivideByScale, DivideByScale, kGrid>{});
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

// Which of them an operator of the table is, for a floating-point type and what its codes are computed in.
template <QuantizeKind kOp, class L, class F, class Code>
consteval auto body_of() {
  constexpr bool kGrid = std::is_same_v<Code, core::FloatCode>;
  if constexpr (kOp == QuantizeKind::quantize && kGrid)
    return std::type_identity<QuantizeToGrid<L, F>>{};
  else if constexpr (kOp == QuantizeKind::dequantize && kGrid)
    return std::type_identity<DequantizeFromGrid<L, F>>{};
  else if constexpr (kOp == QuantizeKind::quantize)
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
