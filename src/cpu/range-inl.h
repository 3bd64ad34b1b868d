// Ranges, compiled once for each instruction set: a stretch of elements, or several lines side by side, through
// accumulators of one block; then scales and zero points from the ranges. The formulas are in semantics/.
//
// A range does not care how often it sees an element. So a tail is the last whole block, which may overlap the one
// before it.
//
// Infinities (and NaN, where it shows as one) are looked for once, in the finished ranges: only a part that has some is
// read again, carefully.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/guarantee.h"
#include "core/type_lists.h"
#include "cpu/blocks-inl.h"
#include "cpu/fetch.h"
#include "cpu/lanes/block.h"
#include "cpu/range_kernel.h"
#include "kvant/element.h"
#include "semantics/dynamic_range.h"

namespace kvant::cpu {

// ---- Accumulators ---------------------------------------------------------------------------------------------
// Each takes blocks of kBlock elements and keeps a range for every place in the block. An instruction set may have a
// better one: L::RangeBits.

// In floating point, four vectors side by side. A fused multiply-add with 0, on ports that minima and maxima leave
// idle, keeps the NaN that they lose; it shows as an infinity.
template <class L, class In>
struct WideRange {
  using F = typename L::F;
  using Range = semantics::Range<L>;
  static constexpr bool kSeesNan = L::kHasFma;
  static constexpr std::int64_t kBlock = 4 * L::kWidth;
  Range a, b, c, d;
  F trace_a, trace_b, trace_c, trace_d;  // 0, or NaN after NaN or an infinity

  static KVANT_INLINE WideRange empty() {
    const Range none = Range::empty();
    const F zero = L::set(0);
    return {none, none, none, none, zero, zero, zero, zero};
  }
  // After one block.
  static KVANT_INLINE WideRange first(const In* p) {
    if constexpr (kSeesNan) {  // NaN may get into the ranges, since the traces tell of it
      const auto x = L::template load<Order::natural>(p);
      return {{x.a, x.a}, {x.b, x.b}, {x.c, x.c}, {x.d, x.d}, trace(x.a), trace(x.b), trace(x.c), trace(x.d)};
    } else {
      WideRange all = empty();
      all.add(p);
      return all;
    }
  }
  KVANT_INLINE void add(const In* p) {
    const auto x = L::template load<Order::natural>(p);
    extend(a, trace_a, x.a);
    extend(b, trace_b, x.b);
    extend(c, trace_c, x.c);
    extend(d, trace_d, x.d);
  }
  // f(ranges, first place), a vector of them at a time.
  template <class Function>
  KVANT_INLINE void for_each_place(const Function& f) const {
    f(shown(a, trace_a), 0);
    f(shown(b, trace_b), L::kWidth);
    f(shown(c, trace_c), 2 * L::kWidth);
    f(shown(d, trace_d), 3 * L::kWidth);
  }
  // The range of all.
  KVANT_INLINE Range folded() const {
    return shown(a.with(b).with(c.with(d)), L::add(L::add(trace_a, trace_b), L::add(trace_c, trace_d)));
  }

 private:
  static KVANT_INLINE F trace(F x) { return L::mul(x, L::set(0)); }
  static KVANT_INLINE void extend(Range& r, F& traced, F x) {
    r = r.with(x);
    if constexpr (kSeesNan) traced = L::fma(x, L::set(0), traced);
  }
  static KVANT_INLINE Range shown(const Range& r, F traced) {
    if constexpr (!kSeesNan) return r;
    return {r.lo, L::select(L::le(traced, L::set(0)), r.hi, Range::empty().lo)};
  }
};

// The same without infinities, for elements among which there are some.
template <class L, class In>
struct FiniteRange {
  using Range = semantics::Range<L>;
  static constexpr std::int64_t kBlock = 4 * L::kWidth;
  Range a, b, c, d;

