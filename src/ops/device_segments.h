// How the segments of a tensor are cut for a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device_kernel.h"
#include "ops/segments.h"

namespace kvant::ops {

// In one launch where there are many segments or they are short, in partial ranges elsewhere.
detail::DeviceSegments cut_for_device(const detail::Runs& runs, std::int64_t parameters);

// Both geometries of a tensor.
struct DeviceSegmentedTensor {
  detail::DeviceSegments dense;
  detail::DeviceSegments with_gaps;

  // The workspace is the caller's before the strides are known. Partial ranges begin at a multiple of kAlignment.
  static constexpr std::size_t kAlignment = 256;
  std::size_t workspace_bytes(std::size_t compute_bytes) const;
};
DeviceSegmentedTensor cut_for_device(const SegmentedTensor& tensor);

// Where partial ranges begin in a workspace.
std::byte* partial_ranges(void* workspace);

}  // namespace kvant::ops
