// ErrorSums: what quantization did to a stretch of weights. For weights w and the values v of their codes it finds
// sums, counts and places of the errors w - v, in f64:
//
//   v = scale * (q - zero_point), or scale * number(q) for codes of a floating-point grid
//
//   loss              Σ w², Σ (w - v)², Σ w·v, Σ v², max|w - v|, codes at the ends, weights that are not finite
//   output_loss       Σ m·w², Σ m·(w - v)², Σ n·v² with m and n of each column: what outputs lose
//   error_magnitudes  |w - v| of each
//   add_cell_errors   Σ (w - v)² over cells of columns
//   count_on_grid     how weights lie between the codes
//   raise_to_magnitudes, values   max|w| of each column; Σ x² and counts of NaN, infinities and zeros
//
// Element i is added in lane i % 4, and the lanes are added as (0 + 1) + (2 + 3): the same bits on every instruction
// set. Weights are float or double. A call takes at most kMaxCount elements and checks nothing: it takes tens of
// nanoseconds. Zero points are codes (-128 to 127; of activations, within ±2^23, for add_cell_errors), scales are
// finite and positive, and the floating-point mode is the caller's: round to nearest, denormals kept.
//
//   const auto sums = kvant::ErrorSums::select(kvant::Stream::cpu());
//   const kvant::ErrorSums::Loss loss = sums->loss(weights, {.codes = codes, .count = 512, .scale = 0.01f});
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
struct ErrorSumsKernel;
}

class KVANT_API ErrorSums {
 public:
  static constexpr std::size_t kMaxCount = 4096;

  // A stretch of codes that share a scale, one to a byte.
  struct Codes {
    const std::int8_t* codes = nullptr;  // integers in two's complement, or the bits of a floating-point code
    std::size_t count = 0;
    float scale = 1;
    std::int32_t zero_point = 0;         // 0 with a floating-point grid
    ElementKind code = ElementKind::s8;  // s8, s4, s2, e4m3, e5m2, e2m1

    Codes from(std::size_t first, std::size_t length) const { return {codes + first, length, scale, zero_point, code}; }
  };

  struct Sums {
    double weights = 0;   // of w^2
    double errors = 0;    // of (w - v)^2
    double products = 0;  // of w v
    double values = 0;    // of v^2

    Sums& operator+=(const Sums& other);
  };

  struct Loss {
    Sums sums;
    double largest = 0;            // max|w - v|
    std::uint64_t at_ends = 0;     // codes of the largest magnitude: |q| >= q_max, or ±max of the grid
    std::uint64_t non_finite = 0;  // weights that are NaN or infinite: in nothing else
  };

  // With m = E[x²] and n = E[(x - xq)²] of the inputs of these columns: what they add to the squares of an output, and
  // to its errors, if channels are not correlated.
  struct OutputLoss {
    double outputs = 0;        // of m w^2
    double weight_errors = 0;  // of m (w - v)^2
    double input_errors = 0;   // of n v^2

    OutputLoss& operator+=(const OutputLoss& other);
  };

  struct Values {
    double squares = 0;  // of the finite values
    std::uint64_t nan = 0;
    std::uint64_t infinite = 0;
    std::uint64_t zeros = 0;
  };

  // Refuses streams of CUDA, and an instruction set that cannot be had.
  static Result<ErrorSums> select(const Stream& stream, const PlanPreference& preference = {});

  KernelSku sku() const;  // of the f32 kernel

  template <class T>
  Loss loss(const T* weights, const Codes& codes) const;

  // Weights that are not finite make it so.
  template <class T>
  OutputLoss output_loss(const T* weights, const Codes& codes, const float* m, const float* n) const;

  template <class T>
  void error_magnitudes(const T* weights, const Codes& codes, double* magnitudes) const;

  // The first place of an error of that magnitude, as loss() found it; `count` if there is none.
  template <class T>
  static std::size_t place_of_error(const T* weights, const Codes& codes, double largest);

  // What a code stands for.
  static double value(const Codes& codes, std::size_t i);

  // Adds to errors[0], errors[1], … the sums over cells of `cell` columns; finite weights, the first of which is in
  // column `offset` of its cell.
  template <class T>
  void add_cell_errors(const T* weights, const Codes& codes, std::size_t offset, std::size_t cell,
                       double* errors) const;

  // Finite weights: t = (float(w) / scale + zero_point - (first_code - 1/2)) * bins_per_code in f32, counted in
  // counts[1 + floor(t)]; what is below 0 in counts[0], what is `bins` or more in counts[bins + 1]. `counts` is
  // kGridTables such tables, one after the other, whose sum counts.
  static constexpr std::size_t kGridTables = 4;
  template <class T>
  void count_on_grid(const T* weights, std::size_t count, float scale, std::int32_t zero_point, int first_code,
                     float bins_per_code, std::size_t bins, std::uint64_t* counts) const;

  // largest[i] = max(largest[i], |float(w[i])|); a NaN changes nothing.
  template <class T>
  void raise_to_magnitudes(const T* weights, std::size_t count, float* largest) const;

  template <class T>
  Values values(const T* x, std::size_t count) const;

 private:
  ErrorSums(const detail::ErrorSumsKernel* f32, const detail::ErrorSumsKernel* f64) : f32_(f32), f64_(f64) {}
  template <class T>
  const detail::ErrorSumsKernel& kernel() const;

  const detail::ErrorSumsKernel* f32_;
  const detail::ErrorSumsKernel* f64_;
};

}  // namespace kvant
