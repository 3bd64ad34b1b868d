// F32 linear layers on a stream's threads. A run takes a block of rows at a time: it is rearranged into tiles, then
// every panel of the weight meets all of them.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/divide_up.h"
#include "cpu/f32_linear_kernel.h"
#include "cpu/linear_partition.h"

namespace kvant::cpu {
namespace {

constexpr std::int64_t kAlignment = 64;  // of the tiles in the workspace

// 2^18 products take 5 µs on one core with AVX2; waking another one costs 3.
constexpr std::int64_t kMinF32Products = 1 << 18;
// Rearranging 64 Ki numbers takes 20 µs.
constexpr std::int64_t kMinTileElements = 1 << 16;

// The first step.
struct F32Preparation {
  const F32LinearKernel* kernel;
  detail::FloatMatrix input;  // some rows
  float* tiles;

  Status run(const Stream& stream) const {
    const std::int64_t count = base::divide_up(input.rows, kernel->tile_rows);
    if (input.rows * input.depth >= kMinTileElements) return stream.parallel_for(count, Task(&run_part, this));
    for (std::int64_t i = 0; i < count; ++i) run_part(this, i);
    return {};
  }
  static void run_part(const void* context, std::int64_t index) {
    const F32Preparation& p = *static_cast<const F32Preparation*>(context);
    p.kernel->pack_tile(p.input, index, p.tiles);
  }
};

}  // namespace

std::size_t f32_linear_workspace(const detail::F32LinearKernel& kernel, std::int64_t max_rows, std::int64_t depth) {
  const std::int64_t bytes =
      std::min(max_rows, of_cpu(kernel).row_block) * depth * static_cast<std::int64_t>(sizeof(float));
  return static_cast<std::size_t>(bytes == 0 ? 0 : bytes + kAlignment);  // the caller's address may be any
}

Status launch_f32_linear(const detail::F32LinearKernel& base_kernel, const Stream& stream, void* given,
                         const detail::F32LinearJob& job) {
  const F32LinearKernel& kernel = of_cpu(base_kernel);
  auto* workspace = static_cast<std::byte*>(given);
  if (workspace != nullptr) workspace += kAlignment - reinterpret_cast<std::uintptr_t>(workspace) % kAlignment;
  auto* tiles = reinterpret_cast<float*>(workspace);
  F32LinearWork work{.rows = 0,
                     .columns = job.columns,
                     .depth = job.input.depth,
                     .tiles = tiles,
                     .panels = job.panels,
                     .raw_weight = job.raw_weight,
                     .bias = job.bias,
                     .out = nullptr,
                     .out_stride = job.out.stride};
  const LinearGrain grain{kernel.panel_columns, kernel.tile_rows, kMinF32Products};
  for (std::int64_t first = 0; first < job.input.rows; first += kernel.row_block) {
    work.rows = std::min(kernel.row_block, job.input.rows - first);
    work.out = job.out.data + first * job.out.stride;
    if (work.depth != 0) {
      const F32Preparation preparation{
          &kernel, {job.input.data + first * job.input.stride, job.input.stride, work.rows, work.depth}, tiles};
      if (Status s = preparation.run(stream); !s.ok()) return s;
    }
    const LinearPartition partition(grain, work.rows, work.columns, work.depth, stream.threads());
    if (Status s = multiply(stream, kernel, work, partition); !s.ok()) return s;
  }
  return {};
}

}  // namespace kvant::cpu
