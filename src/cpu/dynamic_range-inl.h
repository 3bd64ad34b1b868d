// Dynamic-range quantization in one pass over memory, compiled once for each instruction set. While the codes of one
// batch of runs are made out of the cache, the ranges of the next batch are found as it comes out of memory, block by
// block in the same loop: in two loops after each other either the memory or the arithmetic stands still. (f32 to s8
// in rows of 4096 on Zen 3: 0.68 of the limit in two loops, whatever was fetched ahead, and 0.89 in one.)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/dynamic_range_kernel.h"
#include "cpu/elementwise-inl.h"
#include "cpu/range-inl.h"

namespace kvant::cpu {

using detail::DynamicRangeJob;
using detail::DynamicRangeKernel;

// Some consecutive runs of one line; the last one may be shorter. No runs: past the end of the part.
struct Batch {
  std::int64_t line;
  std::int64_t offset;
  std::int64_t elements;
  std::int64_t runs;
  std::int64_t first_parameter;
};

template <class L, class In, class Code>
class OwnRangeQuantizer {
 public:
  KVANT_INLINE OwnRangeQuantizer(const DynamicRangeJob& job, const ElementwisePart& part)
      : job_(job), part_(part), run_(job.any->runs->run), whole_batch_(batch_runs(run_) * run_) {}

  KVANT_INLINE void run() {
    Batch batch = batch_at(part_.first_line, part_.offset);
    find_from(batch, 0);
    while (batch.runs != 0) {
      const ElementwiseJob& job = finish(batch);
      const Batch next = batch_after(batch);
      Op::with_body(job, table_.flags, [&](auto body) KVANT_INLINE_LAMBDA { walk<decltype(body)>(job, batch, next); });
      find_from(next, batch.runs);
      batch = next;
    }
  }

