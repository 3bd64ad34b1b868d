// The kernels that find ranges and make codes in one launch, or make codes from the partial ranges of another.
#pragma once

#include "cuda/cut_segments.h"
#include "cuda/operators.h"
#include "cuda/range.cuh"
#include "semantics/smoothing.h"

namespace kvant::cuda {

// What becomes of the ranges.
struct Codes {
  std::byte* out = nullptr;
  std::int64_t out_stride = 0;
  Sink sink = {};  // of parameters; its partial ranges where there are some
  Settings settings = {};
  const std::byte* divisor = nullptr;  // of the elements of a run, before anything else; null: none
  bool is_static = false;              // parameters are given
  double static_scale = 1;
  int static_zero_point = 0;
};

// Elements on their way in, divided by their divisors.
template <class T, int N>
KVANT_DEVICE void load_divided(const std::byte* line, const std::byte* divisor, std::int64_t first, int count,
                               compute_t<T> (&x)[N]) {
  using C = compute_t<T>;
  using L = DeviceLanes<C>;
  load_chunk<T, N>(line, first, count, x);
  if (divisor == nullptr) return;
  C d[N];
  load_chunk<C, N>(divisor, first, count, d);
  KVANT_UNROLL
  for (int i = 0; i < N; ++i) x[i] = semantics::smoothed<L>(x[i], d[i]);
}

// One team for each segment, or for each chunk of one. The second reading comes from the caches.
template <class T, class Code>
KVANT_KERNEL void KVANT_BLOCK(kThreads, 2) dynamic_runs_kernel(const RunsProblem problem, const Codes codes) {
  using C = compute_t<T>;
  using Op = Quantize<T, Code>;
  using L = typename Op::L;
  constexpr int N = kChunk<T, Code>;
  constexpr int kUnit = kPerByte<Code>;
  const Team team{problem.team_size};
  const std::int64_t chunks = problem.segments.chunks();
  const std::int64_t units = problem.segments.parameters * chunks;
  const std::int64_t step = static_cast<std::int64_t>(device::grid_size().x) * team.teams_in_block();
  // All threads of a block go round together, since merging is done by all.
  for (std::int64_t first = static_cast<std::int64_t>(device::block_index().x) * team.teams_in_block(); first < units;
       first += step) {
    const std::int64_t index = first + team.index_in_block();
    const bool mine = index < units;
    RunsUnit unit = {};
    if (mine) unit = RunsUnit::of(problem.segments, index);
    semantics::ScaleAndZeroPoint<L> p{static_cast<C>(codes.static_scale), codes.static_zero_point, 0};
    if (!codes.is_static) {
      semantics::Range<L> r = semantics::Range<L>::empty();
      if (mine && chunks == 1) {
        for_each_chunk<T, N, kUnit>(problem, unit, team, [&](std::int64_t line, std::int64_t begin, int count) {
          C x[N];
          load_divided<T, N>(problem.x + line * problem.x_stride, codes.divisor, begin, count, x);
          r = extended<L, N>(r, x, count);
        });
      } else if (mine) {
        for (std::int64_t chunk = team.rank(); chunk < chunks; chunk += team.size)
          r = r.with(codes.sink.partials<C>().template load<L>(chunk, unit.parameter));
      }
      r = team.merge<L>(r);
      p = codes.sink.parameters_of<L>(r);
      if (mine && unit.chunk == 0 && team.rank() == 0) codes.sink.finish<L>(unit.parameter, r);
    }
    if (!mine) continue;
    const auto prepared = semantics::prepare<L>(p.scale, p.zero_point, codes.settings.q_min, codes.settings.q_max);
    for_each_chunk<T, N, kUnit>(problem, unit, team, [&](std::int64_t line, std::int64_t begin, int count) {
      C x[N];
      int q[N];
      load_divided<T, N>(problem.x + line * problem.x_stride, codes.divisor, begin, count, x);
      apply<Op, N>(prepared, codes.settings, x, x, q);
      store_chunk<Code, N>(codes.out + line * codes.out_stride, begin, count, q);
    });
  }
}

// Columns of one thread: a chunk, but no more than registers can hold the ranges of.
template <class T, class Code>
inline constexpr int kOwnColumns = kChunk<T, Code> < 16 ? kChunk<T, Code> : 16;

// A block for some columns of a class of lines: their ranges from all lines, or from partial ones, then the codes of
// its share of the lines.
template <class T, class Code>
KVANT_KERNEL void KVANT_BLOCK(kThreads, 2)
    dynamic_columns_kernel(const ColumnsProblem problem, const Codes codes, const std::int64_t shares) {
  using C = compute_t<T>;
  using Op = Quantize<T, Code>;
  using L = typename Op::L;
  constexpr int N = kOwnColumns<T, Code>;
  const detail::Runs& runs = problem.segments.runs;
  const Settings& settings = codes.settings;
  const auto block = ColumnsBlock<C, N>::here();
  const std::int64_t chunks = problem.segments.chunks();
  const std::int64_t tiles = (runs.length + N * block.wide - 1) / (N * block.wide);
  const std::int64_t units = problem.classes() * shares * tiles;
  for (std::int64_t index = device::block_index().x; index < units; index += device::grid_size().x) {
    const auto unit = ColumnsUnit::of<N>(runs, shares, tiles, block.wide, block.column, index);
    const std::int64_t parameter = unit.one_class * runs.length + unit.first;
    semantics::Range<L> r[N];
    KVANT_UNROLL
    for (int i = 0; i < N; ++i) r[i] = semantics::Range<L>::empty();
    if (chunks == 1) {
      extend_columns<T, L, N>(problem, unit, Share{0, unit.segment.lines}, block.slice, block.high, r);
    } else if (unit.count != 0) {
      const Partials<C> partials = codes.sink.partials<C>();
      for (std::int64_t chunk = block.slice; chunk < chunks; chunk += block.high) {
        C lo[N], hi[N];
        load_chunk<C, N>(partials.lo(chunk, parameter), 0, unit.count, lo);
        load_chunk<C, N>(partials.hi(chunk, parameter), 0, unit.count, hi);
        KVANT_UNROLL
        for (int i = 0; i < N; ++i) r[i] = r[i].with(semantics::Range<L>{lo[i], hi[i]});
      }
    }
    block.template merge<L>(r, [&](int i, const semantics::Range<L>& merged) {
      const auto p = codes.sink.parameters_of<L>(merged);
      const auto prepared = semantics::prepare<L>(p.scale, p.zero_point, settings.q_min, settings.q_max);
      device::shared_store<C>(block.slot(0, i, 0), settings.reciprocal ? prepared.inverse : prepared.scale);
      device::shared_store<std::int32_t>(block.slot(0, i, 1), prepared.zero_point);
      if (i < unit.count && unit.share == 0) codes.sink.finish<L>(parameter + i, merged);
    });
    C scale[N];  // or its inverse
    int zero_point[N];
    KVANT_UNROLL
    for (int i = 0; i < N; ++i) {
      scale[i] = device::shared_load<C>(block.slot(0, i, 0));
      zero_point[i] = device::shared_load<std::int32_t>(block.slot(0, i, 1));
    }
    if (unit.count != 0) {
      const Share share = Share::of(unit.segment.lines, shares, unit.share, 1);
      for (std::int64_t k = share.begin + block.slice; k < share.end; k += block.high) {
        const std::int64_t line = unit.segment.line(runs, k);
        C x[N];
        int q[N];
        load_chunk<T, N>(problem.x + line * problem.x_stride, unit.first, unit.count, x);
        if (settings.reciprocal) {
          KVANT_UNROLL
          for (int i = 0; i < N; ++i)
            q[i] = Op::with_quotient(semantics::Multiply<L>{scale[i]}, zero_point[i], settings, x[i]);
        } else {
          KVANT_UNROLL
          for (int i = 0; i < N; ++i)
            q[i] = Op::with_quotient(semantics::Divide<L>{scale[i]}, zero_point[i], settings, x[i]);
        }
        store_chunk<Code, N>(codes.out + line * codes.out_stride, unit.first, unit.count, q);
      }
    }
    device::sync_block();  // before somebody writes again
  }
}

}  // namespace kvant::cuda
