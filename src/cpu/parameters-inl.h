// Scales and zero points as the bodies of operators read them: prepared in a table, for a run or for columns, or worked
// out on the way. Compiled once for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/elementwise_kernel.h"
#include "cpu/lanes/block.h"
#include "cpu/lanes/scalar.h"
#include "semantics/quantize.h"
#include "semantics/scale_formats.h"

namespace kvant::cpu {

// What holds for all parameters of a table; see semantics::Prepared.
struct Flags {
  bool corrected;
  bool clamps_input;
  bool contains_zero;
};

// ---- Scales that are codes ----

template <class C>
KVANT_INLINE C one_stored_scale(const detail::Scales& scales, std::int64_t index) {
  using L = ScalarLanes<C>;
  const auto byte = [&]() KVANT_INLINE_LAMBDA { return static_cast<std::int32_t>(scales.data[index]); };
  switch (scales.kind) {
    case ElementKind::f16: return semantics::widen(load_unaligned(reinterpret_cast<const Half*>(scales.data) + index));
    case ElementKind::bf16:
      return semantics::widen(load_unaligned(reinterpret_cast<const BFloat16*>(scales.data) + index));
    case ElementKind::e8m0: return semantics::e8m0_value<L>(byte());
    default: return semantics::nvfp4_value<L>(byte(), static_cast<C>(scales.global_on_cpu()));
  }
}

// n scales from `first` on, at most a block; what is beyond repeats the first.
template <class L>
KVANT_INLINE void load_stored_scales(const detail::Scales& scales, std::int64_t first, std::int64_t n,
                                     typename L::C* numbers) {
  using C = typename L::C;
  constexpr std::int64_t kBlock = 4 * L::kWidth;
  if (scales.kind == ElementKind::f16 || scales.kind == ElementKind::bf16) {
    for (std::int64_t i = 0; i < kBlock; ++i) numbers[i] = one_stored_scale<C>(scales, first + (i < n ? i : 0));
    return;
  }
  std::uint8_t copies[kBlock];
  const auto* codes = reinterpret_cast<const std::uint8_t*>(scales.data) + first;
  if (n < kBlock) {
    for (std::int64_t i = 0; i < kBlock; ++i) copies[i] = codes[i < n ? i : 0];
    codes = copies;
  }
  const auto quad = L::load_int(codes);
  const typename L::F global = L::set(static_cast<C>(scales.global_on_cpu()));
  const bool mx = scales.kind == ElementKind::e8m0;
  const auto put = [&](typename L::I code, std::int64_t at) KVANT_INLINE_LAMBDA {
    L::put(numbers + at, mx ? semantics::e8m0_value<L>(code) : semantics::nvfp4_value<L>(code, global));
  };
  put(quad.a, 0);
  put(quad.b, L::kWidth);
  put(quad.c, 2 * L::kWidth);
  put(quad.d, 3 * L::kWidth);
}

// Parameters prepared once for many elements: those of a batch of short runs (one by one they would cost groups of 32
// as much as the elements themselves), or of a tile of columns that several lines share. Small enough for L1.
template <class L>
class ParameterTable {
 public:
  using C = typename L::C;
  using F = typename L::F;
  using I = typename L::I;
  static constexpr std::int64_t kBlock = 4 * L::kWidth;
  static constexpr std::int64_t kCapacity = 1024;
  static_assert(kCapacity % kBlock == 0);

  // Fills the table with `count` parameters from index `first` on, each block of them spread as kOrder says.
  template <Order kOrder>
  KVANT_INLINE void fill(const ElementwiseWork& job, std::int64_t first, std::int64_t count) {
    const C* scales = reinterpret_cast<const C*>(job.scale.data) + first;
    const std::int32_t* zero_points = reinterpret_cast<const std::int32_t*>(job.zero_point.data);
    if (zero_points != nullptr) zero_points += first;
    flags = {true, true, true};
    if (!job.scale.plain()) return fill_from_codes<kOrder>(job, first, zero_points, count);
    std::int64_t i = 0;
    for (; i + kBlock <= count; i += kBlock)
      fill_block<kOrder>(job, scales + i, zero_points == nullptr ? nullptr : zero_points + i, i);
    const std::int64_t rest = count - i;
    if (rest <= 0) return;
    C scale_copies[kBlock];
    for (std::int64_t j = 0; j < kBlock; ++j)  // beyond the end repeats the first, so that it changes no flag
      scale_copies[j] = load_unaligned(scales + i + (j < rest ? j : 0));
    fill_rest<kOrder>(job, scale_copies, zero_points == nullptr ? nullptr : zero_points + i, i, rest);
  }

  // The same, compiled once for all operators. The call costs 5 to 10 ns, which many short runs would feel.
  template <Order kOrder>
  KVANT_NOINLINE void fill_by_call(const ElementwiseWork& job, std::int64_t first, std::int64_t count) {
    fill<kOrder>(job, first, count);
  }

