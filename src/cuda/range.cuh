// The kernels that find ranges, and what the dynamic-range kernels share with them.
//
// Two shapes of segments: *runs*, contiguous stretches that a team of threads goes through, and *columns* (runs of one
// element), where every thread owns some neighbouring columns and goes down the lines. Where segments are too few or
// too long for one pass, parts of them find partial ranges into the workspace, [2][chunks][parameters] numbers, lower
// ends first, and whoever needs a parameter merges its partial ranges.
#pragma once

#include "cuda/chunk.h"
#include "cuda/cut_segments.h"
#include "cuda/lanes.h"
#include "cuda/parameters.h"
#include "cuda/segments.h"
#include "cuda/team.h"
#include "semantics/dynamic_range.h"

namespace kvant::cuda {

// ---- Partial ranges -------------------------------------------------------------------------------------------

template <class C>
struct Partials {
  std::byte* data;
  std::int64_t chunks;
  std::int64_t parameters;

  KVANT_DEVICE std::byte* lo(std::int64_t chunk, std::int64_t parameter) const {
    return data + (chunk * parameters + parameter) * static_cast<std::int64_t>(sizeof(C));
  }
  KVANT_DEVICE std::byte* hi(std::int64_t chunk, std::int64_t parameter) const { return lo(chunks + chunk, parameter); }

  template <class L>
  KVANT_DEVICE semantics::Range<L> load(std::int64_t chunk, std::int64_t parameter) const {
    return {device::load<C>(lo(chunk, parameter)), device::load<C>(hi(chunk, parameter))};
  }
};

// ---- Where ranges go ------------------------------------------------------------------------------------------

enum class SinkKind { partials, report, parameters, global_scale };

// Everything that a range can become.
struct Sink {
  SinkKind kind = SinkKind::partials;
  std::byte* partial = nullptr;
  std::int64_t chunks = 1;
  std::int64_t parameters = 0;
  // report
  std::byte* min = nullptr;
  std::byte* max = nullptr;
  std::byte* max_abs = nullptr;
  bool accumulate = false;
  // parameters
  semantics::RangeRules rules = {};
  std::byte* scale = nullptr;
  std::byte* zero_point = nullptr;
  // The global scale over scales of e4m3, as in detail::Scales.
  const std::byte* global_data = nullptr;
  float global = 1;

  template <class C>
  KVANT_DEVICE Partials<C> partials() const {
    return {partial, chunks, parameters};
  }

  template <class L>
  KVANT_DEVICE semantics::ScaleAndZeroPoint<L> parameters_of(const semantics::Range<L>& r) const {
    return semantics::parameters_of_range<L>(r, rules, static_cast<typename L::C>(global_scale(global_data, global)));
  }

  // A range that is final.
  template <class L>
  KVANT_DEVICE void finish(std::int64_t parameter, semantics::Range<L> r) const {
    using C = typename L::C;
    const std::int64_t at = parameter * static_cast<std::int64_t>(sizeof(C));
    if (kind == SinkKind::parameters) {
      const semantics::ScaleAndZeroPoint<L> p = parameters_of<L>(r);
      if (rules.scale_rule == semantics::ScaleRule::plain)
        device::store<C>(scale + at, p.scale);
      else if (rules.scale_rule == semantics::ScaleRule::f16 || rules.scale_rule == semantics::ScaleRule::bf16)
        device::store<std::uint16_t>(scale + parameter * 2, static_cast<std::uint16_t>(p.scale_bits));
      else
        device::store<std::uint8_t>(scale + parameter, static_cast<std::uint8_t>(p.scale_bits));
      if (zero_point != nullptr) device::store<std::int32_t>(zero_point + parameter * 4, p.zero_point);
      return;
    }
    C magnitude = semantics::largest_magnitude<L>(r);
    if (kind == SinkKind::global_scale)
      return device::store<float>(scale, semantics::nvfp4_global_scale(magnitude, rules.q_max));
    if (accumulate) {  // with the old value first, so that a NaN in it loses
      if (min != nullptr) r.lo = L::min(device::load<C>(min + at), r.lo);
      if (max != nullptr) r.hi = L::max(device::load<C>(max + at), r.hi);
      if (max_abs != nullptr) magnitude = L::max(device::load<C>(max_abs + at), magnitude);
    }
    if (min != nullptr) device::store<C>(min + at, semantics::positive_zero<L>(r.lo));
    if (max != nullptr) device::store<C>(max + at, semantics::positive_zero<L>(r.hi));
    if (max_abs != nullptr) device::store<C>(max_abs + at, semantics::positive_zero<L>(magnitude));
  }

