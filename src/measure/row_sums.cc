#include "measure/row_sums.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/inline.h"

namespace kvant::measure {
namespace {

// Four lanes in as many registers as the instruction set needs: GCC takes vectors apart, element by element, that are
// wider than the machine's.
constexpr std::size_t kLanes = 4;

template <std::size_t kWidth>
struct Register;
template <>
struct Register<2> {
  using Doubles = double __attribute__((vector_size(16)));
  using Longs = std::int64_t __attribute__((vector_size(16)));
  using Floats = float __attribute__((vector_size(8)));
  using Bytes = std::int8_t __attribute__((vector_size(16)));
};
template <>
struct Register<4> {
  using Doubles = double __attribute__((vector_size(32)));
  using Longs = std::int64_t __attribute__((vector_size(32)));
  using Floats = float __attribute__((vector_size(16)));
  using Bytes = std::int8_t __attribute__((vector_size(32)));
};

template <std::size_t kWidth>
KVANT_INLINE void load(const float* from, typename Register<kWidth>::Doubles& to) {
  typename Register<kWidth>::Floats narrow;
  std::memcpy(&narrow, from, sizeof narrow);
  to = __builtin_convertvector(narrow, typename Register<kWidth>::Doubles);
}
template <std::size_t kWidth>
KVANT_INLINE void load(const double* from, typename Register<kWidth>::Doubles& to) {
  std::memcpy(&to, from, sizeof to);
}

// One register's part of the sums.
template <std::size_t kWidth>
struct Accumulators {
  typename Register<kWidth>::Doubles weights = {}, errors = {}, products = {}, values = {}, largest = {};
};

// v = scale * d. Sums of v are formed of d, which is a small integer: those sums are exact.
template <std::size_t kWidth, class T>
KVANT_INLINE void add(const T* weights, const float* differences, double scale, Accumulators<kWidth>& to) {
  using Doubles = typename Register<kWidth>::Doubles;
  using Longs = typename Register<kWidth>::Longs;
  Doubles w, d;
  load<kWidth>(weights, w);
  load<kWidth>(differences, d);
  const Doubles e = w - scale * d;
  const Doubles magnitude = reinterpret_cast<Doubles>(reinterpret_cast<Longs>(e) & 0x7FFFFFFFFFFFFFFF);
  to.weights += w * w;
  to.errors += e * e;
  to.products += w * d;
  to.values += d * d;
  to.largest = magnitude > to.largest ? magnitude : to.largest;
}

// Adds the lanes of a sum up, always in the same order.
template <std::size_t kWidth>
KVANT_INLINE double total(const typename Register<kWidth>::Doubles* registers) {
  double lanes[kLanes];
  std::memcpy(lanes, registers, sizeof lanes);
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

// Codes with |q| >= q_max, of at most kBlock.
template <std::size_t kWidth>
KVANT_INLINE std::uint64_t codes_at_ends(const std::int8_t* codes, std::size_t count, int q_max) {
  using Bytes = typename Register<kWidth>::Bytes;
  constexpr std::size_t kBytes = sizeof(Bytes);
  const Bytes most = Bytes{} + static_cast<std::int8_t>(q_max), least = -most;
  std::uint64_t ends = 0;
  std::size_t i = 0;
  while (i + kBytes <= count) {
    Bytes found = {};
    // A lane holds 127 before it wraps.
    const std::size_t stop = std::min(count, i + 127 * kBytes);
    for (; i + kBytes <= stop; i += kBytes) {
      Bytes q;
      std::memcpy(&q, codes + i, sizeof q);
      found -= (q >= most) | (q <= least);
    }
    for (std::size_t lane = 0; lane < kBytes; ++lane) ends += static_cast<std::uint64_t>(found[lane]);
  }
  for (; i < count; ++i) ends += codes[i] <= -q_max || codes[i] >= q_max ? 1u : 0u;
  return ends;
}

template <std::size_t kWidth, class T>
KVANT_INLINE void loss_body(const T* weights, const std::int8_t* codes, std::size_t count, float scale,
                            std::int32_t zero_point, int q_max, Loss& loss) {
  constexpr std::size_t kRegisters = kLanes / kWidth;
  float differences[kBlock];
  for (std::size_t i = 0; i < count; ++i) differences[i] = static_cast<float>(codes[i] - zero_point);
  const double s = scale;
  Accumulators<kWidth> low, high;  // the other half of the lanes, where a register holds only two
  const auto add_four = [&](const T* w, const float* d) KVANT_INLINE_LAMBDA {
    add(w, d, s, low);
    if constexpr (kRegisters == 2) add(w + kWidth, d + kWidth, s, high);
  };
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) add_four(weights + i, differences + i);
  if (i < count) {
    T last[kLanes] = {};
    float last_differences[kLanes] = {};
    for (std::size_t j = 0; i + j < count; ++j) {
      last[j] = weights[i + j];
      last_differences[j] = differences[i + j];
    }
    add_four(last, last_differences);
  }
  const auto sum = [](const auto& a, const auto& b) KVANT_INLINE_LAMBDA {
    const typename Register<kWidth>::Doubles both[2] = {a, b};
    return total<kWidth>(both);
  };
  loss.sums = {sum(low.weights, high.weights), sum(low.errors, high.errors), s * sum(low.products, high.products),
               s * s * sum(low.values, high.values)};
  loss.largest = 0;
  for (std::size_t lane = 0; lane < kWidth; ++lane)
    loss.largest = std::max({loss.largest, low.largest[lane], high.largest[lane]});
  loss.at_ends = codes_at_ends<kWidth>(codes, count, q_max);
}

template <std::size_t kWidth, class T>
KVANT_INLINE void value_body(const T* values, std::size_t count, ValueSums& result) {
  constexpr std::size_t kRegisters = kLanes / kWidth;
  using Doubles = typename Register<kWidth>::Doubles;
  using Longs = typename Register<kWidth>::Longs;
  Doubles squares[2] = {};
  Longs zeros = {};
  const auto add_four = [&](const T* from) KVANT_INLINE_LAMBDA {
    for (std::size_t r = 0; r < kRegisters; ++r) {
      Doubles x;
      load<kWidth>(from + r * kWidth, x);
      squares[r] += x * x;
      zeros -= x == 0;
    }
  };
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) add_four(values + i);
  std::int64_t filled_up = 0;
  if (i < count) {
    T last[kLanes] = {};
    for (std::size_t j = 0; i + j < count; ++j) last[j] = values[i + j];
    add_four(last);
    filled_up = static_cast<std::int64_t>(kLanes - (count - i));
  }
  std::int64_t all_zeros = 0;
  for (std::size_t lane = 0; lane < kWidth; ++lane) all_zeros += zeros[lane];
  result = {};
  result.squares = total<kWidth>(squares);
  result.zeros = static_cast<std::uint64_t>(all_zeros - filled_up);
}

// Cells of `cell` columns each, the first of which the stretch enters at its column `offset`.
template <std::size_t kWidth, class T>
KVANT_INLINE void errors_body(const T* weights, const std::int8_t* codes, std::size_t count, double scale,
                              std::int32_t zero_point, std::size_t offset, std::size_t cell, double* errors) {
  using Doubles = typename Register<kWidth>::Doubles;
  constexpr std::size_t kRegisters = kLanes / kWidth;
  float differences[kBlock];
  for (std::size_t i = 0; i < count; ++i) differences[i] = static_cast<float>(codes[i] - zero_point);
  for (std::size_t i = 0; i < count; ++errors, offset = 0) {
    const std::size_t end = std::min(count, i + cell - offset);
    Doubles low = {}, high = {};
    const auto add_four = [&](const T* w, const float* d) KVANT_INLINE_LAMBDA {
      const auto add_register = [&](std::size_t first, Doubles& sum) KVANT_INLINE_LAMBDA {
        Doubles x, y;
        load<kWidth>(w + first, x);
        load<kWidth>(d + first, y);
        const Doubles e = x - scale * y;
        sum += e * e;
      };
      add_register(0, low);
      if constexpr (kRegisters == 2) add_register(kWidth, high);
    };
    for (; i + kLanes <= end; i += kLanes) add_four(weights + i, differences + i);
    if (i < end) {
      T last[kLanes] = {};
      float last_differences[kLanes] = {};
      for (std::size_t j = 0; i + j < end; ++j) {
        last[j] = weights[i + j];
        last_differences[j] = differences[i + j];
      }
      add_four(last, last_differences);
      i = end;
    }
    const Doubles both[2] = {low, high};
    *errors += total<kWidth>(both);
  }
}

template <class T>
KVANT_INLINE void magnitudes_of_errors_body(const T* weights, const std::int8_t* codes, std::size_t count, double scale,
                                            std::int32_t zero_point, double* magnitudes) {
  for (std::size_t i = 0; i < count; ++i)
    magnitudes[i] = std::abs(static_cast<double>(weights[i]) - scale * static_cast<double>(codes[i] - zero_point));
}

template <class T>
KVANT_INLINE void grid_body(const T* weights, std::size_t count, float scale, float zero_point, float first,
                            float bins_per_code, std::size_t bins, std::uint64_t* counts) {
  std::int32_t places[kBlock];
  const auto end = static_cast<float>(bins);
  for (std::size_t i = 0; i < count; ++i) {
    float t = (static_cast<float>(weights[i]) / scale + zero_point - first) * bins_per_code;
    t = t < end ? t : end;
    t = t < 0 ? -1.0f : t;
    places[i] = static_cast<std::int32_t>(t) + 1;
  }
  // Equal places in a row would wait for each other: the tables take turns.
  const std::size_t table = bins + 2;
  std::size_t i = 0;
  for (; i + kGridTables <= count; i += kGridTables)
    for (std::size_t k = 0; k < kGridTables; ++k) ++counts[k * table + static_cast<std::size_t>(places[i + k])];
  for (; i < count; ++i) ++counts[static_cast<std::size_t>(places[i])];
}

template <class T>
KVANT_INLINE void magnitude_body(const T* weights, std::size_t count, float* largest) {
  for (std::size_t i = 0; i < count; ++i) {
    const float magnitude = std::abs(static_cast<float>(weights[i]));
    largest[i] = magnitude > largest[i] ? magnitude : largest[i];
  }
}

template <class T>
void loss_baseline(const T* weights, const std::int8_t* codes, std::size_t count, float scale, std::int32_t zero_point,
                   int q_max, Loss& loss) {
  loss_body<2>(weights, codes, count, scale, zero_point, q_max, loss);
}
template <class T>
void values_baseline(const T* values, std::size_t count, ValueSums& result) {
  value_body<2>(values, count, result);
}

template <class T>
void errors_baseline(const T* weights, const std::int8_t* codes, std::size_t count, double scale,
                     std::int32_t zero_point, std::size_t offset, std::size_t cell, double* errors) {
  errors_body<2>(weights, codes, count, scale, zero_point, offset, cell, errors);
}
template <class T>
void magnitudes_of_errors_baseline(const T* weights, const std::int8_t* codes, std::size_t count, double scale,
                                   std::int32_t zero_point, double* magnitudes) {
  magnitudes_of_errors_body(weights, codes, count, scale, zero_point, magnitudes);
}
template <class T>
void grid_baseline(const T* weights, std::size_t count, float scale, float zero_point, float first, float bins_per_code,
                   std::size_t bins, std::uint64_t* counts) {
  grid_body(weights, count, scale, zero_point, first, bins_per_code, bins, counts);
}
template <class T>
void magnitudes_baseline(const T* weights, std::size_t count, float* largest) {
  magnitude_body(weights, count, largest);
}

#if defined(__x86_64__)
// Without FMA: the same roundings.
template <class T>
__attribute__((target("avx2"))) void loss_avx2(const T* weights, const std::int8_t* codes, std::size_t count,
                                               float scale, std::int32_t zero_point, int q_max, Loss& loss) {
  loss_body<4>(weights, codes, count, scale, zero_point, q_max, loss);
}
template <class T>
__attribute__((target("avx2"))) void values_avx2(const T* values, std::size_t count, ValueSums& result) {
  value_body<4>(values, count, result);
}
template <class T>
__attribute__((target("avx2"))) void errors_avx2(const T* weights, const std::int8_t* codes, std::size_t count,
                                                 double scale, std::int32_t zero_point, std::size_t offset,
                                                 std::size_t cell, double* errors) {
  errors_body<4>(weights, codes, count, scale, zero_point, offset, cell, errors);
}
template <class T>
__attribute__((target("avx2"))) void magnitudes_of_errors_avx2(const T* weights, const std::int8_t* codes,
                                                               std::size_t count, double scale, std::int32_t zero_point,
                                                               double* magnitudes) {
  magnitudes_of_errors_body(weights, codes, count, scale, zero_point, magnitudes);
}
template <class T>
__attribute__((target("avx2"))) void grid_avx2(const T* weights, std::size_t count, float scale, float zero_point,
                                               float first, float bins_per_code, std::size_t bins,
                                               std::uint64_t* counts) {
  grid_body(weights, count, scale, zero_point, first, bins_per_code, bins, counts);
}
template <class T>
__attribute__((target("avx2"))) void magnitudes_avx2(const T* weights, std::size_t count, float* largest) {
  magnitude_body(weights, count, largest);
}
const bool kHasAvx2 = [] {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") != 0;
}();
#endif

template <class T>
void loss_of(const T* weights, const std::int8_t* codes, std::size_t count, float scale, std::int32_t zero_point,
             int q_max, LaneWidth lanes, Loss& loss) {
#if defined(__x86_64__)
  if (lanes == LaneWidth::machine && kHasAvx2) return loss_avx2(weights, codes, count, scale, zero_point, q_max, loss);
#endif
  (void)lanes;
  loss_baseline(weights, codes, count, scale, zero_point, q_max, loss);
}

}  // namespace

