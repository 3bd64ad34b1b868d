// What the front desks hand to a GPU's kernels, and the lists of kernels they choose from. Pointers are to device
// memory, naturally aligned; everything else is copied into the launch. An `enqueue` puts its launches on the stream
// and returns 0, or an error for cuda::launch_status().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/inline.h"
#include "core/device_stream.h"
#include "kvant/element.h"
#include "kvant/elementwise.h"
#include "kvant/plan.h"
#include "kvant/sku.h"
#include "kvant/status.h"
#include "semantics/dynamic_range.h"

struct CUstream_st;

namespace kvant::detail {

// A tensor in device memory, or, where `data` is null, one number.
struct DeviceScales {
  const std::byte* data = nullptr;  // of the compute type
  double value = 1;                 // what the compute type holds
};
struct DeviceZeroPoints {
  const std::byte* data = nullptr;  // int32
  std::int32_t value = 0;
};

// ---- Element-wise ----

// As ElementwiseJob (core/elementwise_kernel.h), for all of the tensor.
struct DeviceElementwiseJob {
  const std::byte* x = nullptr;
  const std::byte* dy = nullptr;
  std::byte* out = nullptr;
  std::int64_t x_stride = 0;
  std::int64_t dy_stride = 0;
  std::int64_t out_stride = 0;
  DeviceScales scale;
  DeviceZeroPoints zero_point;
  std::int32_t q_min = 0;
  std::int32_t q_max = 0;
  Numerics numerics = Numerics::exact;
  Runs runs;
};

struct DeviceElementwiseKernel {
  KernelSku sku;
  int (*enqueue)(const DeviceStream& stream, const DeviceElementwiseJob& job);
};

// ---- Ranges ----

// A tensor cut into segments, one for each parameter, and how many partial ranges each is found in.
struct DeviceSegments {
  Runs runs;
  std::int64_t parameters = 0;
  std::int64_t line_chunks = 1;   // the lines of a segment are cut into so many, times
  std::int64_t piece_chunks = 1;  // the elements of a run into so many
  KVANT_INLINE std::int64_t chunks() const { return line_chunks * piece_chunks; }
};

struct DeviceRangeJob {
  const std::byte* x = nullptr;
  std::int64_t x_stride = 0;
  DeviceSegments segments;
  std::byte* partial = nullptr;  // 2 * chunks * parameters numbers of the compute type where chunks > 1
  // Where the ranges go; null where nobody asked.
  std::byte* min = nullptr;
  std::byte* max = nullptr;
  std::byte* max_abs = nullptr;
  bool accumulate = false;
};

struct DeviceRangeKernel {
  KernelSku sku;
  int (*enqueue)(const DeviceStream& stream, const DeviceRangeJob& job);
};

struct DeviceDynamicRangeJob {
  const std::byte* x = nullptr;
  std::byte* out = nullptr;
  std::int64_t x_stride = 0;
  std::int64_t out_stride = 0;
  DeviceSegments segments;
  std::byte* partial = nullptr;
  std::byte* scale = nullptr;       // written
  std::byte* zero_point = nullptr;  // written; null: not wanted
  semantics::RangeRules rules = {};
  Numerics numerics = Numerics::exact;
  const DeviceElementwiseKernel* quantize = nullptr;  // of the same kinds
};

// The activations of a linear layer: rows of `length`, each with a range of its own or all with one scale, divided by
// `divisor` first.
struct DeviceTokenJob {
  const std::byte* x = nullptr;
  std::byte* out = nullptr;  // s8
  std::int64_t x_stride = 0;
  std::int64_t out_stride = 0;
  std::int64_t rows = 0;
  std::int64_t length = 0;
  const std::byte* divisor = nullptr;  // null: none
  bool is_static = false;
  double static_scale = 1;
  std::int32_t static_zero_point = 0;
  std::byte* scale = nullptr;       // written unless static
  std::byte* zero_point = nullptr;  // the same
  semantics::RangeRules rules = {};
  Numerics numerics = Numerics::exact;
};

struct DeviceDynamicRangeKernel {
  KernelSku sku;
  int (*enqueue)(const DeviceStream& stream, const DeviceDynamicRangeJob& job);
  int (*enqueue_tokens)(const DeviceStream& stream, const DeviceTokenJob& job);  // null unless the codes are s8
};

// ---- Linear layers ----

// y[m, n] = (act_scale[m] * weight_scale[n]) * Σ (a - act_zero_point[m]) * (w - weight_zero_point[n]) + bias[n];
// include/kvant/linear.h has the contract, core/linear_kernel.h the CPU's form of it.
struct DeviceLinearJob {
  std::int64_t rows = 0;     // M, at least 1
  std::int64_t columns = 0;  // N, at least 1
  std::int64_t depth = 0;    // K, may be 0
  const std::byte* activation = nullptr;
  std::int64_t activation_stride = 0;  // bytes
  bool activation_is_unsigned = false;
  const std::byte* weight = nullptr;
  std::int64_t weight_stride = 0;  // bytes
  bool weight_is_unsigned = false;
  DeviceScales act_scale;              // one for each row, or one for all
  DeviceScales weight_scale;           // one for each column, or one for all
  DeviceZeroPoints act_zero_point;     // of the caller's kind; entries count as ±2^23 at most
  DeviceZeroPoints weight_zero_point;  // of the caller's kind; entries beyond its range count as the nearest in it
  const std::byte* bias = nullptr;     // null: none
  bool bias_is_output_kind = true;     // otherwise the compute type
  std::byte* out = nullptr;
  std::int64_t out_stride = 0;  // bytes
};

struct DeviceLinearKernel {
  KernelSku sku;
  int (*enqueue)(const DeviceStream& stream, const DeviceLinearJob& job);
};

}  // namespace kvant::detail

namespace kvant::cuda {

// Defined by the CUDA backend, by the executor of the tests, or by absent.cc in a build without either.
bool is_built();
Result<detail::DeviceStream> open_stream(CUstream_st* stream);
Status launch_status(std::string_view who, int error);  // ok for 0
int current_device();                                   // -1 where CUDA does not say

std::span<const detail::DeviceElementwiseKernel> elementwise_kernels();
std::span<const detail::DeviceRangeKernel> range_kernels();
std::span<const detail::DeviceDynamicRangeKernel> dynamic_range_kernels();
std::span<const detail::DeviceLinearKernel> linear_kernels();

}  // namespace kvant::cuda
