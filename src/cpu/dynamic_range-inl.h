// Dynamic-range quantization in one pass over memory, compiled once for each instruction set. While the codes of one
// batch of runs are made out of the cache, the ranges of the next batch are found as it comes out of memory, block by
// block in the same loop: in two loops after each other either the memory or the arithmetic stands still. (f32 to s8
// in rows of 4096 on Zen 3: 0.68 of the limit in two loops, whatever was fetched ahead, and 0.89 in one.)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/guarantee.h"
#include "core/type_lists.h"
#include "cpu/dynamic_range_kernel.h"
#include "cpu/lines-inl.h"
#include "cpu/operators-inl.h"
#include "cpu/range-inl.h"

namespace kvant::cpu {

// Some consecutive runs of one line; the last one may be shorter. No runs: past the end of the part.
struct Batch {
  std::int64_t line;
  std::int64_t offset;
  std::int64_t elements;
  std::int64_t runs;
  std::int64_t first_parameter;
};

// What else is done with the block of the next batch that lies where a block of this one does: its range.
template <class L, class In>
struct RangeAhead {
  using Accumulator = typename RangeOfAny<L, In>::Type;
  static constexpr std::int64_t kBlock = 4 * L::kWidth;
  const In* x;
  Accumulator* all;

  KVANT_INLINE RangeAhead operator+(std::int64_t n) const { return {x + n, all}; }
  KVANT_INLINE void block(std::int64_t i, std::int64_t fetch_ahead) const {
    if (fetch_ahead != 0) fetch_block<kBlock>(x + i, fetch_ahead);
    all->add(x + i);
  }
  // The last `rest` of n elements.
  KVANT_INLINE void tail(std::int64_t n, std::int64_t rest) const {
    if (n >= kBlock) return all->add(x + n - kBlock);
    In copies[kBlock];
    for (std::int64_t i = 0; i < kBlock; ++i) copies[i] = load_unaligned(x + n - rest + (i < rest ? i : 0));
    all->add(copies);
  }
};
template <class L, class In>
struct NothingAhead {
  KVANT_INLINE NothingAhead operator+(std::int64_t) const { return {}; }
  KVANT_INLINE void block(std::int64_t, std::int64_t) const {}
  KVANT_INLINE void tail(std::int64_t, std::int64_t) const {}
};

// The codes of some neighbours that share their parameters. Not inlined: packed and whole codes share it.
template <class L, class Op, class Body, class Ahead>
KVANT_NOINLINE void quantize_stretch(const ElementwiseWork& job, const RunParameters<L>& given,
                                     const typename Op::Span& s, std::int64_t n, const Ahead& ahead, bool stream) {
  const auto own = work_of<Body>(job);
  const auto p = parameters_of_run<Body>(own, given);
  using Span = typename Op::Span;
  constexpr std::int64_t kBlock = 4 * L::kWidth;
  for_each_whole_block<L>(s, n, {stream, 0}, [&](const Span& block, std::int64_t i, bool st) KVANT_INLINE_LAMBDA {
    ahead.block(i, own.fetch_ahead);
    Body::block(own, p, block, st);
  });
  const std::int64_t rest = n % kBlock;
  if (rest <= 0) return;
  ahead.tail(n, rest);
  for_rest<L>(s, n,
              [&](const Span& block, std::int64_t, bool st) KVANT_INLINE_LAMBDA { Body::block(own, p, block, st); });
}

// The codes of whole runs of whole blocks and, in the same loop, the ranges of as many runs ahead: short runs feel
// every instruction that is not about their elements.
template <class L, class Op, class Body>
KVANT_NOINLINE void quantize_whole_blocks(const ElementwiseWork& job, const ParameterTable<L>& table,
                                          typename Op::Span s, const typename Op::In* ahead, std::int64_t run,
                                          std::int64_t runs, bool stream, semantics::Range<L>* folded) {
  using Accumulator = typename RangeOfAny<L, typename Op::In>::Type;
  constexpr std::int64_t kBlock = 4 * L::kWidth;
  const auto own = work_of<Body>(job);
  const std::int64_t fetch_ahead = own.fetch_ahead;
  for (std::int64_t i = 0; i < runs; ++i) {
    const auto p = parameters_of_run<Body>(own, RunParameters<L>(table, i));
    Accumulator all = Accumulator::first(ahead);
    const auto* end = s.x + run;
    for (;;) {
      if (fetch_ahead != 0) fetch_block<kBlock>(ahead, fetch_ahead);
      Body::block(own, p, s, stream);
      s = s + kBlock;
      ahead += kBlock;
      if (s.x == end) break;
      all.add(ahead);
    }
    folded[i] = all.folded();
  }
}

// The ranges of runs from x on, the last one of which may be shorter. Not inlined: all codes share it.
template <class L, class Accumulator, class In>
KVANT_NOINLINE void find_runs(const In* x, std::int64_t run, std::int64_t elements, std::int64_t fetch_ahead,
                              semantics::Range<L>* folded) {
  for (; elements > 0; elements -= run, x += run, ++folded)
    *folded = accumulate_stretch<L, Accumulator>(x, elements < run ? elements : run, fetch_ahead).folded();
}

// What a buffer of codes has beyond its last: a block of packed codes may reach there.
template <class L, class Code, bool kPacked = kIsPacked<Code>>
inline constexpr std::int64_t kStageRoom = kPackBlock<L, Code>;
template <class L, class Code>
inline constexpr std::int64_t kStageRoom<L, Code, false> = 1;

// Code is one as kernels see it in memory (core::in_memory_t), CodeByte what it is computed in.
template <class L, class In, class Code, class CodeByte>
class OwnRangeQuantizer {
 public:
  KVANT_INLINE OwnRangeQuantizer(const DynamicRangeWork& job, const ElementwisePart& part)
      : job_(job), part_(part), run_(job.any->runs.run), whole_batch_(batch_runs(run_) * run_) {}

