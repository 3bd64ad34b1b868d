// How the segments of a tensor are visited to find their ranges, with work for many threads and little memory traffic.
//
// A *unit* is the least number of consecutive lines (core/runs.h) whose parameters no other line uses: one line per
// token, `group` lines for groups over an outer axis and for blocks, all lines per tensor. Inside a unit whose lines
// begin with the same parameter, stretches of whole runs are independent too.
//
// Cells: where independent pieces fit the cache, each is read, its ranges become final, and whatever comes next (the
//   codes) is done while it is hot.
// Split: where they do not, parts of a unit (chunks of lines × pieces of a line) find partial ranges into the
//   workspace, then partial ranges are merged for each parameter.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/divide_up.h"
#include "base/float_environment.h"
#include "core/range_kernel.h"
#include "core/runs.h"
#include "cpu/partition.h"
#include "cpu/range_kernel.h"
#include "kvant/granularity.h"
#include "kvant/stream.h"

namespace kvant::cpu {

// At most this many parameters are finished at once, in arrays on the stack.
inline constexpr std::int64_t kMaxCellParameters = 2048;

struct Cells {
  std::int64_t count = 0;            // 0: the segments do not fit, split them
  std::int64_t units = 1;            // whole units in a cell, or
  std::int64_t pieces_per_unit = 1;  // above 1: a cell is one piece of one unit's lines
  std::int64_t piece = 0;            // elements of a line in a cell
};

struct Split {
  std::int64_t chunk_lines = 0;
  std::int64_t chunks = 0;  // of one unit, or one for each unit
  std::int64_t pieces = 1;  // of a line
  std::int64_t piece = 0;
  std::int64_t chunk_slots = 0;  // slots of a chunk; piece k begins k slots later than its first parameter says, so
                                 // that two pieces of one run have a slot each
};

// The plan for one geometry (dense, or with gaps between rows).
struct Segments {
  detail::Runs runs;
  std::int64_t elements = 0;
  std::int64_t parameters = 0;
  std::int64_t unit_lines = 0;
  std::int64_t unit_period = 0;  // lines after which units begin anew; the last unit before may be shorter
  std::int64_t units = 0;
  std::int64_t unit_parameters = 0;
  bool lines_begin_alike = false;  // all lines of a unit begin with the same parameter
  Cells cells;
  Split split;

  // The lines of a unit.
  ElementwisePart unit(std::int64_t index) const {
    const std::int64_t per_period = (unit_period + unit_lines - 1) / unit_lines;
    const std::int64_t period = index / per_period * unit_period;
    const std::int64_t first = period + index % per_period * unit_lines;
    return {first, std::min(first + unit_lines, period + unit_period), 0, runs.length};
  }

  // Pieces of work in a split: chunks of the only unit, or units.
  std::int64_t split_chunks() const { return units == 1 ? split.chunks : units; }
  // Partial ranges in the workspace: so many lower ends, then as many upper ends, both beginning on a cache line.
  std::int64_t partial_slots() const {
    return cells.count != 0 ? 0 : (split_chunks() * split.chunk_slots + 15) / 16 * 16;
  }
};

// The plans for a tensor with its parameters, in both geometries.
struct SegmentedTensor {
  Segments dense;      // when the rows of every operand follow each other
  Segments with_gaps;  // when those of some do not
  std::int64_t row_length = 0;
  ElementKind input = ElementKind::f32;

  explicit SegmentedTensor(const detail::SegmentProblem& problem);

  // The workspace is the caller's before the strides are known.
  std::size_t workspace_bytes() const;
  std::size_t compute_bytes() const { return static_cast<std::size_t>(row_bytes(scale_kind(input), 1)); }

  const Segments& geometry(bool gaps) const { return gaps ? with_gaps : dense; }