  // The range of one chunk of a segment.
  template <class L>
  KVANT_DEVICE void put(std::int64_t chunk, std::int64_t parameter, const semantics::Range<L>& r) const {
    using C = typename L::C;
    if (kind != SinkKind::partials) return finish<L>(parameter, r);
    device::store<C>(partials<C>().lo(chunk, parameter), r.lo);
    device::store<C>(partials<C>().hi(chunk, parameter), r.hi);
  }
};

// ---- Runs -----------------------------------------------------------------------------------------------------

// A tensor of segments that are runs, cut into units: (segment, chunk).
struct RunsProblem {
  const std::byte* x;
  std::int64_t x_stride;
  CutSegments segments;
  unsigned team_size;
};

// One unit: some lines of a segment by a piece of its run.
struct RunsUnit {
  std::int64_t parameter;
  std::int64_t chunk;
  Segment segment;
  Share lines;     // of the segment
  Share elements;  // of each of them

  static KVANT_DEVICE RunsUnit of(const CutSegments& s, std::int64_t index) {
    RunsUnit u;
    const std::int64_t chunks = s.chunks();
    u.parameter = chunks == 1 ? index : index / chunks;
    u.chunk = chunks == 1 ? 0 : index % chunks;
    u.segment = Segment::of(s.runs, u.parameter);
    u.lines = Share::of(u.segment.lines, s.line_chunks, s.piece_chunks == 1 ? u.chunk : u.chunk / s.piece_chunks, 1);
    const std::int64_t begin = u.segment.run * s.runs.run;
    const std::int64_t left = s.runs.length - begin;
    const Share piece = Share::of(left < s.runs.run ? left : s.runs.run, s.piece_chunks,
                                  s.piece_chunks == 1 ? 0 : u.chunk % s.piece_chunks, kPieceQuantum);
    u.elements = {begin + piece.begin, begin + piece.end};
    return u;
  }
};

// f(line, first, count) for this thread's chunks of N elements of a unit.
template <class T, int N, int kUnit, class Function>
KVANT_DEVICE void for_each_chunk(const RunsProblem& problem, const RunsUnit& unit, const Team& team,
                                 const Function& f) {
  for (std::int64_t k = unit.lines.begin; k < unit.lines.end; ++k) {
    const std::int64_t line = unit.segment.line(problem.segments.runs, k);
    const auto cut =
        Cut<T, N>::template make<kUnit>(problem.x + line * problem.x_stride, unit.elements.begin, unit.elements.end);
    const std::int64_t chunks = cut.chunks();
    for (std::int64_t chunk = team.rank(); chunk < chunks; chunk += team.size)
      f(line, cut.first(chunk), cut.count(chunk));
  }
}

// Extends a range by the first `count` numbers.
template <class L, int N>
KVANT_DEVICE semantics::Range<L> extended(semantics::Range<L> r, const typename L::C (&x)[N], int count) {
  KVANT_UNROLL
  for (int i = 0; i < N; ++i) {
    const semantics::Range<L> with = r.with_finite(x[i]);
    if (i < count) r = with;
  }
  return r;
}

template <class T>
KVANT_KERNEL void KVANT_BLOCK(kThreads, 3) range_runs_kernel(const RunsProblem problem, const Sink sink) {
  using L = DeviceLanes<compute_t<T>>;
  constexpr int N = 128 / kBits<T>;
  const Team team{problem.team_size};
  const std::int64_t units = problem.segments.parameters * problem.segments.chunks();
  const std::int64_t step = static_cast<std::int64_t>(device::grid_size().x) * team.teams_in_block();
  // All threads of a block go round together, since merging is done by all.
  for (std::int64_t first = static_cast<std::int64_t>(device::block_index().x) * team.teams_in_block(); first < units;
       first += step) {
    const std::int64_t index = first + team.index_in_block();
    RunsUnit unit = {};
    semantics::Range<L> r = semantics::Range<L>::empty();
    if (index < units) {
      unit = RunsUnit::of(problem.segments, index);
      for_each_chunk<T, N, 1>(problem, unit, team, [&](std::int64_t line, std::int64_t begin, int count) {
        compute_t<T> x[N];
        load_chunk<T, N>(problem.x + line * problem.x_stride, begin, count, x);
        r = extended<L, N>(r, x, count);
      });
    }
    r = team.merge<L>(r);
    if (index < units && team.rank() == 0) sink.put<L>(unit.chunk, unit.parameter, r);
  }
}

// ---- Columns --------------------------------------------------------------------------------------------------

// A tensor whose segments are columns of some lines: `classes` sets of lines, each with `length` parameters.
struct ColumnsProblem {
  const std::byte* x;
  std::int64_t x_stride;
  CutSegments segments;

