// WeightRounding: better codes for weights than the nearest ones under the scale of their range. For weights w, how
// much each counts (m, E[x²] of the input that it is multiplied with, or 1), and the numbers d of their codes:
//
//   squared_error   Σ m (w - s d)²     of a scale s that is tried
//   fit             Σ m w d, Σ m d²    whose quotient is the best scale for these d
//   best_scale      the scale, in its stored form, and the zero point with the least squared error of those that it
//                   tries; docs/numerics.md lists them
//   settle          GPTQ: codes of a block of columns, each rounded after it was moved by the errors of those before it
//
// d is clamp(rne(w / s), q_min - zero_point, q_max - zero_point), or the nearest number of a floating-point grid, which
// saturates. While scales are compared, w is multiplied with 1 / s (at most the largest finite number): only ties
// differ, where both codes are as far away.
//
// All is f32, every operation rounded once. In a sum, element i is added in lane i % 16, and the lanes are added as a
// tree (network_steps.h). So the same bits come out on every instruction set. Functions take one thread, allocate
// nothing and check nothing: weights are finite, importance is finite and not negative, scales are finite and positive.
// The floating-point mode is the caller's: round to nearest, denormals kept.
//
//   const auto rounding = kvant::WeightRounding::select(kvant::Stream::cpu());
//   const auto best = rounding->best_scale(w, mean_squares, 128, {.code = kvant::ElementKind::s4});
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvant/element.h"
#include "kvant/export.h"
#include "kvant/plan.h"
#include "kvant/sku.h"
#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant {

namespace detail {
struct WeightRoundingKernel;
}

class KVANT_API WeightRounding {
 public:
  // Refuses streams of CUDA, and an instruction set that cannot be had.
  static Result<WeightRounding> select(const Stream& stream, const PlanPreference& preference = {});

  KernelSku sku() const;

  struct Scale {
    float scale = 1;              // as it is stored
    std::int32_t zero_point = 0;  // 0 for symmetric forms and floating-point grids
    std::uint8_t bits = 0;        // of a scale that is a code
  };
  // `importance` may be null: 1 for all.
  float squared_error(const float* weights, const float* importance, std::size_t count, ElementKind code,
                      const Scale& scale) const;

  struct Fit {
    float products = 0;  // Σ m w d
    float squares = 0;   // Σ m d²
  };
  Fit fit(const float* weights, const float* importance, std::size_t count, ElementKind code, const Scale& scale) const;

  // How weights are stored.
  struct Form {
    ElementKind code = ElementKind::s4;  // s8, s4, s2, e4m3, e5m2, e2m1
    ElementKind scale =
        ElementKind::f32;     // f32, f16, bf16; for floating-point grids also e8m0, and e4m3 under `global`
    bool asymmetric = false;  // integers only
    float global = 1;         // what scales of e4m3 are divided by
  };
  Scale best_scale(const float* weights, const float* importance, std::size_t count, const Form& form) const;
  // Of segments of `count` weights each, which lie one after the other, as their importance does. Faster than one by
  // one where segments are short: by a quarter for 32 weights or fewer.
  void best_scales(const float* weights, const float* importance, std::size_t count, std::size_t segments,
                   const Form& form, Scale* scales) const;

  // Columns of a weight, one after the other in memory, `rows` numbers of each and `stride` from one to the next.
  struct Block {
    float* targets = nullptr;        // weights, and what the errors of earlier blocks add to them; overwritten
    const float* weights = nullptr;  // as they were
    float* errors = nullptr;         // out: w - s d
    float* numbers = nullptr;        // out: d
    std::size_t columns = 0;
    std::size_t rows = 0;
    std::size_t stride = 0;
    // factors[k * factor_stride + i], i < k < columns: what the error of column i adds to the target of column k.
    const float* factors = nullptr;
    std::size_t factor_stride = 0;
    // Of each column: scales of its rows, and zero points, which are codes; null: all 0.
    const float* const* scales = nullptr;
    const float* const* zero_points = nullptr;
  };
  // For column i = 0, 1, …: d = nearest(target / s), error = w - s d, target[k] = fma(factor, error, target[k]).
  void settle(const Block& block, ElementKind code) const;

 private:
  explicit WeightRounding(const detail::WeightRoundingKernel* kernel) : kernel_(kernel) {}

  const detail::WeightRoundingKernel* kernel_;
};

}  // namespace kvant
