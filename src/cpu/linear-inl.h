// Linear layers, compiled once for each instruction set: panel by panel, the exact sums of a block of rows by a
// micro-kernel (cpu/micro/), then zero points and the end in floating point or in codes by the formulas of
// semantics/linear.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/guarantee.h"
#include "core/type_lists.h"
#include "cpu/lanes/block.h"
#include "cpu/lanes/scalar.h"
#include "cpu/linear_kernel.h"
#include "cpu/micro/operands.h"
#include "kvant/element.h"
#include "semantics/linear.h"
#include "semantics/quantize.h"
#include "semantics/smoothing.h"

namespace kvant::cpu {

// Number `index` of an unaligned array, or its only one where step is 0.
template <class T>
KVANT_INLINE T parameter_at(const std::byte* values, std::int64_t step, std::int64_t index) {
  return load_unaligned(reinterpret_cast<const T*>(values) + step * index);
}

// Out is a floating-point type, or CodeByte for s8 and u8.
template <class Isa, class Out>
class LinearRunner {
  using Micro = typename Isa::Micro;
  using Scale = compute_t<Out>;
  using ScaleLanes = typename Isa::template Lanes<Scale>;
  using C = semantics::sum_t<Out>;
  using L = typename Isa::template Lanes<C>;
  using F = typename L::F;

 public:
  KVANT_INLINE LinearRunner(const LinearWork& job, const LinearPart& part) : job_(job), part_(part) {}

  KVANT_INLINE void run() {
    const std::int64_t bytes = Micro::panel_bytes(job_.depth);
    const std::int64_t block = rows_in_block();
    for (std::int64_t row = part_.first_row; row < part_.end_row; row += block)
      for (std::int64_t p = part_.first_panel; p < part_.end_panel; ++p) {
        const std::byte* packed = job_.panels == nullptr ? nullptr : job_.panels + p * bytes;
        const LinearPanel panel{packed, &job_.raw_weight, p, job_.depth, packed == nullptr ? nullptr : packed + bytes};
        prepare_columns(panel);
        run_block(panel, row, part_.end_row - row < block ? part_.end_row - row : block);
      }
  }

 private:
  static constexpr bool kWritesCodes = std::is_same_v<Out, semantics::CodeByte>;
  template <class Sum>
  using Correction = semantics::RowCorrection<Sum>;
  static constexpr std::int64_t kColumns = Micro::kColumns;
  // A block of rows stays in L2 while the panels pass by.
  static constexpr std::int64_t kRowBlock = Micro::kMaxRows;
  static constexpr std::int64_t kMinRowBlock = 16;
  static constexpr std::int64_t kCachedCodes = 1 << 18;
  static_assert(kRowBlock % Micro::kRows == 0 && kMinRowBlock % Micro::kRows == 0 && kColumns % L::kWidth == 0 &&
                kColumns % ScaleLanes::kWidth == 0);
  static_assert(semantics::sum_fits_32_bits(semantics::kMaxProductU8S8, Micro::kChunk));

  KVANT_INLINE std::int64_t rows_in_block() const {
    const std::int64_t rows = job_.depth == 0 ? kRowBlock : kCachedCodes / job_.depth / Micro::kRows * Micro::kRows;
    return rows < kMinRowBlock ? kMinRowBlock : rows < kRowBlock ? rows : kRowBlock;
  }

  // ---- What belongs to the columns of a panel ----