void widen(ElementKind kind, const std::byte* from, std::size_t count, float* to) {
  if (kind == ElementKind::f32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  // In blocks through memory that is known to be aligned and apart: a loop that becomes vectors.
  std::uint16_t narrow[256];
  std::uint32_t wide[256];
  for (std::size_t done = 0; done < count;) {
    const std::size_t n = std::min(count - done, std::size_t{256});
    std::memcpy(narrow, from + 2 * done, 2 * n);
    if (kind == ElementKind::bf16) {
      for (std::size_t i = 0; i < n; ++i) wide[i] = static_cast<std::uint32_t>(narrow[i]) << 16;
      std::memcpy(to + done, wide, 4 * n);
    } else {
      // Exponent and mantissa in their places, times 2^112: exact, for denormals too. Infinities and NaN keep the
      // greatest exponent.
      for (std::size_t i = 0; i < n; ++i) wide[i] = (narrow[i] & 0x7FFFu) << 13;
      float* floats = to + done;
      std::memcpy(floats, wide, 4 * n);
      for (std::size_t i = 0; i < n; ++i) floats[i] *= 0x1p112f;
      std::memcpy(wide, floats, 4 * n);
      for (std::size_t i = 0; i < n; ++i) {
        const std::uint32_t all_ones = (narrow[i] & 0x7C00u) == 0x7C00u ? 0x7F800000u : 0u;
        wide[i] |= all_ones | (static_cast<std::uint32_t>(narrow[i] & 0x8000u) << 16);
      }
      std::memcpy(floats, wide, 4 * n);
    }
    done += n;
  }
}

LossSums& LossSums::operator+=(const LossSums& other) {
  weights += other.weights;
  errors += other.errors;
  products += other.products;
  values += other.values;
  return *this;
}

template <class T>
Loss segment_loss(const T* weights, const std::int8_t* codes, std::size_t count, float scale, std::int32_t zero_point,
                  int q_max, LaneWidth lanes) {
  Loss loss;
  loss_of(weights, codes, count, scale, zero_point, q_max, lanes, loss);
  if (std::isfinite(loss.sums.weights)) return loss;
  // A weight is not finite: once more without those, as if they were 0 and came back as 0.
  T finite[kBlock];
  std::int8_t finite_codes[kBlock];
  std::uint64_t left_out = 0, left_out_at_ends = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const bool keep = std::isfinite(weights[i]);
    finite[i] = keep ? weights[i] : T{0};
    finite_codes[i] = keep ? codes[i] : static_cast<std::int8_t>(zero_point);
    if (keep) continue;
    ++left_out;
    left_out_at_ends += zero_point <= -q_max || zero_point >= q_max ? 1u : 0u;
  }
  loss_of(finite, finite_codes, count, scale, zero_point, q_max, lanes, loss);
  loss.at_ends -= left_out_at_ends;
  loss.non_finite = left_out;
  return loss;
}

