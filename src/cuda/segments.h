// Which elements share a parameter. A line's index is (outer, middle, inner) in mixed radix (core/runs.h); a parameter
// fixes those digits that move it and leaves the others free, so its segment is one run in each of the lines that the
// free digits make.
#pragma once

#include <cstdint>

#include "core/runs.h"
#include "cuda/cut_segments.h"
#include "cuda/device.h"

namespace kvant::cuda {

struct Segment {
  std::int64_t outer, middle, inner;  // the digits of its first line
  std::int64_t middle_count, inner_count;
  std::int64_t lines;
  std::int64_t run;  // which run of each line

  // The k-th of its lines.
  KVANT_DEVICE std::int64_t line(const detail::Runs& runs, std::int64_t k) const {
    std::int64_t o = outer, m = middle, i = inner;
    if (lines != 1) {
      const std::int64_t rest = inner_count == 1 ? k : k / inner_count;
      i += inner_count == 1 ? 0 : k % inner_count;
      m += middle_count == 1 ? 0 : rest % middle_count;
      o += middle_count == 1 ? rest : rest / middle_count;
    }
    return (o * runs.middle_count + m) * runs.inner_count + i;
  }

  static KVANT_DEVICE Segment of(const detail::Runs& runs, std::int64_t parameter) {
    Segment s{0,        0, 0, runs.middle_count, runs.inner_count, runs.lines / (runs.middle_count * runs.inner_count),
              parameter};
    // Outer steps are multiples of middle ones, and those of inner ones, which are at least the runs of a line.
    if (runs.outer_step != 0) {
      s.outer = s.run / runs.outer_step;
      s.run %= runs.outer_step;
      s.lines = 1;
    }
    if (runs.middle_step != 0) {
      s.middle = s.run / runs.middle_step * runs.group;
      s.run %= runs.middle_step;
      const std::int64_t left = runs.middle_count - s.middle;
      s.middle_count = runs.group < left ? runs.group : left;
    }
    if (runs.inner_step != 0) {
      s.inner = s.run / runs.inner_step;
      s.run %= runs.inner_step;
      s.inner_count = 1;
    }
    s.lines *= s.middle_count * s.inner_count;
    return s;
  }
};

// Part number `index` of [0, size) cut into `parts`, at multiples of `quantum`.
struct Share {
  std::int64_t begin;
  std::int64_t end;

  static KVANT_DEVICE Share of(std::int64_t size, std::int64_t parts, std::int64_t index, std::int64_t quantum) {
    if (parts == 1) return {0, size};
    const std::int64_t step = ((size + parts - 1) / parts + quantum - 1) / quantum * quantum;
    const std::int64_t begin = index * step, end = begin + step;
    return {begin < size ? begin : size, end < size ? end : size};
  }
};

// Pieces of a run begin at multiples of so many elements, which keeps vectors aligned and packed codes in whole bytes.
inline constexpr std::int64_t kPieceQuantum = 1024;

}  // namespace kvant::cuda
