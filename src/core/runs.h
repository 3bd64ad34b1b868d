// Runs: granularity as data. A tensor is walked as `lines` contiguous stretches of `length` elements. Inside a
// line, `run` neighbours share a scale and a zero point (the line's last run may be shorter); element j of line i
// uses parameter first_parameter(i) + j / run. A run of 1 means that every element has its own.
//
// The five granularities as dense runs, for a shape [outer…, axis, inner…] with a row of D elements; blocks of r × c,
// at most a matrix, in [outer…, R, C]:
//
//   tensor         one line of all elements, one run
//   channel        outer lines of C * inner elements in runs of inner; parameters start anew in each line
//   token          one line of all elements in runs of D
//   group, last    one line in runs of the group size, or rows as lines where the last group is ragged
//   group, outer   outer * K lines of inner elements, runs of 1; `group` consecutive lines share parameters
//   block, 1 × c   groups of c along the last axis
//   block, r × C   groups of r * C elements along matrices of R * C
//   block, r × c   outer * R lines of C elements, runs of c; `group` = r consecutive lines share parameters
//
// Where rows have gaps (a row stride, or packed rows of odd length) lines are rows and the index of a line is
// read in mixed radix (outer, middle, inner) to find its parameters.
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "kvant/elementwise.h"
#include "kvant/granularity.h"
#include "kvant/tensor.h"

namespace kvant::core {

using detail::Runs;

// Inlined even without optimisation: kernels for several instruction sets call it.
KVANT_INLINE std::int64_t first_parameter(const Runs& runs, std::int64_t line) {
  if (line == 0) return 0;  // most problems have one line, and a division costs as much as a block of elements
  const std::int64_t rest = line / runs.inner_count;
  return rest / runs.middle_count * runs.outer_step + rest % runs.middle_count / runs.group * runs.middle_step +
         line % runs.inner_count * runs.inner_step;
}

// How many lines from `line` on, itself included, use the same parameters.
KVANT_INLINE std::int64_t lines_sharing_parameters(const Runs& runs, std::int64_t line) {
  const bool all = runs.outer_step == 0 && runs.middle_step == 0 && runs.inner_step == 0;
  if (all) return runs.lines - line;
  if (runs.group == 1 || runs.inner_count != 1) return 1;
  const std::int64_t middle = line % runs.middle_count;
  const std::int64_t in_group = runs.group - middle % runs.group;
  const std::int64_t in_middle = runs.middle_count - middle;
  return in_group < in_middle ? in_group : in_middle;
}

// `shape` and `granularity` have passed parameter_shape(). Shapes without elements have no lines.
Runs dense_runs(const Shape& shape, const Granularity& granularity);
Runs row_runs(const Shape& shape, const Granularity& granularity);

}  // namespace kvant::core
