// Sums over weights and their codes, compiled once for each instruction set. Four lanes of f64 in as many registers as
// the instruction set needs, as vectors of the compiler: GCC takes vectors apart, element by element, that are wider
// than the machine's.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/inline.h"
#include "core/error_sums_kernel.h"
#include "core/guarantee.h"
#include "kvant/element.h"
#include "semantics/error_sums.h"

namespace kvant::cpu {

template <std::size_t kWidth>
struct VectorsOf;
template <>
struct VectorsOf<2> {
  using Doubles = double __attribute__((vector_size(16)));
  using Floats = float __attribute__((vector_size(8)));
  using Bytes = std::int8_t __attribute__((vector_size(16)));
};
template <>
struct VectorsOf<4> {
  using Doubles = double __attribute__((vector_size(32)));
  using Floats = float __attribute__((vector_size(16)));
  using Bytes = std::int8_t __attribute__((vector_size(32)));
};

template <class Isa, class T>
struct ErrorSumsOf {
  static constexpr std::size_t kLanes = 4;
  static constexpr std::size_t kWidth = Isa::kF64Lanes;  // numbers in a register
  static constexpr std::size_t kRegisters = kLanes / kWidth;
  static_assert(kRegisters == 1 || kRegisters == 2);
  using Doubles = typename VectorsOf<kWidth>::Doubles;
  using Longs = decltype(Doubles{} == Doubles{});  // what comparisons give: as many int64
  using Bytes = typename VectorsOf<kWidth>::Bytes;

  static KVANT_INLINE Doubles load(const float* from) {
    typename VectorsOf<kWidth>::Floats narrow;
    __builtin_memcpy(&narrow, from, sizeof narrow);
    return __builtin_convertvector(narrow, Doubles);
  }
  static KVANT_INLINE Doubles load(const double* from) {
    Doubles v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
  }

  // The lanes of a sum in two registers, of which one is enough where it holds four.
  static KVANT_INLINE double total(const Doubles& low, const Doubles& high) {
    double lanes[kLanes];
    __builtin_memcpy(lanes, &low, sizeof low);
    if constexpr (kRegisters == 2) __builtin_memcpy(lanes + kWidth, &high, sizeof high);
    return semantics::total_of_lanes(lanes);
  }

  // d of each code: v = scale * d.
  static KVANT_INLINE void differences(const detail::CodedWeights& s, float* to) {
    if (s.numbers != nullptr)
      for (std::size_t i = 0; i < s.count; ++i) to[i] = s.numbers[static_cast<std::uint8_t>(s.codes[i])];
    else
      for (std::size_t i = 0; i < s.count; ++i) to[i] = static_cast<float>(s.codes[i] - s.zero_point);
  }

  // f(weights, differences) for four elements at a time; zeros fill up the last four.
  template <class Function>
  static KVANT_INLINE void for_each_four(const T* weights, const float* d, std::size_t count, const Function& f) {
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) f(weights + i, d + i);
    if (i == count) return;
    T last[kLanes] = {};
    float last_differences[kLanes] = {};
    for (std::size_t j = 0; i + j < count; ++j) last[j] = weights[i + j], last_differences[j] = d[i + j];
    f(last, last_differences);
  }

  // ---- loss ----

  // One register's part of the sums.
  struct Accumulators {
    Doubles weights = {}, errors = {}, products = {}, values = {}, largest = {};

    KVANT_INLINE void add(const T* from_weights, const float* from_differences, double scale) {
      const Doubles w = load(from_weights), d = load(from_differences);
      const Doubles e = semantics::code_error(w, scale, d);
      const Doubles magnitude = reinterpret_cast<Doubles>(reinterpret_cast<Longs>(e) & 0x7FFFFFFFFFFFFFFF);
      weights += w * w;
      errors += e * e;
      products += w * d;
      values += d * d;
      largest = magnitude > largest ? magnitude : largest;
    }
  };

