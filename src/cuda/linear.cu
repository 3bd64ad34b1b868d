// Linear layers: which kernel a job gets, and the table of them.
#include <array>
#include <cstdint>
#include <span>

#include "base/divide_up.h"
#include "core/device_kernel.h"
#include "core/runs.h"
#include "cuda/grid.h"
#include "cuda/linear_launch.h"
#include "cuda/linear_small.cuh"
#include "cuda/linear_tile.cuh"
#include "cuda/table.h"

namespace kvant::cuda {
namespace {

using detail::DeviceLinearJob;
using detail::DeviceLinearKernel;
using detail::DeviceStream;

bool rows_are_aligned(const std::byte* data, std::int64_t stride, std::int64_t rows) {
  return reinterpret_cast<std::uintptr_t>(data) % kChunkBytes == 0 && (stride % kChunkBytes == 0 || rows == 1);
}

LinearLaunch prepared(const DeviceLinearJob& job) {
  const auto can_be_other_than = [](const detail::DeviceZeroPoints& zero_points, std::int32_t value) {
    return zero_points.data != nullptr || zero_points.value != value;
  };
  LinearLaunch launch;
  launch.job = job;
  launch.activation_is_aligned = rows_are_aligned(job.activation, job.activation_stride, job.rows);
  launch.weight_is_aligned = rows_are_aligned(job.weight, job.weight_stride, job.columns);
  launch.out_is_aligned = rows_are_aligned(job.out, job.out_stride, job.rows);
  // What is 0 as s8. No limit moves a zero point to or from there.
  launch.needs_row_sums = can_be_other_than(job.weight_zero_point, job.weight_is_unsigned ? -kFlipOffset : 0);
  launch.needs_column_sums = can_be_other_than(job.act_zero_point, job.activation_is_unsigned ? -kFlipOffset : 0);
  return launch;
}

template <class Tile>
std::int64_t tile_count(const DeviceLinearJob& job) {
  return base::divide_up(job.rows, Tile::kRows) * base::divide_up(job.columns, Tile::kColumns);
}

template <class Out, class Tile>
int enqueue_tile(const DeviceStream& stream, const DeviceLinearJob& job) {
  return device::launch(stream,
                        {{blocks_for(stream, tile_count<Tile>(job), 1), 1}, {kTileThreads, 1}, Tile::kSharedBytes},
                        &linear_tile<Out, Tile>, prepared(job));
}

// With the smallest power of two that is enough rows.
template <class Out, int rows = 1>
int enqueue_small(const DeviceStream& stream, const DeviceLinearJob& job) {
  if constexpr (rows < kMaxSmallRows)
    if (job.rows > rows) return enqueue_small<Out, 2 * rows>(stream, job);
  constexpr std::int64_t kColumns = kSmallColumns * (kSmallThreads / kWarp);  // of a block
  return device::launch(stream, {{blocks_for(stream, job.columns, kColumns), 1}, {kSmallThreads, 1}},
                        &linear_small<Out, rows>, prepared(job));
}

template <class Out>
int enqueue(const DeviceStream& stream, const DeviceLinearJob& job) {
  if (job.rows <= kMaxSmallRows && job.depth <= kMaxSmallDepth) return enqueue_small<Out>(stream, job);
  if (job.depth > kMaxShallowDepth) return enqueue_tile<Out, DeepTile>(stream, job);
  // A large tile reads half as much for each output, if every multiprocessor has one and its rows are not mostly empty.
  const bool large = job.rows > QuarterTile::kRows && tile_count<ShallowTile>(job) >= stream.multiprocessors;
  return large ? enqueue_tile<Out, ShallowTile>(stream, job) : enqueue_tile<Out, QuarterTile>(stream, job);
}

template <class Out>
constexpr DeviceLinearKernel linear_kernel() {
  KernelSku sku = device_sku<compute_t<Out>>(QuantizeKind::w8a8_linear, ElementKind::s8, kind_of<Out>);
  sku.epilogue = EpilogueKind::dequantize_bias;
  sku.precision_guarantee.accumulator = AccumulatorKind::exact_integer;
  return {sku, &enqueue<Out>};
}

constexpr std::array<DeviceLinearKernel, 4> kKernels = {linear_kernel<float>(), linear_kernel<double>(),
                                                        linear_kernel<Half>(), linear_kernel<BFloat16>()};

}  // namespace

std::span<const DeviceLinearKernel> linear_kernels() { return kKernels; }

}  // namespace kvant::cuda
