// The sums and counts behind compare and inspect, over a stretch of one row that is in memory. Sums are f64; element i
// is added in lane i % 4 and the lanes are added at the end in a fixed order, so that every instruction set gives the
// same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvant/element.h"

namespace kvant::measure {

// Columns of a row that are summed together.
inline constexpr std::uint64_t kBlock = 4096;

// For tests: what the compiler's baseline has, or what this machine has.
enum class LaneWidth : std::uint8_t { baseline, machine };

// f32, f16 or bf16 to f32, exactly.
void widen(ElementKind kind, const std::byte* from, std::size_t count, float* to);

struct LossSums {
  double weights = 0;   // sum of w^2
  double errors = 0;    // sum of (w - v)^2
  double products = 0;  // sum of w v
  double values = 0;    // sum of v^2

  LossSums& operator+=(const LossSums& other);
};

struct Loss {
  LossSums sums;
  double largest = 0;  // max|w - v|
  std::uint64_t at_ends = 0;
  std::uint64_t non_finite = 0;  // weights that are NaN or infinite: in nothing else
};

// Weights w beside v = scale * (code - zero_point), at most kBlock of them. Codes at the ends are those with
// |code| >= q_max. The zero point is one that a code can be (-128 to 127). T is float or double.
template <class T>
Loss segment_loss(const T* weights, const std::int8_t* codes, std::size_t count, float scale, std::int32_t zero_point,
                  int q_max, LaneWidth lanes = LaneWidth::machine);

// |w - v| of each, at most kBlock.
template <class T>
void error_magnitudes(const T* weights, const std::int8_t* codes, std::size_t count, float scale,
                      std::int32_t zero_point, double* magnitudes, LaneWidth lanes = LaneWidth::machine);

// The first place of an error of that magnitude, as segment_loss() found it; `count` if there is none.
template <class T>
std::size_t place_of_error(const T* weights, const std::int8_t* codes, std::size_t count, float scale,
                           std::int32_t zero_point, double largest);

// Adds the sums of (w - v)^2 over cells of `cell` columns to errors[0], errors[1], …; finite weights, at most kBlock,
// the first of which is in column `offset` of its cell.
template <class T>
void add_cell_errors(const T* weights, const std::int8_t* codes, std::size_t count, float scale,
                     std::int32_t zero_point, std::size_t offset, std::size_t cell, double* errors,
                     LaneWidth lanes = LaneWidth::machine);

// How finite weights, at most kBlock, lie on the grid: t = (float(w) / scale + zero_point - (first_code - 1/2)) *
// bins_per_code in f32, counted in counts[1 + floor(t)]; what is below 0 in counts[0], what is `bins` or more in
// counts[bins + 1]. `counts` is kGridTables such tables, one behind the other, whose sum counts.
inline constexpr std::size_t kGridTables = 4;
template <class T>
void count_on_grid(const T* weights, std::size_t count, float scale, std::int32_t zero_point, int first_code,
                   int bins_per_code, std::size_t bins, std::uint64_t* counts, LaneWidth lanes = LaneWidth::machine);

// largest[i] = max(largest[i], |float(w[i])|); a NaN changes nothing.
template <class T>
void raise_to_magnitudes(const T* weights, std::size_t count, float* largest, LaneWidth lanes = LaneWidth::machine);

struct ValueSums {
  double squares = 0;  // of the finite values
  std::uint64_t nan = 0;
  std::uint64_t infinite = 0;
  std::uint64_t zeros = 0;
};

template <class T>
ValueSums value_sums(const T* values, std::size_t count, LaneWidth lanes = LaneWidth::machine);

}  // namespace kvant::measure