 private:
  using C = typename L::C;
  using Out = Unpacked<Code>;
  using Op = Quantize<L, In, Out>;
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
            core::first_parameter(*job_.any->runs, line) + (offset == 0 ? 0 : offset / run_)};
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
    for (; i < b.runs; ++i)
      folded_[i] = accumulate_stretch<L, Accumulator>(input(b, i), length(b, i), job_.any->fetch_ahead).folded();
  }
  KVANT_INLINE void find_finite(const Batch& b) {
    for (std::int64_t i = 0; i < b.runs; ++i)
      folded_[i] = accumulate_stretch<L, FiniteRange<L, In>>(input(b, i), length(b, i), 0).folded();
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
  KVANT_INLINE const ElementwiseJob& finish(const Batch& b) {
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
      table_.template fill<Order::natural>(*job_.any, b.first_parameter, b.runs);
    return finite && Accumulator::kSeesNan ? *job_.finite : *job_.any;
  }

  // ---- Codes, and ranges on the way ----

  // The codes of a batch, and the ranges of as many runs of the next.
  template <class Body>
  KVANT_INLINE void walk(const ElementwiseJob& job, const Batch& b, const Batch& next) {
    std::byte* out = job.out + b.line * job.out_stride + byte_offset<Code>(b.offset);
    if constexpr (!kIsPacked<Code>) {
      const bool whole_blocks = run_ % kBlock == 0 && b.elements == next.elements && b.elements == b.runs * run_;
      if (whole_blocks && (!job.stream || can_stream<L>(out)))
        return walk_whole_blocks<Body>(job, b, next, reinterpret_cast<Out*>(out));
    }
    for (std::int64_t i = 0; i < b.runs; ++i) {
      const RunParameters<L> p(table_, i);
      const std::int64_t n = length(b, i);
      Out* codes = reinterpret_cast<Out*>(kIsPacked<Code> ? reinterpret_cast<std::byte*>(staged_) : out) + i * run_;
      if (i < next.runs && n == run_ && length(next, i) == run_) {
        Accumulator all = Accumulator::empty();
        walk_run<Body>(job, p, {input(b, i), nullptr, codes}, out, n, Ahead{input(next, i), &all});
        folded_[i] = all.folded();
      } else {
        walk_run<Body>(job, p, {input(b, i), nullptr, codes}, out, n, Nothing{});
        if (i < next.runs) folded_[i] = accumulate_stretch<L, Accumulator>(input(next, i), length(next, i), 0).folded();
      }
    }
    if constexpr (kIsPacked<Code>) {
      if (b.elements <= kStaged) pack(job, out, b.elements);
    }
  }

  // The same where nothing needs a tail: short runs feel every instruction that is not about their elements.
  template <class Body>
  KVANT_INLINE void walk_whole_blocks(const ElementwiseJob& job, const Batch& b, const Batch& next, Out* out) {
    const In* x = input(b, 0);
    const In* ahead = input(next, 0);
    const std::int64_t fetch_ahead = job.fetch_ahead;
    const bool stream = job.stream;
    for (std::int64_t i = 0; i < b.runs; ++i) {
      const RunParameters<L> p(table_, i);
      Accumulator all = Accumulator::first(ahead);
      const In* end = x + run_;
      for (;;) {
        if (fetch_ahead != 0) fetch_block<kBlock>(ahead, fetch_ahead);
        Body::block(job, p, Span{x, nullptr, out}, stream);
        x += kBlock, ahead += kBlock, out += kBlock;
        if (x == end) break;
        all.add(ahead);
      }
      folded_[i] = all.folded();
    }
  }

  // What else is done with the block of the next batch that lies where a block of this one does.
  struct Ahead {
    const In* x;
    Accumulator* all;
    KVANT_INLINE Ahead operator+(std::int64_t n) const { return {x + n, all}; }
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
  struct Nothing {
    KVANT_INLINE Nothing operator+(std::int64_t) const { return {}; }
    KVANT_INLINE void block(std::int64_t, std::int64_t) const {}
    KVANT_INLINE void tail(std::int64_t, std::int64_t) const {}
  };

  // One run. Packed codes that do not fit the stage are packed piece by piece into `out`; other codes begin with a head
  // in plain stores where that lets the rest be streamed.
  template <class Body, class Also>
  KVANT_INLINE void walk_run(const ElementwiseJob& job, const RunParameters<L>& p, Span s, std::byte* out,
                             std::int64_t n, Also also) {
    if constexpr (kIsPacked<Code>) {
      for (std::int64_t done = 0, count = 0; done < n; done += count) {
        count = n - done < kStaged ? n - done : kStaged;
        walk_stretch<Body>(job, p, {s.x + done, nullptr, s.out}, count, also + done, false);
        if (n > kStaged) pack(job, out + done / 2, count);
      }
    } else {
      std::int64_t head = 0;
      if (job.stream && n >= 16 * kBlock && !can_stream<L>(s.out)) {
        head = elements_until_streamable<L>(s.out, n);
        if (head != 0) walk_stretch<Body>(job, p, s, head, also, false);
      }
      s = s + head;
      walk_stretch<Body>(job, p, s, n - head, also + head, job.stream && can_stream<L>(s.out));
    }
  }

  template <class Body, class Also>
  KVANT_INLINE void walk_stretch(const ElementwiseJob& job, const RunParameters<L>& p, const Span& s, std::int64_t n,
                                 const Also& also, bool stream) {
    for_each_whole_block<L>(s, n, {stream, 0}, [&](const Span& block, std::int64_t i, bool st) KVANT_INLINE_LAMBDA {
      also.block(i, job.fetch_ahead);
      Body::block(job, p, block, st);
    });
    const std::int64_t rest = n % kBlock;
    if (rest <= 0) return;
    also.tail(n, rest);
    for_each_block<L>(s + (n - rest), rest, {false, 0},
                      [&](const Span& block, std::int64_t, bool st)
                          KVANT_INLINE_LAMBDA { Body::block(job, p, block, st); });
  }

  KVANT_INLINE void pack(const ElementwiseJob& job, std::byte* out, std::int64_t n) {
    std::uint8_t* packed = reinterpret_cast<std::uint8_t*>(out);
    pack_nibbles<L>(staged_, packed, n, job.stream && can_stream<L>(packed));
  }

  static constexpr std::int64_t kStaged = kIsPacked<Code> ? kBatchElements : 0;

  const DynamicRangeJob& job_;
  const ElementwisePart& part_;
  const std::int64_t run_;
  const std::int64_t whole_batch_;
  Range folded_[kMaxRuns] = {};  // the range of each run, still spread over a vector
  ParameterTable<L> table_;
  alignas(64) std::uint8_t staged_[kStaged + L::kNibbleBlock];
};

template <class L, class In, class Code>
void quantize_with_own_range(const DynamicRangeJob& job, const ElementwisePart& part) {
  OwnRangeQuantizer<L, In, Code>(job, part).run();
}

// ---- The table ------------------------------------------------------------------------------------------------

template <class Isa, class F, class Code>
constexpr DynamicRangeKernel dynamic_range_kernel(ArchSku arch) {
  return {elementwise_sku<F>(QuantizeKind::dynamic_range_quantize, kind_of<F>, kind_of<Code>, arch),
          &quantize_with_own_range<typename Isa::template Lanes<compute_t<F>>, F, Code>};
}

template <class Isa, class F, class... Code>
constexpr std::array<DynamicRangeKernel, sizeof...(Code)> dynamic_range_kernels_of(ArchSku arch, Types<Code...>) {
  return {{dynamic_range_kernel<Isa, F, Code>(arch)...}};
}

template <class Isa, class... F>
constexpr auto make_dynamic_range_kernels(ArchSku arch, Types<F...>) {
  std::array<DynamicRangeKernel, sizeof...(F) * 4> all{};
  std::size_t n = 0;
  const auto append = [&](const auto& kernels) {
    for (const DynamicRangeKernel& kernel : kernels) all[n++] = kernel;
  };
  (append(dynamic_range_kernels_of<Isa, F>(arch, CodeTypes{})), ...);
  return all;
}

template <class Isa>
constexpr auto make_dynamic_range_kernels(ArchSku arch) {
  return make_dynamic_range_kernels<Isa>(arch, FloatTypes{});
}

}  // namespace kvant::cpu