  // Codes of the largest magnitude.
  static KVANT_INLINE std::uint64_t codes_at_ends(const detail::CodedWeights& s) {
    constexpr std::size_t kBytes = sizeof(Bytes);
    const Bytes mask = Bytes{} + s.magnitude_mask, high = Bytes{} + s.largest, low = -high;
    std::uint64_t ends = 0;
    std::size_t i = 0;
    while (i + kBytes <= s.count) {
      Bytes found = {};
      // A lane holds 127 before it wraps.
      const std::size_t wrap = i + 127 * kBytes;
      const std::size_t stop = s.count < wrap ? s.count : wrap;
      for (; i + kBytes <= stop; i += kBytes) {
        Bytes q;
        __builtin_memcpy(&q, s.codes + i, sizeof q);
        q &= mask;
        found -= (q >= high) | (q <= low);
      }
      for (std::size_t lane = 0; lane < kBytes; ++lane) ends += static_cast<std::uint64_t>(found[lane]);
    }
    for (; i < s.count; ++i) {
      const int q = s.codes[i] & s.magnitude_mask;
      ends += q <= -s.largest || q >= s.largest ? 1u : 0u;
    }
    return ends;
  }

  static void loss(const detail::CodedWeights& s, ErrorSums::Loss& loss) {
    float d[ErrorSums::kMaxCount];
    differences(s, d);
    Accumulators low, high;
    for_each_four(static_cast<const T*>(s.weights), d, s.count, [&](const T* w, const float* at) KVANT_INLINE_LAMBDA {
      low.add(w, at, s.scale);
      if constexpr (kRegisters == 2) high.add(w + kWidth, at + kWidth, s.scale);
    });
    loss.sums = {total(low.weights, high.weights), total(low.errors, high.errors),
                 s.scale * total(low.products, high.products), s.scale * s.scale * total(low.values, high.values)};
    loss.largest = 0;
    for (std::size_t lane = 0; lane < kWidth; ++lane) {
      if (low.largest[lane] > loss.largest) loss.largest = low.largest[lane];
      if (high.largest[lane] > loss.largest) loss.largest = high.largest[lane];
    }
    loss.at_ends = codes_at_ends(s);
  }

  struct OutputAccumulators {
    Doubles outputs = {}, weight_errors = {}, input_errors = {};

    KVANT_INLINE void add(const T* weights, const float* differences, const float* m, const float* n, double scale) {
      const Doubles w = load(weights), d = load(differences), square = load(m);
      const Doubles e = semantics::code_error(w, scale, d);
      outputs += square * (w * w);
      weight_errors += square * (e * e);
      input_errors += load(n) * (d * d);
    }
  };

  static void output_loss(const detail::CodedWeights& s, const float* m, const float* n, ErrorSums::OutputLoss& loss) {
    const T* weights = static_cast<const T*>(s.weights);
    float d[ErrorSums::kMaxCount];
    differences(s, d);
    OutputAccumulators low, high;
    const auto add_four = [&](const T* w, const float* at, const float* of_m, const float* of_n) KVANT_INLINE_LAMBDA {
      low.add(w, at, of_m, of_n, s.scale);
      if constexpr (kRegisters == 2) high.add(w + kWidth, at + kWidth, of_m + kWidth, of_n + kWidth, s.scale);
    };
    std::size_t i = 0;
    for (; i + kLanes <= s.count; i += kLanes) add_four(weights + i, d + i, m + i, n + i);
    if (i < s.count) {
      T last[kLanes] = {};
      float rest[3][kLanes] = {};
      for (std::size_t j = 0; i + j < s.count; ++j)
        last[j] = weights[i + j], rest[0][j] = d[i + j], rest[1][j] = m[i + j], rest[2][j] = n[i + j];
      add_four(last, rest[0], rest[1], rest[2]);
    }
    loss = {total(low.outputs, high.outputs), total(low.weight_errors, high.weight_errors),
            s.scale * s.scale * total(low.input_errors, high.input_errors)};
  }

  // ---- Errors ----

  static void error_magnitudes(const detail::CodedWeights& s, double* magnitudes) {
    const T* weights = static_cast<const T*>(s.weights);
    float d[ErrorSums::kMaxCount];
    differences(s, d);
    for (std::size_t i = 0; i < s.count; ++i)
      magnitudes[i] =
          std::fabs(semantics::code_error(static_cast<double>(weights[i]), s.scale, static_cast<double>(d[i])));
  }

  // Cells of one column: side by side, there is nothing to add up in lanes.
  static KVANT_INLINE void add_column_errors(const T* weights, const float* d, std::size_t count, double scale,
                                             double* errors) {
    std::size_t i = 0;
    for (; i + kWidth <= count; i += kWidth) {
      const Doubles e = semantics::code_error(load(weights + i), scale, load(d + i));
      const Doubles sums = load(errors + i) + e * e;
      __builtin_memcpy(errors + i, &sums, sizeof sums);
    }
    for (; i < count; ++i) {
      const double e = semantics::code_error(static_cast<double>(weights[i]), scale, static_cast<double>(d[i]));
      errors[i] += e * e;
    }
  }