template <class T>
void error_magnitudes(const T* weights, const std::int8_t* codes, std::size_t count, float scale,
                      std::int32_t zero_point, double* magnitudes, LaneWidth lanes) {
#if defined(__x86_64__)
  if (lanes == LaneWidth::machine && kHasAvx2)
    return magnitudes_of_errors_avx2(weights, codes, count, scale, zero_point, magnitudes);
#endif
  (void)lanes;
  magnitudes_of_errors_baseline(weights, codes, count, scale, zero_point, magnitudes);
}

template <class T>
std::size_t place_of_error(const T* weights, const std::int8_t* codes, std::size_t count, float scale,
                           std::int32_t zero_point, double largest) {
  const double s = scale;
  for (std::size_t i = 0; i < count; ++i)
    if (std::abs(static_cast<double>(weights[i]) - s * static_cast<double>(codes[i] - zero_point)) == largest) return i;
  return count;
}

template <class T>
void add_cell_errors(const T* weights, const std::int8_t* codes, std::size_t count, float scale,
                     std::int32_t zero_point, std::size_t offset, std::size_t cell, double* errors, LaneWidth lanes) {
#if defined(__x86_64__)
  if (lanes == LaneWidth::machine && kHasAvx2)
    return errors_avx2(weights, codes, count, scale, zero_point, offset, cell, errors);
#endif
  (void)lanes;
  errors_baseline(weights, codes, count, scale, zero_point, offset, cell, errors);
}