  // Entry 0 alone, for a long run: without vectors, whose latency a small problem would feel.
  KVANT_INLINE void fill_one(const ElementwiseWork& job, std::int64_t parameter) {
    const std::int32_t* zero_points = reinterpret_cast<const std::int32_t*>(job.zero_point.data);
    const auto p = semantics::prepare<ScalarLanes<C>>(
        job.scale.plain() ? load_unaligned(reinterpret_cast<const C*>(job.scale.data) + parameter)
                          : one_stored_scale<C>(job.scale, parameter),
        zero_points == nullptr ? job.zero_point.value : load_unaligned(zero_points + parameter), job.q_min, job.q_max);
    scale[0] = p.scale, inverse[0] = p.inverse, zero_point[0] = p.zero_point;
    lo[0] = p.bounds.lo, hi[0] = p.bounds.hi;
    input_lo[0] = p.input_bounds.lo, input_hi[0] = p.input_bounds.hi;
    flags = {p.corrected, p.clamps_input, p.contains_zero};
  }

  // One vector more than the capacity puts neighbouring arrays into different banks of L1.
  static constexpr std::int64_t kRow = kCapacity + L::kWidth;
  alignas(64) C scale[kRow], inverse[kRow];
  C lo[kRow], hi[kRow];              // bounds of the quotient
  C input_lo[kRow], input_hi[kRow];  // bounds of x
  std::int32_t zero_point[kRow];
  Flags flags;

 private:
  // Scales that are codes, a block of them at a time.
  template <Order kOrder>
  KVANT_NOINLINE void fill_from_codes(const ElementwiseWork& job, std::int64_t first, const std::int32_t* zero_points,
                                      std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += kBlock) {
      const std::int64_t n = count - i < kBlock ? count - i : kBlock;
      C numbers[kBlock];
      load_stored_scales<L>(job.scale, first + i, n, numbers);
      fill_rest<kOrder>(job, numbers, zero_points == nullptr ? nullptr : zero_points + i, i, n);
    }
  }

  // A block of which n parameters exist; `scales` has them all.
  template <Order kOrder>
  KVANT_INLINE void fill_rest(const ElementwiseWork& job, const C* scales, const std::int32_t* zero_points,
                              std::int64_t at, std::int64_t n) {
    std::int32_t copies[kBlock];
    if (zero_points != nullptr)
      for (std::int64_t j = 0; j < kBlock; ++j) copies[j] = load_unaligned(zero_points + (j < n ? j : 0));
    fill_block<kOrder>(job, scales, zero_points == nullptr ? nullptr : copies, at);
  }

  template <Order kOrder>
  KVANT_INLINE void fill_block(const ElementwiseWork& job, const C* scales, const std::int32_t* zero_points,
                               std::int64_t at) {
    const I common = L::set_int(job.zero_point.value);
    const auto zp = zero_points == nullptr ? typename L::QuadI{common, common, common, common}
                                           : L::template load_parameters<kOrder>(zero_points);
    const auto scale_quad = L::template load_parameters<kOrder>(scales);
    // One vector after the other: four prepared at once would not fit the registers.
    put(job, scale_quad.a, zp.a, at);
    put(job, scale_quad.b, zp.b, at + L::kWidth);
    put(job, scale_quad.c, zp.c, at + 2 * L::kWidth);
    put(job, scale_quad.d, zp.d, at + 3 * L::kWidth);
  }

  KVANT_INLINE void put(const ElementwiseWork& job, F raw_scale, I raw_zero_point, std::int64_t at) {
    const auto p = semantics::prepare<L>(raw_scale, raw_zero_point, job.q_min, job.q_max);
    L::put(scale + at, p.scale);
    L::put(inverse + at, p.inverse);
    L::put(lo + at, p.bounds.lo);
    L::put(hi + at, p.bounds.hi);
    L::put(input_lo + at, p.input_bounds.lo);
    L::put(input_hi + at, p.input_bounds.hi);
    L::put_int(zero_point + at, p.zero_point);
    flags = {flags.corrected && L::all(p.corrected), flags.clamps_input && L::all(p.clamps_input),
             flags.contains_zero && L::all(p.contains_zero)};
  }
};

// A block's parameters, in shapes that bodies cannot tell apart: one set for all elements of a run, …
template <class L>
struct RunParameters {
  static constexpr bool kUniform = true;
  using F = typename L::F;
  using Quad = typename L::Quad;
  F scale_, inverse_, lo_, hi_, input_lo_, input_hi_;
  typename L::I zero_point_;

  KVANT_INLINE RunParameters(const ParameterTable<L>& t, std::int64_t i)
      : scale_(L::broadcast(t.scale + i)),
        inverse_(L::broadcast(t.inverse + i)),
        lo_(L::broadcast(t.lo + i)),
        hi_(L::broadcast(t.hi + i)),
        input_lo_(L::broadcast(t.input_lo + i)),
        input_hi_(L::broadcast(t.input_hi + i)),
        zero_point_(L::set_int(t.zero_point[i])) {}

