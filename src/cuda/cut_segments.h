// How the segments of a tensor are cut for a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/inline.h"
#include "core/range_kernel.h"
#include "core/runs.h"

namespace kvant::cuda {

// A tensor cut into segments, one for each parameter, and how many partial ranges each is found in.
struct CutSegments {
  detail::Runs runs;
  std::int64_t parameters = 0;
  std::int64_t line_chunks = 1;   // the lines of a segment are cut into so many, times
  std::int64_t piece_chunks = 1;  // the elements of a run into so many
  KVANT_INLINE std::int64_t chunks() const { return line_chunks * piece_chunks; }
};

// In one launch where there are many segments or they are short, in partial ranges elsewhere.
CutSegments cut_segments(const detail::Runs& runs, std::int64_t parameters);

// Both geometries of a tensor, prepared at select().
struct CutTensor {
  CutSegments dense;
  CutSegments with_gaps;
  std::int64_t row_length = 0;
  ElementKind input = ElementKind::f32;

  explicit CutTensor(const detail::SegmentProblem& problem);

  // The workspace is the caller's before the strides are known. Partial ranges begin at a multiple of kAlignment.
  static constexpr std::size_t kAlignment = 256;
  std::size_t workspace_bytes() const;

  const CutSegments& geometry(bool gaps) const { return gaps ? with_gaps : dense; }
  // Bytes from line to line of an operand's rows.
  std::int64_t line_stride(const detail::Runs& runs, ElementKind kind, const detail::Rows& rows) const {
    return runs.length == row_length ? rows.stride : row_bytes(kind, runs.length);
  }
};

// Where partial ranges begin in a workspace.
std::byte* partial_ranges(void* workspace);

}  // namespace kvant::cuda
