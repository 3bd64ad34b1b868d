#include "ops/device_segments.h"

#include <algorithm>

#include "base/divide_up.h"
#include "core/runs.h"

namespace kvant::ops {

using base::divide_up;

detail::DeviceSegments cut_for_device(const detail::Runs& runs, std::int64_t parameters) {
  detail::DeviceSegments s{runs, parameters};
  if (runs.lines == 0 || parameters == 0) return s;
  const std::int64_t runs_in_line = divide_up(runs.length, runs.run);
  const std::int64_t lines = divide_up(runs.lines, parameters / runs_in_line);  // of a segment
  // So many blocks of 256 threads keep a large GPU busy; each thread should have some work nevertheless.
  constexpr std::int64_t kWantedBlocks = 512, kThreads = 256;
  if (runs.run == 1) {
    constexpr std::int64_t kColumnsOfBlock = 256, kLeastLines = 64;
    const std::int64_t blocks = parameters / runs.length * divide_up(runs.length, kColumnsOfBlock);
    s.line_chunks = std::clamp<std::int64_t>(lines / kLeastLines, 1, divide_up(kWantedBlocks, blocks));
    return s;
  }
  // A thread takes some 16 elements of a run at once; where runs are short, a block takes several of them.
  constexpr std::int64_t kElementsOfThread = 16, kLeastElements = 32, kMostChunks = 1024;
  const std::int64_t teams =
      std::clamp<std::int64_t>(kThreads * kElementsOfThread / runs.run, 1, kThreads);  // of a block
  const std::int64_t wanted = std::min(kMostChunks, divide_up(kWantedBlocks * teams, parameters));
  const std::int64_t least = kLeastElements * kThreads / teams;
  const std::int64_t chunks = std::clamp<std::int64_t>(lines * runs.run / least, 1, wanted);
  s.line_chunks = std::min(chunks, lines);
  s.piece_chunks = divide_up(chunks, s.line_chunks);
  return s;
}

DeviceSegmentedTensor cut_for_device(const SegmentedTensor& tensor) {
  return {cut_for_device(tensor.dense.runs, tensor.dense.parameters),
          cut_for_device(tensor.with_gaps.runs, tensor.with_gaps.parameters)};
}

std::size_t DeviceSegmentedTensor::workspace_bytes(std::size_t compute_bytes) const {
  const auto bytes = [&](const detail::DeviceSegments& s) {
    return s.chunks() == 1 ? 0 : 2 * static_cast<std::size_t>(s.chunks() * s.parameters) * compute_bytes + kAlignment;
  };
  return std::max(bytes(dense), bytes(with_gaps));
}

std::byte* partial_ranges(void* workspace) {
  constexpr std::uintptr_t kAlignment = DeviceSegmentedTensor::kAlignment;
  const auto address = reinterpret_cast<std::uintptr_t>(workspace);
  return static_cast<std::byte*>(workspace) + (kAlignment - address % kAlignment) % kAlignment;
}

}  // namespace kvant::ops