  static KVANT_INLINE FiniteRange first(const In* p) {
    FiniteRange all = empty();
    all.add(p);
    return all;
  }
  static KVANT_INLINE FiniteRange empty() { return {Range::empty(), Range::empty(), Range::empty(), Range::empty()}; }
  KVANT_INLINE void add(const In* p) {
    const auto x = L::template load<Order::natural>(p);
    a = a.with_finite(x.a);
    b = b.with_finite(x.b);
    c = c.with_finite(x.c);
    d = d.with_finite(x.d);
  }
  template <class Function>
  KVANT_INLINE void for_each_place(const Function& f) const {
    f(a, 0);
    f(b, L::kWidth);
    f(c, 2 * L::kWidth);
    f(d, 3 * L::kWidth);
  }
  KVANT_INLINE Range folded() const { return a.with(b).with(c.with(d)); }
};

template <class L, class In>
struct RangeOfAny {
  using Type = WideRange<L, In>;
};
template <class L, class In>
requires(sizeof(In) == 2 && L::kHasRangeBits) struct RangeOfAny<L, In> {
  using Type = typename L::template RangeBits<In>;
};

// ---- Slots ----------------------------------------------------------------------------------------------------

template <class C>
struct SlotArrays {
  C* lo;
  C* hi;
  std::int64_t first;
  std::int64_t count;

