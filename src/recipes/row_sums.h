// The sums behind compare and inspect, over a stretch of one row that is in memory. Everything is f64; element i is
// added in lane i % 4 and the lanes are added at the end in a fixed order, so that every instruction set gives the same
// bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvant/element.h"

namespace kvant::recipes {

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

// The first place of an error of that magnitude, as segment_loss() found it; `count` if there is none.
template <class T>
std::size_t place_of_error(const T* weights, const std::int8_t* codes, std::size_t count, float scale,
                           std::int32_t zero_point, double largest);

struct ValueSums {
  double squares = 0;  // of the finite values
  std::uint64_t nan = 0;
  std::uint64_t infinite = 0;
  std::uint64_t zeros = 0;
};

template <class T>
ValueSums value_sums(const T* values, std::size_t count, LaneWidth lanes = LaneWidth::machine);

}  // namespace kvant::recipes