  KVANT_INLINE void run() {
    Batch batch = batch_at(part_.first_line, part_.offset);
    find_from(batch, 0);
    while (batch.runs != 0) {
      const ElementwiseWork& job = finish(batch);
      const Batch next = batch_after(batch);
      const bool walked = Op::template with_ordinary_body<kIsPacked<Code>>(
          job, table_.flags, [&](auto body) KVANT_INLINE_LAMBDA { walk<decltype(body)>(job, batch, next); });
      if (!walked) job_.quantize->run(job, {batch.line, batch.line + 1, batch.offset, batch.elements});
      find_from(next, walked ? batch.runs : 0);
      batch = next;
    }
  }

 private:
  using C = typename L::C;
  using Out = CodeByte;
  using Op = typename decltype(body_of<QuantizeKind::quantize, L, In, Out>())::type;
  using Span = Stretch<In, Out>;
  using Range = semantics::Range<L>;
  using Accumulator = typename RangeOfAny<L, In>::Type;
  static constexpr std::int64_t kBlock = 4 * L::kWidth;
  static_assert(Accumulator::kBlock == kBlock);
  static constexpr std::int64_t kMaxRuns = 32;
  static_assert(kMaxRuns % L::kWidth == 0);
  static constexpr std::int64_t kBatchElements = 4096;  // of several runs

  // ---- Batches ----

  static KVANT_INLINE std::int64_t batch_runs(std::int64_t run) {
    const std::int64_t runs = kBatchElements / run;
    return runs < 1 ? 1 : runs < kMaxRuns ? runs : kMaxRuns;
  }
  KVANT_INLINE Batch batch_at(std::int64_t line, std::int64_t offset) const {
    if (line >= part_.end_line) return {};
    const std::int64_t rest = part_.offset + part_.count - offset;
    const std::int64_t elements = rest < whole_batch_ ? rest : whole_batch_;
    return {line, offset, elements, elements <= run_ ? 1 : (elements + run_ - 1) / run_,
            core::first_parameter(job_.any->runs, line) + (offset == 0 ? 0 : offset / run_)};
  }
  KVANT_INLINE Batch batch_after(const Batch& b) const {
    const std::int64_t end = b.offset + b.elements;
    return end < part_.offset + part_.count ? batch_at(b.line, end) : batch_at(b.line + 1, part_.offset);
  }
  KVANT_INLINE const In* input(const Batch& b, std::int64_t i) const {
    return reinterpret_cast<const In*>(job_.any->x + b.line * job_.any->x_stride) + b.offset + i * run_;
  }
  KVANT_INLINE std::int64_t length(const Batch& b, std::int64_t i) const {
    const std::int64_t rest = b.elements - i * run_;
    return rest < run_ ? rest : run_;
  }

