#include "cuda/cut_segments.h"

#include <algorithm>

#include "base/divide_up.h"

namespace kvant::cuda {

CutSegments cut_segments(const detail::Runs& runs, std::int64_t parameters) {
  CutSegments s{runs, parameters};
  if (runs.lines == 0 || parameters == 0) return s;
  const std::int64_t runs_in_line = base::divide_up(runs.length, runs.run);
  const std::int64_t lines = base::divide_up(runs.lines, parameters / runs_in_line);  // of a segment
  // So many blocks of 256 threads keep a large GPU busy; each thread should have some work nevertheless.
  constexpr std::int64_t kWantedBlocks = 512, kThreads = 256;
  if (runs.run == 1) {
    constexpr std::int64_t kColumnsOfBlock = 256, kMinLines = 64;
    const std::int64_t blocks = parameters / runs.length * base::divide_up(runs.length, kColumnsOfBlock);
    s.line_chunks = std::clamp<std::int64_t>(lines / kMinLines, 1, base::divide_up(kWantedBlocks, blocks));
    return s;
  }
  // A thread takes some 16 elements of a run at once; where runs are short, a block takes several of them.
  constexpr std::int64_t kElementsOfThread = 16, kMinElements = 32, kMaxChunks = 1024;
  const std::int64_t teams =
      std::clamp<std::int64_t>(kThreads * kElementsOfThread / runs.run, 1, kThreads);  // of a block
  const std::int64_t wanted = std::min(kMaxChunks, base::divide_up(kWantedBlocks * teams, parameters));
  const std::int64_t least = kMinElements * kThreads / teams;
  const std::int64_t chunks = std::clamp<std::int64_t>(lines * runs.run / least, 1, wanted);
  s.line_chunks = std::min(chunks, lines);
  s.piece_chunks = base::divide_up(chunks, s.line_chunks);
  return s;
}

CutTensor::CutTensor(const detail::SegmentProblem& p) : row_length(p.shape.row_length()), input(p.input) {
  const std::int64_t parameters = *p.parameter_shape.element_count();
  const detail::Runs row_runs = core::row_runs(p.shape, p.scope);
  // Packed rows that end inside a byte have a gap.
  const bool whole_bytes = !p.output || fills_bytes(*p.output, row_length);
  dense = cut_segments(whole_bytes ? core::dense_runs(p.shape, p.scope) : row_runs, parameters);
  with_gaps = cut_segments(row_runs, parameters);
}

std::size_t CutTensor::workspace_bytes() const {
  const auto compute_bytes = static_cast<std::size_t>(row_bytes(scale_kind(input), 1));
  const auto bytes = [&](const CutSegments& s) {
    return s.chunks() == 1 ? 0 : 2 * static_cast<std::size_t>(s.chunks() * s.parameters) * compute_bytes + kAlignment;
  };
  return std::max(bytes(dense), bytes(with_gaps));
}

std::byte* partial_ranges(void* workspace) {
  const auto address = reinterpret_cast<std::uintptr_t>(workspace);
  return static_cast<std::byte*>(workspace) +
         (CutTensor::kAlignment - address % CutTensor::kAlignment) % CutTensor::kAlignment;
}

}  // namespace kvant::cuda