template <class T>
void count_on_grid(const T* weights, std::size_t count, float scale, std::int32_t zero_point, int first_code,
                   int bins_per_code, std::size_t bins, std::uint64_t* counts, LaneWidth lanes) {
  const auto zero = static_cast<float>(zero_point);
  const float first = static_cast<float>(first_code) - 0.5f;
  const auto per_code = static_cast<float>(bins_per_code);
#if defined(__x86_64__)
  if (lanes == LaneWidth::machine && kHasAvx2)
    return grid_avx2(weights, count, scale, zero, first, per_code, bins, counts);
#endif
  (void)lanes;
  grid_baseline(weights, count, scale, zero, first, per_code, bins, counts);
}

template <class T>
void raise_to_magnitudes(const T* weights, std::size_t count, float* largest, LaneWidth lanes) {
#if defined(__x86_64__)
  if (lanes == LaneWidth::machine && kHasAvx2) return magnitudes_avx2(weights, count, largest);
#endif
  (void)lanes;
  magnitudes_baseline(weights, count, largest);
}

template <class T>
ValueSums value_sums(const T* values, std::size_t count, LaneWidth lanes) {
  ValueSums sums;
  const auto sum = [&](const T* from) {
#if defined(__x86_64__)
    if (lanes == LaneWidth::machine && kHasAvx2) return values_avx2(from, count, sums);
#endif
    (void)lanes;
    values_baseline(from, count, sums);
  };
  sum(values);
  if (std::isfinite(sums.squares)) return sums;
  T finite[kBlock];
  std::uint64_t nan = 0, infinite = 0;
  for (std::size_t i = 0; i < count; ++i) {
    nan += std::isnan(values[i]) ? 1u : 0u;
    infinite += std::isinf(values[i]) ? 1u : 0u;
    finite[i] = std::isfinite(values[i]) ? values[i] : T{0};
  }
  sum(finite);
  sums.nan = nan;
  sums.infinite = infinite;
  sums.zeros -= nan + infinite;
  return sums;
}