  KVANT_DEVICE std::int64_t classes() const { return segments.parameters / segments.runs.length; }
};

// A block's threads stand in a rectangle: x along chunks of N neighbouring columns, y along shares of the lines, which
// meet in shared memory. Both sizes are the launch's, so that few columns leave no thread idle.
template <class C, int N>
struct ColumnsBlock {
  unsigned wide, high;     // threads
  unsigned column, slice;  // this one

  static KVANT_DEVICE ColumnsBlock here() {
    return {device::block_size().x, device::block_size().y, device::thread_index().x, device::thread_index().y};
  }
  static constexpr unsigned shared_bytes() { return static_cast<unsigned>(2 * kThreads * N * sizeof(C)); }

  // Where slice y keeps the lower or upper end of column i of this thread's: neighbours next to each other, and the
  // same distance from column to column in every launch, so that it is part of the instructions.
  KVANT_DEVICE unsigned slot(unsigned y, int i, unsigned end) const {
    return static_cast<unsigned>(((static_cast<unsigned>(i) * 2 + end) * kThreads + y * wide + column) * sizeof(C));
  }
  template <class L>
  KVANT_DEVICE semantics::Range<L> kept(unsigned y, int i) const {
    return {device::shared_load<C>(slot(y, i, 0)), device::shared_load<C>(slot(y, i, 1))};
  }

  // f(i, the range of all slices of column i) by one thread for each column, which may keep what it likes in the slots
  // of slice 0. Called by all threads, between barriers.
  template <class L, class Function>
  KVANT_DEVICE void merge(const semantics::Range<L> (&r)[N], const Function& f) const {
    KVANT_UNROLL
    for (int i = 0; i < N; ++i) {
      device::shared_store<C>(slot(slice, i, 0), r[i].lo);
      device::shared_store<C>(slot(slice, i, 1), r[i].hi);
    }
    device::sync_block();
    for (int i = static_cast<int>(slice); i < N; i += static_cast<int>(high)) {
      semantics::Range<L> merged = kept<L>(0, i);
      for (unsigned y = 1; y < high; ++y) merged = merged.with(kept<L>(y, i));
      f(i, merged);
    }
    device::sync_block();
  }
};

// A piece of the work of a block: some columns (`tile`) of a class of lines, by one share of those lines.
struct ColumnsUnit {
  std::int64_t one_class;
  std::int64_t share;
  std::int64_t first;  // column of this thread
  int count;           // of its columns
  Segment segment;     // of the first column: all of the class have the same lines