  KVANT_INLINE void prepare_columns(const LinearPanel& panel) {
    Micro::column_sums(panel, column_sums_);
    const std::int64_t first = first_column_ = panel.index * kColumns;
    columns_ = job_.columns - first < kColumns ? job_.columns - first : kColumns;
    fill_columns<Scale>(weight_scale_, job_.weight_scale, job_.weight_scale_step, first);
    fill_columns<std::int32_t>(weight_zero_point_, job_.weight_zero_point, job_.weight_zero_point_step, first);
    std::int32_t any = 0;
    for (std::int64_t n = 0; n < kColumns; ++n) any |= weight_zero_point_[n] = weight_zero_point(weight_zero_point_[n]);
    has_weight_zero_points_ = any != 0;
    if (job_.bias != nullptr)
      for (std::int64_t n = 0; n < kColumns; ++n) bias_[n] = n < columns_ ? bias_at(first + n) : C(0);
  }
  // Columns beyond the last repeat the first.
  template <class T>
  KVANT_INLINE void fill_columns(T* to, const std::byte* values, std::int64_t step, std::int64_t first) const {
    const T* from = reinterpret_cast<const T*>(values) + step * first;
    if (step == 1 && columns_ == kColumns) {
      __builtin_memcpy(to, from, sizeof(T) * kColumns);
      return;
    }
    for (std::int64_t n = 0; n < kColumns; ++n) to[n] = load_unaligned(from + (n < columns_ ? n * step : 0));
  }
  KVANT_INLINE C bias_at(std::int64_t n) const {
    if constexpr (kWritesCodes) {
      const C bias = load_unaligned(reinterpret_cast<const Scale*>(job_.bias) + n);
      return semantics::bias_in_steps<ScalarLanes<C>>(bias, job_.output_scale);
    } else {
      if (job_.bias_is_output_kind)
        return ScalarLanes<C>::widen(load_unaligned(reinterpret_cast<const Out*>(job_.bias) + n));
      return load_unaligned(reinterpret_cast<const C*>(job_.bias) + n);
    }
  }
  KVANT_INLINE std::int32_t weight_zero_point(std::int32_t given) const {
    return semantics::limit_weight_zero_point<ScalarLanes<C>>(given, job_.weight_range.min, job_.weight_range.max) +
           job_.weight_zero_point_offset;
  }
  KVANT_INLINE std::int32_t act_zero_point_at(std::int64_t row) const {
    const auto given = parameter_at<std::int32_t>(job_.act_zero_point, job_.act_zero_point_step, row);
    return semantics::limit_zero_point<ScalarLanes<C>>(given) + job_.act_zero_point_offset;
  }

  // ---- A block of rows ----

  KVANT_INLINE void run_block(const LinearPanel& panel, std::int64_t first_row, std::int64_t count) {
    const std::int64_t tile = first_row / Micro::kRows;
    const std::int64_t tile_stride = Micro::tile_bytes(job_.depth), wide_stride = Micro::wide_tile_bytes(job_.depth);
    const LinearRows rows{job_.tiles + tile * tile_stride,
                          job_.wide_tiles == nullptr ? nullptr : job_.wide_tiles + tile * wide_stride,
                          tile_stride,
                          wide_stride,
                          count,
                          job_.rows == 1};
    const std::int64_t chunks = (job_.depth + Micro::kChunk - 1) / Micro::kChunk;
    const bool narrow = fits_32_bits(first_row, count);
    clear(sums_, count);
    if (!narrow) clear(long_sums_, count);
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      Micro::accumulate(panel, rows, chunk, sums_);
      if (narrow) continue;
      for (std::int64_t i = 0; i < count * kColumns; ++i) long_sums_[i] += sums_[i];
      clear(sums_, count);
    }
    const bool common = narrow && job_.act_zero_point_step == 0 && !has_weight_zero_points_;
    if (common) {
      const Correction<std::int32_t> correction{act_zero_point_at(first_row)};
      for (std::int64_t n = 0; n < kColumns; ++n) common_correction_[n] = correction.column_term(column_sums_[n]);
    }
    for (std::int64_t r = 0; r < count; ++r) {
      if (common)
        correct_all_alike(sums_ + r * kColumns);
      else if (narrow)
        correct(sums_ + r * kColumns, first_row + r);
      else
        correct(long_sums_ + r * kColumns, first_row + r);
      write_row(first_row + r);
    }
  }
  template <class Sum>
  static KVANT_INLINE void clear(Sum* sums, std::int64_t rows) {
    const std::int64_t whole_tiles = (rows + Micro::kRows - 1) / Micro::kRows * Micro::kRows;
    __builtin_memset(sums, 0, static_cast<std::size_t>(whole_tiles * kColumns) * sizeof(Sum));
  }

  // True if every corrected sum of these rows fits 32 bits, so that nothing that wraps on the way matters.
  KVANT_INLINE bool fits_32_bits(std::int64_t first_row, std::int64_t count) const {
    std::int64_t act = 0, weight = 0;
    for (std::int64_t r = 0; r < (job_.act_zero_point_step == 0 ? 1 : count); ++r)
      act = larger(act, semantics::largest_distance(0, 255, act_zero_point_at(first_row + r)));
    for (std::int64_t n = 0; n < columns_; ++n)
      weight = larger(weight, semantics::largest_distance(-128, 127, weight_zero_point_[n]));
    return semantics::sum_fits_32_bits(act * weight, job_.depth);
  }
  static KVANT_INLINE std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