template Loss segment_loss(const float*, const std::int8_t*, std::size_t, float, std::int32_t, int, LaneWidth);
template Loss segment_loss(const double*, const std::int8_t*, std::size_t, float, std::int32_t, int, LaneWidth);
template void error_magnitudes(const float*, const std::int8_t*, std::size_t, float, std::int32_t, double*, LaneWidth);
template void error_magnitudes(const double*, const std::int8_t*, std::size_t, float, std::int32_t, double*, LaneWidth);
template std::size_t place_of_error(const float*, const std::int8_t*, std::size_t, float, std::int32_t, double);
template std::size_t place_of_error(const double*, const std::int8_t*, std::size_t, float, std::int32_t, double);
template void add_cell_errors(const float*, const std::int8_t*, std::size_t, float, std::int32_t, std::size_t,
                              std::size_t, double*, LaneWidth);
template void add_cell_errors(const double*, const std::int8_t*, std::size_t, float, std::int32_t, std::size_t,
                              std::size_t, double*, LaneWidth);
template void count_on_grid(const float*, std::size_t, float, std::int32_t, int, int, std::size_t, std::uint64_t*,
                            LaneWidth);
template void count_on_grid(const double*, std::size_t, float, std::int32_t, int, int, std::size_t, std::uint64_t*,
                            LaneWidth);
template void raise_to_magnitudes(const float*, std::size_t, float*, LaneWidth);
template void raise_to_magnitudes(const double*, std::size_t, float*, LaneWidth);
template ValueSums value_sums(const float*, std::size_t, LaneWidth);
template ValueSums value_sums(const double*, std::size_t, LaneWidth);

}  // namespace kvant::measure
