// Scales tried on weights, and codes that make up for the errors of those before them; compiled once for each
// instruction set.
#pragma once

#include <array>
#include <cstddef>

#include "base/inline.h"
#include "core/guarantee.h"
#include "core/weight_rounding_kernel.h"
#include "cpu/scale_search-inl.h"
#include "cpu/sixteen-inl.h"
#include "kvant/element.h"
#include "semantics/weight_rounding.h"

namespace kvant::cpu {

template <class Isa>
struct WeightRoundingOf {
  using L = typename Isa::template Lanes<float>;
  using F = typename L::F;
  using Integers = semantics::IntegerNumbers<L>;
  using Magnitudes = semantics::MagnitudeNumbers<L>;

  // f(the search for codes of the kind, and importance or none), as a type.
  template <class T>
  struct Kind {
    using Search = T;
  };
  template <bool kWeighed, class Function>
  static KVANT_INLINE auto with_search(const detail::CodeNumbers& n, const Function& f) {
    if (n.grid == nullptr) return f(Kind<ScaleSearch<Isa, Integers, kWeighed>>());
    return f(Kind<ScaleSearch<Isa, Magnitudes, kWeighed>>());
  }
  template <class Function>
  static KVANT_INLINE auto with_search(const detail::WeighedWeights& s, const detail::CodeNumbers& n,
                                       const Function& f) {
    return s.importance == nullptr ? with_search<false>(n, f) : with_search<true>(n, f);
  }

  static float squared_error(const detail::WeighedWeights& s, const detail::CodeNumbers& n, float scale,
                             float zero_point) {
    return with_search(s, n, [&](auto kind) KVANT_INLINE_LAMBDA {
      return decltype(kind)::Search::squared_error(s, n, scale, zero_point);
    });
  }
  static WeightRounding::Fit fit(const detail::WeighedWeights& s, const detail::CodeNumbers& n, float scale,
                                 float zero_point) {
    return with_search(
        s, n, [&](auto kind) KVANT_INLINE_LAMBDA { return decltype(kind)::Search::fit(s, n, scale, zero_point); });
  }
  static void best_scales(const detail::WeighedWeights& first, std::size_t segments, const detail::CodeNumbers& n,
                          const WeightRounding::Form& form, WeightRounding::Scale* scales) {
    with_search(first, n,
                [&](auto kind) KVANT_INLINE_LAMBDA { decltype(kind)::Search::best(first, segments, n, form, scales); });
  }

  // Column by column; what is left of the block gets the error of each before the next is rounded.
  static void settle(const WeightRounding::Block& b, const detail::CodeNumbers& n) {
    for (std::size_t i = 0; i < b.columns; ++i) {
      float* const target = b.targets + i * b.stride;
      const float* const weight = b.weights + i * b.stride;
      float* const error = b.errors + i * b.stride;
      float* const number = b.numbers + i * b.stride;
      const float* const scales = b.scales[i];
      const float* const zero_points = b.zero_points == nullptr ? nullptr : b.zero_points[i];
      for_each_vector<L>(b.rows, [&](const auto& at) KVANT_INLINE_LAMBDA {
        const F scale = at.get(scales), t = at.get(target);
        F d;
        if (n.grid != nullptr) {
          d = semantics::number_settled<L>(t, scale, semantics::FloatNumbers<L>{*n.grid});
        } else {
          const F zero = zero_points == nullptr ? L::set(0) : at.get(zero_points);
          const Integers numbers{L::sub(L::set(n.lo), zero), L::sub(L::set(n.hi), zero)};
          d = semantics::number_settled<L>(t, scale, numbers);
        }
        at.put(number, d);
        at.put(error, semantics::rounding_error<L>(at.get(weight), scale, d));
      });
      for (std::size_t k = i + 1; k < b.columns; ++k) {
        float* const next = b.targets + k * b.stride;
        const F factor = L::set(b.factors[k * b.factor_stride + i]);
        for_each_vector<L>(b.rows, [&](const auto& at) KVANT_INLINE_LAMBDA {
          at.put(next, L::fma(factor, at.get(error), at.get(next)));
        });
      }
    }
  }
};

template <class Isa>
constexpr auto make_weight_rounding_kernels() {
  using Functions = WeightRoundingOf<Isa>;
  return std::array{detail::WeightRoundingKernel{
      detail::bit_stable_sku<float>(Isa::kArch, QuantizeKind::weight_rounding, ElementKind::f32, ElementKind::f32),
      &Functions::squared_error, &Functions::fit, &Functions::best_scales, &Functions::settle}};
}

}  // namespace kvant::cpu