  // The sums of one row without their zero points, to corrected_ in floating point.
  template <class Sum>
  KVANT_INLINE void correct(const Sum* sums, std::int64_t row) {
    Correction<Sum> correction{act_zero_point_at(row)};
    if (has_weight_zero_points_) {
      correction.row_sum = job_.row_sums[row];
      correction.depth = job_.depth;
    }
    alignas(64) Sum corrected[kColumns];
    for (std::int64_t n = 0; n < kColumns; ++n)
      corrected[n] = correction.corrected(sums[n], column_sums_[n], weight_zero_point_[n]);
    if constexpr (sizeof(Sum) == sizeof(std::int32_t)) {
      to_floating_point(corrected);
    } else {
      for (std::int64_t n = 0; n < kColumns; ++n) corrected_[n] = static_cast<C>(corrected[n]);
    }
  }
  // The same where all rows have one zero point and weights have none.
  KVANT_INLINE void correct_all_alike(const std::int32_t* sums) {
    alignas(64) std::int32_t corrected[kColumns];
    for (std::int64_t n = 0; n < kColumns; ++n)
      corrected[n] = Correction<std::int32_t>::without(sums[n], common_correction_[n]);
    to_floating_point(corrected);
  }
  KVANT_INLINE void to_floating_point(const std::int32_t* corrected) {
    for (std::int64_t n = 0; n < kColumns; n += L::kWidth)
      L::put(corrected_ + n, L::to_float(L::get_int(corrected + n)));
  }

  KVANT_INLINE void write_row(std::int64_t row) const {
    const auto scale = parameter_at<Scale>(job_.act_scale, job_.act_scale_step, row);
    Out* out = reinterpret_cast<Out*>(job_.out + row * job_.out_stride);
    if (columns_ == kColumns) return write_columns(scale, out + first_column_);
    alignas(64) Out copies[kColumns];
    write_columns(scale, copies);
    __builtin_memcpy(out + first_column_, copies, static_cast<std::size_t>(columns_) * sizeof(Out));
  }
  KVANT_INLINE void write_columns(Scale act_scale, Out* out) const {
    if constexpr (kWritesCodes)
      write_codes(act_scale, out);
    else
      write_numbers(act_scale, out);
  }
  KVANT_INLINE void write_numbers(Scale act_scale, Out* out) const {
    const F scale = L::set(act_scale);
    const semantics::LinearEnd<L> end{job_.bias != nullptr, job_.depth == 0};
    for (std::int64_t n = 0; n < kColumns; n += L::kWidth) {
      const F bias = end.has_bias ? L::get(bias_ + n) : L::set(C(0));
      L::put(out + n, end(scale, L::get(weight_scale_ + n), L::get(corrected_ + n), bias));
    }
  }
  KVANT_INLINE void write_codes(Scale act_scale, Out* out) const {
    alignas(64) Scale narrow_factors[kColumns];
    alignas(64) C factors[kColumns];
    alignas(64) std::int32_t codes[kColumns];
    for (std::int64_t n = 0; n < kColumns; n += ScaleLanes::kWidth)
      ScaleLanes::put(narrow_factors + n, semantics::output_factor<ScaleLanes>(ScaleLanes::set(act_scale),
                                                                               ScaleLanes::get(weight_scale_ + n),
                                                                               ScaleLanes::set(job_.output_scale)));
    for (std::int64_t n = 0; n < kColumns; ++n) factors[n] = narrow_factors[n];
    const semantics::RequantizingEnd<L> end{job_.bias != nullptr, job_.depth == 0, L::set_int(job_.output_zero_point),
                                            L::set_int(job_.output_range.min), L::set_int(job_.output_range.max)};
    for (std::int64_t n = 0; n < kColumns; n += L::kWidth) {
      const F bias = end.has_bias ? L::get(bias_ + n) : L::set(C(0));
      L::put_int(codes + n, end(L::get(factors + n), L::get(corrected_ + n), bias));
    }
    for (std::int64_t n = 0; n < kColumns; ++n) out[n].bits = static_cast<std::uint8_t>(codes[n]);
  }