  template <int N>
  static KVANT_DEVICE ColumnsUnit of(const detail::Runs& runs, std::int64_t shares, std::int64_t tiles, unsigned wide,
                                     unsigned column, std::int64_t index) {
    ColumnsUnit u;
    const std::int64_t tile = index % tiles, rest = index / tiles;
    u.share = rest % shares;
    u.one_class = rest / shares;
    u.first = (tile * wide + column) * N;
    const std::int64_t left = runs.length - u.first;
    u.count = left <= 0 ? 0 : left < N ? static_cast<int>(left) : N;
    u.segment = Segment::of(runs, u.one_class * runs.length);
    return u;
  }
};

// Extends the ranges of N columns by the lines of a share, every `step`-th from `offset` on.
template <class T, class L, int N>
KVANT_DEVICE void extend_columns(const ColumnsProblem& problem, const ColumnsUnit& unit, const Share& share,
                                 unsigned offset, unsigned step, semantics::Range<L> (&r)[N]) {
  if (unit.count == 0) return;
  const detail::Runs& runs = problem.segments.runs;
  for (std::int64_t k = share.begin + offset; k < share.end; k += step) {
    compute_t<T> x[N];
    load_chunk<T, N>(problem.x + unit.segment.line(runs, k) * problem.x_stride, unit.first, unit.count, x);
    KVANT_UNROLL
    for (int i = 0; i < N; ++i) r[i] = r[i].with_finite(x[i]);
  }
}

// Columns of one thread that looks for ranges only.
template <class T>
inline constexpr int kRangeColumns = 128 / kBits<T>;

template <class T>
KVANT_KERNEL void KVANT_BLOCK(kThreads, 2) range_columns_kernel(const ColumnsProblem problem, const Sink sink) {
  using L = DeviceLanes<compute_t<T>>;
  constexpr int N = kRangeColumns<T>;
  const detail::Runs& runs = problem.segments.runs;
  const auto block = ColumnsBlock<compute_t<T>, N>::here();
  const std::int64_t tiles = (runs.length + N * block.wide - 1) / (N * block.wide);
  const std::int64_t chunks = problem.segments.line_chunks;
  const std::int64_t units = problem.classes() * chunks * tiles;
  for (std::int64_t index = device::block_index().x; index < units; index += device::grid_size().x) {
    const auto unit = ColumnsUnit::of<N>(runs, chunks, tiles, block.wide, block.column, index);
    const Share share = Share::of(unit.segment.lines, chunks, unit.share, 1);
    semantics::Range<L> r[N];
    KVANT_UNROLL
    for (int i = 0; i < N; ++i) r[i] = semantics::Range<L>::empty();
    extend_columns<T, L, N>(problem, unit, share, block.slice, block.high, r);
    block.template merge<L>(r, [&](int i, const semantics::Range<L>& merged) {
      if (i < unit.count) sink.put<L>(unit.share, unit.one_class * runs.length + unit.first + i, merged);
    });
  }
}

// ---- Finishing ------------------------------------------------------------------------------------------------

// Merges the partial ranges of every parameter, one warp for each; no chunks: the segments are empty.
template <class C>
KVANT_KERNEL void KVANT_BLOCK(kThreads, 4) finish_ranges_kernel(const Sink sink) {
  using L = DeviceLanes<C>;
  const Team team{kWarp};
  const std::int64_t step = static_cast<std::int64_t>(device::grid_size().x) * team.teams_in_block();
  for (std::int64_t first = static_cast<std::int64_t>(device::block_index().x) * team.teams_in_block();
       first < sink.parameters; first += step) {
    const std::int64_t p = first + team.index_in_block();
    semantics::Range<L> r = semantics::Range<L>::empty();
    if (p < sink.parameters)
      for (std::int64_t chunk = team.rank(); chunk < sink.chunks; chunk += team.size)
        r = r.with(sink.partials<C>().template load<L>(chunk, p));
    r = team.merge<L>(r);
    if (p < sink.parameters && team.rank() == 0) sink.finish<L>(p, r);
  }
}

}  // namespace kvant::cuda