  // Bytes from line to line of an operand's rows.
  std::int64_t line_stride(const detail::Runs& runs, ElementKind kind, const detail::Rows& rows) const {
    return runs.length == row_length ? rows.stride : row_bytes(kind, runs.length);
  }
  // A tensor to look through; `large`: it comes out of memory.
  RangeWork range_work(const Segments& segments, const detail::Rows& x, bool large) const;
};

// Arrays on the stack for the ranges of one cell.
struct CellRanges {
  alignas(64) double lo[kMaxCellParameters];
  alignas(64) double hi[kMaxCellParameters];
};

// One visit. `Consumer` has
//   void finished(const RangeSlots&) const               ranges that are final
//   void hot(const ElementwisePart&, bool finite) const  a cell whose ranges were just finished, in the cache; finite:
//                                                        all of its elements are known to be
//   void part_done() const                               after the cells of one part
// They are called on the stream's threads, with the default floating-point environment.
template <class Consumer>
class SegmentVisit {
 public:
  SegmentVisit(const Segments& segments, const RangeKernel& kernel, const RangeWork& job, std::size_t compute_bytes,
               void* workspace, const Consumer& consumer)
      : segments_(segments),
        kernel_(kernel),
        job_(job),
        compute_bytes_(static_cast<std::int64_t>(compute_bytes)),
        partial_(aligned(workspace)),
        consumer_(consumer) {}

  Status run(const Stream& stream) {
    if (segments_.elements == 0) return finish_empty(stream);
    if (segments_.cells.count != 0) return run_cells(stream);
    const std::int64_t parts = segments_.split_chunks() * segments_.split.pieces;
    if (Status s = stream.parallel_for(parts, Task(&find_part, this)); !s.ok()) return s;
    return stream.parallel_for(base::divide_up(segments_.parameters, kMaxCellParameters), Task(&finish_part, this));
  }

  // After a split: all elements are known to be finite.
  bool finite() const { return finite_.load(std::memory_order_relaxed); }

 private:
  // Leaves ranges empty.
  static constexpr ElementwisePart kNothing{0, 0, 0, 0};

  static std::byte* aligned(void* workspace) {
    constexpr std::uintptr_t kLine = 64;
    const auto address = reinterpret_cast<std::uintptr_t>(workspace);
    return static_cast<std::byte*>(workspace) + (kLine - address % kLine) % kLine;
  }

  // Segments without elements have parameters nevertheless.
  Status finish_empty(const Stream& stream) {
    return stream.parallel_for(base::divide_up(segments_.parameters, kMaxCellParameters), Task(&empty_part, this));
  }
  static void empty_part(const void* context, std::int64_t index) {
    const auto& self = *static_cast<const SegmentVisit*>(context);
    const base::DefaultFloatEnvironment environment;
    CellRanges ranges;
    const std::int64_t first = index * kMaxCellParameters;
    const std::int64_t count = std::min(kMaxCellParameters, self.segments_.parameters - first);
    const RangeSlots slots{ranges.lo, ranges.hi, first, count};
    self.kernel_.find(self.job_, kNothing, slots);
    self.consumer_.finished(slots);
  }

  // ---- Cells ----

  Status run_cells(const Stream& stream) {
    const std::int64_t cells = segments_.cells.count;
    const bool alone = stream.threads() == 1 || segments_.elements < kParallelElements;
    const std::int64_t cell_elements = std::max<std::int64_t>(1, segments_.elements / cells);
    cells_per_part_ =
        alone ? cells : std::max<std::int64_t>(1, wanted_part(segments_.elements, stream.threads()) / cell_elements);
    return stream.parallel_for(base::divide_up(cells, cells_per_part_), Task(&cell_part, this));
  }

  static void cell_part(const void* context, std::int64_t index) {
    const auto& self = *static_cast<const SegmentVisit*>(context);
    const base::DefaultFloatEnvironment environment;
    CellRanges ranges;
    const std::int64_t first = index * self.cells_per_part_;
    const std::int64_t end = std::min(first + self.cells_per_part_, self.segments_.cells.count);
    for (std::int64_t cell = first; cell < end; ++cell) self.visit_cell(cell, ranges);
    self.consumer_.part_done();
  }

  void visit_cell(std::int64_t index, CellRanges& ranges) const {
    const Segments& s = segments_;
    ElementwisePart part;
    RangeSlots slots{ranges.lo, ranges.hi, 0, 0};
    if (s.cells.pieces_per_unit == 1) {
      const std::int64_t first = index * s.cells.units;
      const std::int64_t last = std::min(first + s.cells.units, s.units) - 1;
      part = s.unit(first);
      part.end_line = s.unit(last).end_line;
      slots.first = first * s.unit_parameters;
      slots.count = (last - first + 1) * s.unit_parameters;
    } else {
      const std::int64_t unit = index / s.cells.pieces_per_unit;
      part = s.unit(unit);
      part.offset = index % s.cells.pieces_per_unit * s.cells.piece;
      part.count = std::min(s.cells.piece, s.runs.length - part.offset);
      slots.first = unit * s.unit_parameters + part.offset / s.runs.run;
      slots.count = base::divide_up(part.count, s.runs.run);
    }
    const bool finite = kernel_.find(job_, part, slots);
    consumer_.finished(slots);
    consumer_.hot(part, finite);
  }