  // ---- Ranges ----

  // The ranges of runs from number i on.
  KVANT_INLINE void find_from(const Batch& b, std::int64_t i) {
    if (i < b.runs)
      find_runs<L, Accumulator>(input(b, i), run_, b.elements - i * run_, job_.any->fetch_ahead, folded_ + i);
  }
  KVANT_INLINE void find_finite(const Batch& b) {
    find_runs<L, FiniteRange<L, In>>(input(b, 0), run_, b.elements, 0, folded_);
  }
  KVANT_INLINE void fold(std::int64_t runs, C* lo, C* hi) const {
    if (runs == 1) {
      lo[0] = L::least(folded_[0].lo);
      hi[0] = L::greatest(folded_[0].hi);
      return;
    }
    // Ranges beyond the last are left over from earlier batches, and nobody reads what they fold to.
    for (std::int64_t i = 0; i < runs; i += L::kWidth) {
      const Range each = L::transpose_fold(folded_ + i);
      L::put(lo + i, each.lo);
      L::put(hi + i, each.hi);
    }
  }

  // Scales and zero points of a batch whose ranges were found, to the caller and into the table. Returns the job for
  // its elements.
  KVANT_INLINE const ElementwiseWork& finish(const Batch& b) {
    alignas(64) C lo[kMaxRuns], hi[kMaxRuns];
    const RangeSlots slots{lo, hi, b.first_parameter, b.runs};
    fold(b.runs, lo, hi);
    const bool finite = all_finite<L>(SlotArrays<C>(slots));
    if (!finite) {
      find_finite(b);
      fold(b.runs, lo, hi);
    }
    find_parameters<L>(*job_.rules, slots, job_.scale, job_.zero_point);
    if (b.runs == 1)
      table_.fill_one(*job_.any, b.first_parameter);
    else
      table_.template fill_by_call<Order::natural>(*job_.any, b.first_parameter, b.runs);
    return finite && Accumulator::kSeesNan ? *job_.finite : *job_.any;
  }

  // ---- Codes, and ranges on the way ----

  // The codes of a batch, and the ranges of as many runs of the next. Packed codes are staged where the batch fits.
  template <class Body>
  KVANT_INLINE void walk(const ElementwiseWork& job, const Batch& b, const Batch& next) {
    std::byte* out = job.out + b.line * job.out_stride + byte_offset<Code>(b.offset);
    const bool staged = kIsPacked<Code> && b.elements <= kStaged;
    Out* codes = reinterpret_cast<Out*>(kIsPacked<Code> ? reinterpret_cast<std::byte*>(staged_) : out);
    const bool stream = job.stream && !kIsPacked<Code>;
    const bool whole_blocks = run_ % kBlock == 0 && b.elements == next.elements && b.elements == b.runs * run_;
    if (whole_blocks && (staged || !kIsPacked<Code>)&&(!stream || can_stream<L>(codes))) {
      quantize_whole_blocks<L, Op, Body>(job, table_, {input(b, 0), nullptr, codes}, input(next, 0), run_, b.runs,
                                         stream, folded_);
    } else {
      for (std::int64_t i = 0; i < b.runs; ++i) {
        const RunParameters<L> p(table_, i);
        const std::int64_t n = length(b, i);
        const Span s{input(b, i), nullptr, codes + i * run_};
        if (i < next.runs && n == run_ && length(next, i) == run_) {
          Accumulator all = Accumulator::empty();
          walk_run<Body>(job, p, s, out, n, RangeAhead<L, In>{input(next, i), &all});
          folded_[i] = all.folded();
        } else {
          walk_run<Body>(job, p, s, out, n, NothingAhead<L, In>{});
          if (i < next.runs) find_runs<L, Accumulator>(input(next, i), run_, length(next, i), 0, folded_ + i);
        }
      }
    }
    if (staged) pack(job, out, b.elements);
  }