  KVANT_INLINE explicit SlotArrays(const RangeSlots& s)
      : lo(static_cast<C*>(s.lo)), hi(static_cast<C*>(s.hi)), first(s.first), count(s.count) {}
  KVANT_INLINE void extend(std::int64_t parameter, C least, C greatest) const {
    C& l = lo[parameter - first];
    C& h = hi[parameter - first];
    l = least < l ? least : l;
    h = greatest > h ? greatest : h;
  }
};

// Calls f(i, n) for vectors of slots: n is kWidth but for the last.
template <class L, class Function>
KVANT_INLINE void for_each_vector(std::int64_t count, const Function& f) {
  for (std::int64_t i = 0; i < count; i += L::kWidth) f(i, count - i < L::kWidth ? count - i : L::kWidth);
}

// A vector of n unaligned numbers, filled up with the last; and back.
template <class L>
KVANT_INLINE typename L::F load_some(const void* p, std::int64_t n) {
  using C = typename L::C;
  if (n == L::kWidth) return L::get(static_cast<const C*>(p));
  C copies[L::kWidth] = {};
  for (std::int64_t i = 0; i < L::kWidth; ++i)
    copies[i] = load_unaligned(static_cast<const C*>(p) + (i < n ? i : n - 1));
  return L::get(copies);
}
template <class L>
KVANT_INLINE void store_some(void* p, typename L::F x, std::int64_t n) {
  using C = typename L::C;
  if (n == L::kWidth) return L::put(static_cast<C*>(p), x);
  C copies[L::kWidth];
  L::put(copies, x);
  for (std::int64_t i = 0; i < n; ++i) store_unaligned(static_cast<C*>(p) + i, copies[i]);
}
template <class L>
KVANT_INLINE void store_some_int(std::int32_t* p, typename L::I x, std::int64_t n) {
  if (n == L::kWidth) return L::put_int(p, x);
  std::int32_t copies[L::kWidth];
  L::put_int(copies, x);
  for (std::int64_t i = 0; i < n; ++i) store_unaligned(p + i, copies[i]);
}

// ---- Along a stretch ------------------------------------------------------------------------------------------

// Fewer elements than a block has places, in the first of them, and some again in the others. From half a block on,
// which groups of 16 are, by copies whose size is known.
template <class Accumulator, class In>
struct PaddedBlock {
  In elements[Accumulator::kBlock];
  KVANT_INLINE PaddedBlock(const In* p, std::int64_t n) {
    constexpr std::int64_t kHalf = Accumulator::kBlock / 2;
    if (n >= kHalf) {
      copy_elements(elements + kHalf, p, kHalf);
      copy_rest<kHalf>(elements, p, n);
      return;
    }
    for (std::int64_t i = 0; i < Accumulator::kBlock; ++i) elements[i] = load_unaligned(p + (i < n ? i : 0));
  }
};

// Elements [i, n), where n is at least a block.
template <class Accumulator, class In>
KVANT_INLINE void extend_stretch(Accumulator& all, const In* p, std::int64_t i, std::int64_t n,
                                 std::int64_t fetch_ahead) {
  constexpr std::int64_t kBlock = Accumulator::kBlock;
  for (; i + 2 * kBlock <= n; i += 2 * kBlock) {
    if (fetch_ahead != 0) fetch_block<2 * kBlock>(p + i, fetch_ahead);
    all.add(p + i);
    all.add(p + i + kBlock);
  }
  if (i + kBlock <= n) all.add(p + i);
  if (n % kBlock > 0) all.add(p + n - kBlock);
}

template <class L, class Accumulator, class In>
KVANT_INLINE Accumulator accumulate_stretch(const In* p, std::int64_t n, std::int64_t fetch_ahead) {
  if (n < Accumulator::kBlock) return Accumulator::first(PaddedBlock<Accumulator, In>(p, n).elements);
  Accumulator all = Accumulator::first(p);
  extend_stretch(all, p, Accumulator::kBlock, n, fetch_ahead);
  return all;
}

// The same place in some lines, `stride` bytes apart.
template <class L, class Accumulator, class In>
KVANT_INLINE Accumulator accumulate_lines(const In* p, std::int64_t n, std::int64_t stride, std::int64_t lines,
                                          std::int64_t fetch_ahead) {
  Accumulator all = accumulate_stretch<L, Accumulator>(p, n, fetch_ahead);
  for (std::int64_t line = 1; line < lines; ++line) {
    p = reinterpret_cast<const In*>(reinterpret_cast<const std::byte*>(p) + stride);
    if (n < Accumulator::kBlock)
      all.add(PaddedBlock<Accumulator, In>(p, n).elements);
    else
      extend_stretch(all, p, 0, n, fetch_ahead);
  }
  return all;
}

// Lines in runs. Whole short runs are folded together, a vector of them at a time, and so are short runs of eight lines
// that share them, as those of a block do: the ranges of 4096 x 4096 f32 in blocks of 128 x 128 take 3.7 ms so, and
// took 6.2 line by line. Long runs are better read as they lie: with 512 x 512 it was 5.2 so and 2.6 line by line.
template <class L, class In, class Accumulator>
KVANT_INLINE void find_in_runs(const RangeWork& job, const ElementwisePart& part,
                               const SlotArrays<typename L::C>& slots) {
  constexpr std::int64_t kShortRun = 256;
  const std::int64_t run = job.runs.run;
  const std::int64_t side_by_side = run > kShortRun ? 1 : 8;
  std::int64_t lines = 0;
  for (std::int64_t line = part.first_line; line < part.end_line; line += lines) {
    lines = core::lines_sharing_parameters(job.runs, line);
    if (lines > part.end_line - line) lines = part.end_line - line;
    if (lines > side_by_side) lines = side_by_side;
    const auto range_of = [&](const In* p, std::int64_t n) KVANT_INLINE_LAMBDA {
      return accumulate_lines<L, Accumulator>(p, n, job.x_stride, lines, job.fetch_ahead).folded();
    };
    const In* x = reinterpret_cast<const In*>(job.x + line * job.x_stride) + part.offset;
    std::int64_t parameter = core::first_parameter(job.runs, line);
    std::int64_t left = run;
    if (part.offset != 0) {
      parameter += part.offset / run;
      left -= part.offset % run;
    }
    for (std::int64_t n = part.count; n > 0;) {
      if constexpr (L::kWidth > 1) {
        if (left == run && n >= L::kWidth * run) {
          semantics::Range<L> several[L::kWidth];
          for (std::int64_t i = 0; i < L::kWidth; ++i) several[i] = range_of(x + i * run, run);
          const semantics::Range<L> each = L::transpose_fold(several);
          typename L::C* lo = slots.lo + (parameter - slots.first);
          typename L::C* hi = slots.hi + (parameter - slots.first);
          const semantics::Range<L> known{L::get(lo), L::get(hi)};
          const semantics::Range<L> extended = known.with(each);
          L::put(lo, extended.lo);
          L::put(hi, extended.hi);
          x += L::kWidth * run;
          n -= L::kWidth * run;
          parameter += L::kWidth;
          continue;
        }
      }
      const std::int64_t count = left < n ? left : n;
      const semantics::Range<L> r = range_of(x, count);
      slots.extend(parameter, L::least(r.lo), L::greatest(r.hi));
      x += count;
      n -= count;
      left = run, ++parameter;
    }
  }
}

// ---- Across lines ---------------------------------------------------------------------------------------------

// One block of columns over a few lines, into the running ranges of its columns.
template <class L, class Accumulator, class In>
KVANT_INLINE void extend_columns(const In* x, std::int64_t stride, std::int64_t lines, std::int64_t fetch_ahead,
                                 typename L::C* lo, typename L::C* hi) {
  Accumulator all = Accumulator::first(x);
  if (fetch_ahead != 0) fetch_block<Accumulator::kBlock>(x, fetch_ahead);
  for (std::int64_t line = 1; line < lines; ++line) {
    const In* p = reinterpret_cast<const In*>(reinterpret_cast<const std::byte*>(x) + line * stride);
    if (fetch_ahead != 0) fetch_block<Accumulator::kBlock>(p, fetch_ahead);
    all.add(p);
  }
  all.for_each_place([&](const semantics::Range<L>& r, std::int64_t at) KVANT_INLINE_LAMBDA {
    const semantics::Range<L> known{L::get(lo + at), L::get(hi + at)};
    const semantics::Range<L> extended = known.with(r);
    L::put(lo + at, extended.lo);
    L::put(hi + at, extended.hi);
  });
}

// Fewer columns than a block has places, on padded copies.
template <class L, class Accumulator, class In>
KVANT_INLINE void extend_narrow_columns(const In* x, std::int64_t stride, std::int64_t lines, std::int64_t n,
                                        typename L::C* lo, typename L::C* hi) {
  constexpr std::int64_t kBlock = Accumulator::kBlock;
  typename L::C some_lo[kBlock], some_hi[kBlock];
  for (std::int64_t i = 0; i < kBlock; ++i) some_lo[i] = lo[i < n ? i : 0], some_hi[i] = hi[i < n ? i : 0];
  for (std::int64_t l = 0; l < lines; ++l) {
    const In* p = reinterpret_cast<const In*>(reinterpret_cast<const std::byte*>(x) + l * stride);
    extend_columns<L, Accumulator>(PaddedBlock<Accumulator, In>(p, n).elements, 0, 1, 0, some_lo, some_hi);
  }
  for (std::int64_t i = 0; i < n; ++i) lo[i] = some_lo[i], hi[i] = some_hi[i];
}

// The same for lines without gaps. As many of them as a block has places are n whole blocks, in which place i always
// belongs to column i % n. Returns how many lines it has taken.
template <class L, class Accumulator, class In>
KVANT_INLINE std::int64_t extend_joined_columns(const In* x, std::int64_t lines, std::int64_t n, typename L::C* lo,
                                                typename L::C* hi) {
  constexpr std::int64_t kBlock = Accumulator::kBlock;
  alignas(64) typename L::C joined_lo[kBlock * kBlock], joined_hi[kBlock * kBlock];
  for (std::int64_t i = 0; i < n * kBlock; ++i) joined_lo[i] = lo[i % n], joined_hi[i] = hi[i % n];
  constexpr std::int64_t kSideBySide = 8;
  const std::int64_t long_lines = lines / kBlock;
  const std::int64_t stride = n * kBlock * static_cast<std::int64_t>(sizeof(In));
  for (std::int64_t line = 0; line < long_lines; line += kSideBySide) {
    const std::int64_t count = long_lines - line < kSideBySide ? long_lines - line : kSideBySide;
    for (std::int64_t i = 0; i < n * kBlock; i += kBlock)
      extend_columns<L, Accumulator>(x + line * n * kBlock + i, stride, count, 0, joined_lo + i, joined_hi + i);
  }
  for (std::int64_t i = 0; i < n * kBlock; ++i) {
    typename L::C& l = lo[i % n];
    typename L::C& h = hi[i % n];
    l = joined_lo[i] < l ? joined_lo[i] : l;
    h = joined_hi[i] > h ? joined_hi[i] : h;
  }
  return long_lines * kBlock;
}

// Lines whose elements have ranges of their own. Eight lines that share them go side by side, so that the running
// ranges are read and written once for all of them.
template <class L, class In, class Accumulator>
KVANT_INLINE void find_in_columns(const RangeWork& job, const ElementwisePart& part,
                                  const SlotArrays<typename L::C>& slots) {
  using C = typename L::C;
  constexpr std::int64_t kBlock = Accumulator::kBlock;
  constexpr std::int64_t kSideBySide = 8;
  std::int64_t lines = 0;
  for (std::int64_t line = part.first_line; line < part.end_line; line += lines) {
    lines = core::lines_sharing_parameters(job.runs, line);
    if (lines > part.end_line - line) lines = part.end_line - line;
    const std::int64_t shared = lines;
    if (lines > kSideBySide) lines = kSideBySide;
    const In* x = reinterpret_cast<const In*>(job.x + line * job.x_stride) + part.offset;
    const std::int64_t at = core::first_parameter(job.runs, line) + part.offset - slots.first;
    C* lo = slots.lo + at;
    C* hi = slots.hi + at;
    const std::int64_t n = part.count;
    if (n >= kBlock) {
      std::int64_t i = 0;
      for (; i + kBlock <= n; i += kBlock)
        extend_columns<L, Accumulator>(x + i, job.x_stride, lines, job.fetch_ahead, lo + i, hi + i);
      if (i < n)
        extend_columns<L, Accumulator>(x + n - kBlock, job.x_stride, lines, 0, lo + n - kBlock, hi + n - kBlock);
      continue;
    }
    const bool whole_lines = n == job.runs.length && job.x_stride == n * static_cast<std::int64_t>(sizeof(In));
    if (whole_lines && shared >= 2 * kBlock)
      lines = extend_joined_columns<L, Accumulator>(x, shared, n, lo, hi);
    else
      extend_narrow_columns<L, Accumulator>(x, job.x_stride, lines, n, lo, hi);
  }
}

// ---- Kernels --------------------------------------------------------------------------------------------------

template <class L>
KVANT_INLINE void clear(const SlotArrays<typename L::C>& slots) {
  const auto none = semantics::Range<L>::empty();
  for_each_vector<L>(slots.count, [&](std::int64_t i, std::int64_t n) KVANT_INLINE_LAMBDA {
    store_some<L>(slots.lo + i, none.lo, n);
    store_some<L>(slots.hi + i, none.hi, n);
  });
}

template <class L>
KVANT_INLINE bool all_finite(const SlotArrays<typename L::C>& slots) {
  bool finite = true;
  for_each_vector<L>(slots.count, [&](std::int64_t i, std::int64_t n) KVANT_INLINE_LAMBDA {
    const semantics::Range<L> r{load_some<L>(slots.lo + i, n), load_some<L>(slots.hi + i, n)};
    finite = finite && L::all(r.finite());
  });
  return finite;
}

template <class L, class In, class Accumulator>
KVANT_INLINE void find_with(const RangeWork& job, const ElementwisePart& part, const SlotArrays<typename L::C>& slots) {
  clear<L>(slots);
  if (job.runs.run == 1)
    find_in_columns<L, In, Accumulator>(job, part, slots);
  else
    find_in_runs<L, In, Accumulator>(job, part, slots);
}

template <class L, class In>
bool find_ranges(const RangeWork& job, const ElementwisePart& part, const RangeSlots& range_slots) {
  const SlotArrays<typename L::C> slots(range_slots);
  using OfAny = typename RangeOfAny<L, In>::Type;
  find_with<L, In, OfAny>(job, part, slots);
  if (all_finite<L>(slots)) return OfAny::kSeesNan;
  find_with<L, In, FiniteRange<L, In>>(job, part, slots);
  return false;
}

template <class L>
void merge_ranges(const RangeSlots& range_slots, const void* lo, const void* hi) {
  using C = typename L::C;
  const SlotArrays<C> slots(range_slots);
  for_each_vector<L>(slots.count, [&](std::int64_t i, std::int64_t n) KVANT_INLINE_LAMBDA {
    const semantics::Range<L> known{load_some<L>(slots.lo + i, n), load_some<L>(slots.hi + i, n)};
    const semantics::Range<L> other{load_some<L>(static_cast<const C*>(lo) + i, n),
                                    load_some<L>(static_cast<const C*>(hi) + i, n)};
    const semantics::Range<L> merged = known.with(other);
    store_some<L>(slots.lo + i, merged.lo, n);
    store_some<L>(slots.hi + i, merged.hi, n);
  });
}

// The bits of n scales that are codes of one or two bytes.
template <class L>
KVANT_INLINE void store_codes_of_scales(const ScaleSink& scale, std::int64_t first, typename L::I bits,
                                        std::int64_t n) {
  std::int32_t copies[L::kWidth];
  L::put_int(copies, bits);
  for (std::int64_t i = 0; i < n; ++i) {
    if (scale.bytes == 1)
      scale.data[first + i] = static_cast<std::byte>(copies[i]);
    else
      store_unaligned(reinterpret_cast<std::uint16_t*>(scale.data) + first + i, static_cast<std::uint16_t>(copies[i]));
  }
}

template <class L>
void find_parameters(const semantics::RangeRules& rules, const RangeSlots& range_slots, const ScaleSink& scale,
                     std::byte* zero_point) {
  using C = typename L::C;
  const SlotArrays<C> slots(range_slots);
  const typename L::F global = L::set(static_cast<C>(scale.global));
  const bool plain = rules.scale_rule == semantics::ScaleRule::plain;
  for_each_vector<L>(slots.count, [&](std::int64_t i, std::int64_t n) KVANT_INLINE_LAMBDA {
    const semantics::Range<L> r{load_some<L>(slots.lo + i, n), load_some<L>(slots.hi + i, n)};
    const auto p = semantics::parameters_of_range<L>(r, rules, global);
    if (plain)
      store_some<L>(reinterpret_cast<C*>(scale.data) + slots.first + i, p.scale, n);
    else
      store_codes_of_scales<L>(scale, slots.first + i, p.scale_bits, n);
    if (zero_point != nullptr)
      store_some_int<L>(reinterpret_cast<std::int32_t*>(zero_point) + slots.first + i, p.zero_point, n);
  });
}

template <class L>
void report_ranges(const RangeReport& report, const RangeSlots& range_slots) {
  using C = typename L::C;
  using Range = semantics::Range<L>;
  const SlotArrays<C> slots(range_slots);
  const auto at = [&](std::byte* p, std::int64_t i)
                      KVANT_INLINE_LAMBDA { return reinterpret_cast<C*>(p) + slots.first + i; };
  for_each_vector<L>(slots.count, [&](std::int64_t i, std::int64_t n) KVANT_INLINE_LAMBDA {
    Range r{load_some<L>(slots.lo + i, n), load_some<L>(slots.hi + i, n)};
    auto magnitude = semantics::largest_magnitude<L>(r);
    if (report.accumulate) {  // with the old value first, so that a NaN in it loses
      if (report.min != nullptr) r.lo = L::min(load_some<L>(at(report.min, i), n), r.lo);
      if (report.max != nullptr) r.hi = L::max(load_some<L>(at(report.max, i), n), r.hi);
      if (report.max_abs != nullptr) magnitude = L::max(load_some<L>(at(report.max_abs, i), n), magnitude);
    }
    if (report.min != nullptr) store_some<L>(at(report.min, i), semantics::positive_zero<L>(r.lo), n);
    if (report.max != nullptr) store_some<L>(at(report.max, i), semantics::positive_zero<L>(r.hi), n);
    if (report.max_abs != nullptr) store_some<L>(at(report.max_abs, i), semantics::positive_zero<L>(magnitude), n);
  });
}

// ---- The table ------------------------------------------------------------------------------------------------

template <class Isa, class In>
constexpr RangeKernel range_kernel() {
  using C = compute_t<In>;
  using L = typename Isa::template Lanes<C>;
  RangeKernel kernel = {};
  kernel.sku = detail::bit_stable_sku<C>(Isa::kArch, QuantizeKind::range, kind_of<In>, kind_of<C>);
  kernel.prepare = &prepare_range;
  kernel.launch = &launch_range;
  kernel.find = &find_ranges<L, In>;
  kernel.merge = &merge_ranges<L>;
  kernel.parameters = &find_parameters<L>;
  kernel.report = &report_ranges<L>;
  return kernel;
}

template <class Isa>
constexpr auto make_range_kernels() {
  return []<class... In>(TypeList<In...>) {
    return std::array<RangeKernel, sizeof...(In)>{range_kernel<Isa, In>()...};
  }(core::RealTypes{});
}

}  // namespace kvant::cpu