  static void add_cell_errors(const detail::CodedWeights& s, std::size_t offset, std::size_t cell, double* errors) {
    const T* weights = static_cast<const T*>(s.weights);
    float d[ErrorSums::kMaxCount];
    differences(s, d);
    if (cell == 1) return add_column_errors(weights, d, s.count, s.scale, errors);
    for (std::size_t i = 0; i < s.count; ++errors, offset = 0) {
      const std::size_t whole = i + cell - offset, end = s.count < whole ? s.count : whole;
      Doubles low = {}, high = {};
      for_each_four(weights + i, d + i, end - i, [&](const T* w, const float* at) KVANT_INLINE_LAMBDA {
        const Doubles e = semantics::code_error(load(w), s.scale, load(at));
        low += e * e;
        if constexpr (kRegisters == 2) {
          const Doubles f = semantics::code_error(load(w + kWidth), s.scale, load(at + kWidth));
          high += f * f;
        }
      });
      *errors += total(low, high);
      i = end;
    }
  }

  // ---- Weights alone ----

  static void count_on_grid(const void* given, std::size_t count, const detail::Grid& g) {
    const T* weights = static_cast<const T*>(given);
    std::int32_t places[ErrorSums::kMaxCount];
    const auto end = static_cast<float>(g.bins);
    for (std::size_t i = 0; i < count; ++i)
      places[i] =
          semantics::grid_place(static_cast<float>(weights[i]), g.scale, g.zero_point, g.first, g.bins_per_code, end);
    // Equal places in a row would wait for each other: the tables take turns.
    const std::size_t table = g.bins + 2;
    std::size_t i = 0;
    for (; i + ErrorSums::kGridTables <= count; i += ErrorSums::kGridTables)
      for (std::size_t k = 0; k < ErrorSums::kGridTables; ++k)
        ++g.counts[k * table + static_cast<std::size_t>(places[i + k])];
    for (; i < count; ++i) ++g.counts[static_cast<std::size_t>(places[i])];
  }

  static void raise_to_magnitudes(const void* given, std::size_t count, float* largest) {
    const T* weights = static_cast<const T*>(given);
    for (std::size_t i = 0; i < count; ++i) {
      const float magnitude = std::fabs(static_cast<float>(weights[i]));
      largest[i] = magnitude > largest[i] ? magnitude : largest[i];
    }
  }

  static void values(const void* given, std::size_t count, ErrorSums::Values& result) {
    Doubles low = {}, high = {};
    Longs zeros = {};
    const auto add_four = [&](const T* from) KVANT_INLINE_LAMBDA {
      const Doubles x = load(from);
      low += x * x;
      zeros -= x == 0;
      if constexpr (kRegisters == 2) {
        const Doubles y = load(from + kWidth);
        high += y * y;
        zeros -= y == 0;
      }
    };
    const T* x = static_cast<const T*>(given);
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) add_four(x + i);
    std::int64_t filled_up = 0;
    if (i < count) {
      T last[kLanes] = {};
      for (std::size_t j = 0; i + j < count; ++j) last[j] = x[i + j];
      add_four(last);
      filled_up = static_cast<std::int64_t>(kLanes - (count - i));
    }
    std::int64_t all_zeros = 0;
    for (std::size_t lane = 0; lane < kWidth; ++lane) all_zeros += zeros[lane];
    result = {};
    result.squares = total(low, high);
    result.zeros = static_cast<std::uint64_t>(all_zeros - filled_up);
  }
};

template <class Isa, class T>
constexpr detail::ErrorSumsKernel error_sums_kernel() {
  using Functions = ErrorSumsOf<Isa, T>;
  return {detail::bit_stable_sku<double>(Isa::kArch, QuantizeKind::error_sums, kind_of<T>, ElementKind::f64),
          &Functions::loss,
          &Functions::output_loss,
          &Functions::error_magnitudes,
          &Functions::add_cell_errors,
          &Functions::count_on_grid,
          &Functions::raise_to_magnitudes,
          &Functions::values};
}

template <class Isa>
constexpr auto make_error_sums_kernels() {
  return std::array{error_sums_kernel<Isa, float>(), error_sums_kernel<Isa, double>()};
}

}  // namespace kvant::cpu
