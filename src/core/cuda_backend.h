// The CUDA backend as the rest of the library sees it: defined by src/cuda in a build with CUDA, by absent.cc in one
// without, and by the tests with an executor in the place of a GPU.
#pragma once

#include <string_view>

#include "core/device_stream.h"
#include "core/kernel_set.h"
#include "kvant/status.h"

struct CUstream_st;

namespace kvant::cuda {

bool is_built();
Result<detail::DeviceStream> open_stream(CUstream_st* stream);
Status launch_status(std::string_view who, int error);  // ok for 0
int current_device();                                   // -1 where CUDA does not say

// Without kernels in a build without CUDA.
detail::KernelSet kernel_set();

}  // namespace kvant::cuda