  static KVANT_INLINE Quad four(F v) { return {v, v, v, v}; }
  KVANT_INLINE Quad scale() const { return four(scale_); }
  KVANT_INLINE Quad inverse() const { return four(inverse_); }
  KVANT_INLINE Quad lo() const { return four(lo_); }
  KVANT_INLINE Quad hi() const { return four(hi_); }
  KVANT_INLINE Quad input_lo() const { return four(input_lo_); }
  KVANT_INLINE Quad input_hi() const { return four(input_hi_); }
  KVANT_INLINE typename L::QuadI zero_point() const { return {zero_point_, zero_point_, zero_point_, zero_point_}; }
};

// … or one for each half of a block, which both orders keep apart: runs of half a block, as groups of 16 are …
template <class L>
struct PairParameters {
  static constexpr bool kUniform = false;
  using Quad = typename L::Quad;
  const ParameterTable<L>& table;
  std::int64_t run;

  KVANT_INLINE Quad both(const typename L::C* p) const {
    const auto first = L::broadcast(p + run), second = L::broadcast(p + run + 1);
    return {first, first, second, second};
  }
  KVANT_INLINE Quad scale() const { return both(table.scale); }
  KVANT_INLINE Quad inverse() const { return both(table.inverse); }
  KVANT_INLINE Quad lo() const { return both(table.lo); }
  KVANT_INLINE Quad hi() const { return both(table.hi); }
  KVANT_INLINE Quad input_lo() const { return both(table.input_lo); }
  KVANT_INLINE Quad input_hi() const { return both(table.input_hi); }
  KVANT_INLINE typename L::QuadI zero_point() const {
    const auto first = L::set_int(table.zero_point[run]), second = L::set_int(table.zero_point[run + 1]);
    return {first, first, second, second};
  }
};

// … or one for each column.
template <class L>
struct ColumnParameters {
  static constexpr bool kUniform = false;
  using Quad = typename L::Quad;
  const ParameterTable<L>& table;
  std::int64_t column;

  KVANT_INLINE Quad load(const typename L::C* p) const { return L::template load<Order::natural>(p + column); }
  KVANT_INLINE Quad scale() const { return load(table.scale); }
  KVANT_INLINE Quad inverse() const { return load(table.inverse); }
  KVANT_INLINE Quad lo() const { return load(table.lo); }
  KVANT_INLINE Quad hi() const { return load(table.hi); }
  KVANT_INLINE Quad input_lo() const { return load(table.input_lo); }
  KVANT_INLINE Quad input_hi() const { return load(table.input_hi); }
  KVANT_INLINE typename L::QuadI zero_point() const { return L::load_int(table.zero_point + column); }
};

// The same worked out on the way, for bodies that ask for little.
template <class L>
struct DirectParameters {
  static constexpr bool kUniform = false;
  using Quad = typename L::Quad;
  using QuadI = typename L::QuadI;
  using F = typename L::F;
  using I = typename L::I;
  const ElementwiseWork& job;
  const typename L::C* scales;
  const std::int32_t* zero_points;

  KVANT_INLINE Quad scale() const { return L::template load<Order::natural>(scales); }
  KVANT_INLINE Quad inverse() const {
    return map([](F s) KVANT_INLINE_LAMBDA { return L::div(L::set(1), s); }, scale());
  }
  KVANT_INLINE QuadI zero_point() const {
    if (zero_points == nullptr) {
      const I zp = L::set_int(job.zero_point.value);
      return {zp, zp, zp, zp};
    }
    return map([](I zp) KVANT_INLINE_LAMBDA { return semantics::limit_zero_point<L>(zp); }, L::load_int(zero_points));
  }
  KVANT_INLINE Quad lo() const { return bound(job.q_min); }
  KVANT_INLINE Quad hi() const { return bound(job.q_max); }
  KVANT_INLINE Quad input_lo() const { return times_scale(lo()); }
  KVANT_INLINE Quad input_hi() const { return times_scale(hi()); }
  KVANT_INLINE Quad times_scale(const Quad& bounds) const {
    return map([](F b, F s) KVANT_INLINE_LAMBDA { return L::mul(b, s); }, bounds, scale());
  }
  KVANT_INLINE Quad bound(std::int32_t q) const {
    const I end = L::set_int(q);
    return map([&](I zp) KVANT_INLINE_LAMBDA { return L::to_float(L::sub_int(end, zp)); }, zero_point());
  }
};

// Quotients as types, made from a scale and its inverse.
struct DivideByScale {
  template <class L>
  static KVANT_INLINE semantics::Divide<L> of(typename L::F scale, typename L::F) {
    return {scale};
  }
};
struct MultiplyByInverse {
  template <class L>
  static KVANT_INLINE semantics::Multiply<L> of(typename L::F, typename L::F inverse) {
    return {inverse};
  }
};
struct MultiplyAndCorrect {
  template <class L>
  static KVANT_INLINE semantics::CorrectedMultiply<L> of(typename L::F scale, typename L::F inverse) {
    return {scale, inverse};
  }
};

}  // namespace kvant::cpu