  // One run. Packed codes that do not fit the stage are packed piece by piece into `out`; other codes begin with a head
  // in plain stores where that lets the rest be streamed.
  template <class Body, class Also>
  KVANT_INLINE void walk_run(const ElementwiseWork& job, const RunParameters<L>& p, Span s, std::byte* out,
                             std::int64_t n, Also also) {
    if constexpr (kIsPacked<Code>) {
      for (std::int64_t done = 0, count = 0; done < n; done += count) {
        count = n - done < kStaged ? n - done : kStaged;
        quantize_stretch<L, Op, Body>(job, p, {s.x + done, nullptr, s.out}, count, also + done, false);
        if (n > kStaged) pack(job, out + byte_offset<Code>(done), count);
      }
    } else {
      std::int64_t head = 0;
      if (job.stream && n >= 16 * kBlock && !can_stream<L>(s.out)) {
        head = elements_until_streamable<L>(s.out, n);
        if (head != 0) quantize_stretch<L, Op, Body>(job, p, s, head, also, false);
      }
      s = s + head;
      quantize_stretch<L, Op, Body>(job, p, s, n - head, also + head, job.stream && can_stream<L>(s.out));
    }
  }

  KVANT_INLINE void pack(const ElementwiseWork& job, std::byte* out, std::int64_t n) {
    if constexpr (kIsPacked<Code>) {
      std::uint8_t* packed = reinterpret_cast<std::uint8_t*>(out);
      pack_codes<L, Code>(staged_, packed, n, job.stream && can_stream<L>(packed));
    }
  }

  static constexpr std::int64_t kStaged = kIsPacked<Code> ? kBatchElements : 0;

  const DynamicRangeWork& job_;
  const ElementwisePart& part_;
  const std::int64_t run_;
  const std::int64_t whole_batch_;
  Range folded_[kMaxRuns] = {};  // the range of each run, still spread over a vector
  ParameterTable<L> table_;
  alignas(64) std::uint8_t staged_[kStaged + kStageRoom<L, Code>];
};

template <class L, class In, class Code, class CodeByte>
void quantize_with_own_range(const DynamicRangeWork& job, const ElementwisePart& part) {
  OwnRangeQuantizer<L, In, Code, CodeByte>(job, part).run();
}

// ---- The table ------------------------------------------------------------------------------------------------

template <class Isa, class F, class Code>
constexpr DynamicRangeKernel dynamic_range_kernel() {
  using L = typename Isa::template Lanes<compute_t<F>>;
  DynamicRangeKernel kernel = {};
  kernel.sku =
      detail::bit_stable_sku<compute_t<F>>(Isa::kArch, QuantizeKind::dynamic_range_quantize, kind_of<F>, kind_of<Code>);
  kernel.prepare = &prepare_dynamic_range;
  kernel.launch = &launch_dynamic_range;
  kernel.run = &quantize_with_own_range<L, F, core::in_memory_t<Code>, core::unpacked_t<Code>>;
  return kernel;
}

template <class Isa>
constexpr auto make_dynamic_range_kernels() {
  std::array<DynamicRangeKernel, core::RealTypes::kSize * core::CodeTypes::kSize> all{};
  std::size_t n = 0;
  core::for_each_type(core::RealTypes{}, [&]<class F>(TypeList<F>) {
    core::for_each_type(core::CodeTypes{},
                        [&]<class Code>(TypeList<Code>) { all[n++] = dynamic_range_kernel<Isa, F, Code>(); });
  });
  return all;
}

}  // namespace kvant::cpu