  const LinearWork& job_;
  const LinearPart& part_;
  std::int64_t first_column_ = 0;
  std::int64_t columns_ = 0;  // of the panel that exist
  bool has_weight_zero_points_ = false;
  alignas(64) std::int64_t column_sums_[kColumns];
  alignas(64) std::int32_t weight_zero_point_[kColumns];
  alignas(64) std::uint32_t common_correction_[kColumns];
  alignas(64) Scale weight_scale_[kColumns];
  alignas(64) C bias_[kColumns];
  alignas(64) C corrected_[kColumns];
  alignas(64) std::int32_t sums_[kRowBlock * kColumns];
  alignas(64) std::int64_t long_sums_[kRowBlock * kColumns];
};

template <class Isa, class Out>
void run_linear(const LinearWork& job, const LinearPart& part) {
  LinearRunner<Isa, Out>(job, part).run();
}

// ---- Smoothing on the way in ----

template <class L, class In>
void divide_row(const std::byte* x, const std::byte* divisor, std::byte* out, std::int64_t n) {
  using C = typename L::C;
  constexpr std::int64_t kBlock = 4 * L::kWidth;
  const auto block = [](const In* from, const C* by, C* to) KVANT_INLINE_LAMBDA {
    const auto quotient = [](typename L::F a, typename L::F b)
                              KVANT_INLINE_LAMBDA { return semantics::smoothed<L>(a, b); };
    L::template store<Order::natural>(
        to, semantics::map(quotient, L::template load<Order::natural>(from), L::template load<Order::natural>(by)),
        false);
  };
  const In* from = reinterpret_cast<const In*>(x);
  const C* by = reinterpret_cast<const C*>(divisor);
  C* to = reinterpret_cast<C*>(out);
  std::int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) block(from + i, by + i, to + i);
  if (i == n) return;
  const auto rest = static_cast<std::size_t>(n - i);
  In from_copies[kBlock] = {};
  C by_copies[kBlock] = {}, to_copies[kBlock];
  __builtin_memcpy(from_copies, from + i, rest * sizeof(In));
  __builtin_memcpy(by_copies, by + i, rest * sizeof(C));
  block(from_copies, by_copies, to_copies);
  __builtin_memcpy(to + i, to_copies, rest * sizeof(C));
}

// ---- The table ----

template <class Micro>
inline constexpr detail::LinearFormat kLinearFormat = {
    .arch = Micro::kArch,
    .panel_columns = Micro::kColumns,
    .tile_rows = Micro::kRows,
    .panel_bytes = &Micro::panel_bytes,
    .tile_bytes = &Micro::tile_bytes,
    .wide_tile_bytes = &Micro::wide_tile_bytes,
    .pack_panel = &Micro::pack_panel,
    .panel_is_wide = &Micro::panel_is_wide,
    .panel_is_sound = &Micro::panel_is_sound,
    .pack_tile = &Micro::pack_tile,
};

template <class Isa, class Out, ElementKind output>
constexpr LinearKernel linear_kernel() {
  LinearKernel kernel = {};
  kernel.sku =
      detail::bit_stable_sku<semantics::sum_t<Out>>(Isa::kArch, QuantizeKind::w8a8_linear, ElementKind::s8, output);
  kernel.sku.epilogue = is_code(output) ? EpilogueKind::requantize_bias : EpilogueKind::dequantize_bias;
  kernel.sku.precision_guarantee.accumulator = AccumulatorKind::exact_integer;
  kernel.format = &kLinearFormat<typename Isa::Micro>;
  kernel.prepare = &prepare_linear;
  kernel.launch = &launch_linear;
  kernel.run = &run_linear<Isa, Out>;
  if constexpr (!is_code(output)) kernel.divide_row = &divide_row<typename Isa::template Lanes<compute_t<Out>>, Out>;
  return kernel;
}

template <class Isa>
constexpr auto make_linear_kernels() {
  return []<class... Out>(TypeList<Out...>) {
    using semantics::CodeByte;
    return std::array{linear_kernel<Isa, Out, kind_of<Out>>()..., linear_kernel<Isa, CodeByte, ElementKind::s8>(),
                      linear_kernel<Isa, CodeByte, ElementKind::u8>()};
  }(core::RealTypes{});
}

}  // namespace kvant::cpu