  // ---- Split ----

  std::byte* lo_slot(std::int64_t slot) const { return partial_ + slot * compute_bytes_; }
  std::byte* hi_slot(std::int64_t slot) const { return partial_ + (segments_.partial_slots() + slot) * compute_bytes_; }

  static void find_part(const void* context, std::int64_t index) {
    const auto& self = *static_cast<const SegmentVisit*>(context);
    const base::DefaultFloatEnvironment environment;
    const Segments& s = self.segments_;
    const std::int64_t chunk = index / s.split.pieces;
    const std::int64_t k = index % s.split.pieces;
    const std::int64_t unit = s.units == 1 ? 0 : chunk;
    ElementwisePart part = s.unit(unit);
    if (s.units == 1) {
      part.first_line = chunk * s.split.chunk_lines;
      part.end_line = std::min(part.first_line + s.split.chunk_lines, s.runs.lines);
    }
    std::int64_t first = 0;
    std::int64_t count = s.unit_parameters;
    if (s.split.pieces > 1) {
      part.offset = k * s.split.piece;
      part.count = std::min(s.split.piece, s.runs.length - part.offset);
      first = part.offset / s.runs.run;
      count = (part.offset + part.count - 1) / s.runs.run - first + 1;
    }
    const std::int64_t slot = chunk * s.split.chunk_slots + first + k;
    const bool finite = self.kernel_.find(
        self.job_, part, {self.lo_slot(slot), self.hi_slot(slot), unit * s.unit_parameters + first, count});
    if (!finite) self.finite_.store(false, std::memory_order_relaxed);
  }

  // Merges the partial ranges of up to kMaxCellParameters parameters.
  static void finish_part(const void* context, std::int64_t index) {
    const auto& self = *static_cast<const SegmentVisit*>(context);
    const base::DefaultFloatEnvironment environment;
    const Segments& s = self.segments_;
    CellRanges ranges;
    std::int64_t first = index * kMaxCellParameters;
    const std::int64_t end = std::min(first + kMaxCellParameters, s.parameters);
    while (first < end) {  // parameters of one unit at a time
      const std::int64_t unit = first / s.unit_parameters;
      const std::int64_t count = std::min(end, (unit + 1) * s.unit_parameters) - first;
      const RangeSlots slots{ranges.lo, ranges.hi, first, count};
      self.kernel_.find(self.job_, kNothing, slots);
      const std::int64_t first_chunk = s.units == 1 ? 0 : unit;
      const std::int64_t end_chunk = s.units == 1 ? s.split.chunks : unit + 1;
      for (std::int64_t chunk = first_chunk; chunk < end_chunk; ++chunk)
        self.merge_chunk(chunk, first - unit * s.unit_parameters, slots);
      self.consumer_.finished(slots);
      first += count;
    }
  }

  void merge_chunk(std::int64_t chunk, std::int64_t first, const RangeSlots& slots) const {
    const Segments& s = segments_;
    const std::int64_t base = chunk * s.split.chunk_slots + first;
    if (s.split.pieces == 1) return kernel_.merge(slots, lo_slot(base), hi_slot(base));
    for (std::int64_t i = 0; i < slots.count; ++i) {
      const RangeSlots one{static_cast<std::byte*>(slots.lo) + i * compute_bytes_,
                           static_cast<std::byte*>(slots.hi) + i * compute_bytes_, slots.first + i, 1};
      const std::int64_t begin = (first + i) * s.runs.run;
      const std::int64_t last = std::min(begin + s.runs.run, s.runs.length) - 1;
      for (std::int64_t k = begin / s.split.piece; k <= last / s.split.piece; ++k)
        kernel_.merge(one, lo_slot(base + i + k), hi_slot(base + i + k));
    }
  }

  const Segments& segments_;
  const RangeKernel& kernel_;
  const RangeWork& job_;
  std::int64_t compute_bytes_;
  std::byte* partial_;
  const Consumer& consumer_;
  std::int64_t cells_per_part_ = 1;
  mutable std::atomic<bool> finite_{true};
};

}  // namespace kvant::cpu
