// Linear layers: which kernel a job gets, and the table of them.
#include <array>
#include <cstdint>
#include <memory>

#include "base/divide_up.h"
#include "core/linear_kernel.h"
#include "cuda/grid.h"
#include "cuda/linear_launch.h"
#include "cuda/linear_product.h"
#include "cuda/linear_small.cuh"
#include "cuda/linear_tile.cuh"
#include "cuda/table.h"
#include "cuda/tokens.h"

namespace kvant::cuda {
namespace {

using detail::DeviceStream;

bool rows_are_aligned(const std::byte* data, std::int64_t stride, std::int64_t rows) {
  return reinterpret_cast<std::uintptr_t>(data) % kChunkBytes == 0 && (stride % kChunkBytes == 0 || rows == 1);
}

LinearLaunch prepared(const LinearProduct& job) {
  const auto can_be_other_than = [](const detail::ZeroPoints& zero_points, std::int32_t value) {
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
std::int64_t tile_count(const LinearProduct& job) {
  return base::divide_up(job.rows, Tile::kRows) * base::divide_up(job.columns, Tile::kColumns);
}

template <class Out, class Tile>
int enqueue_tile(const DeviceStream& stream, const LinearProduct& job) {
  return device::launch(stream,
                        {{blocks_for(stream, tile_count<Tile>(job), 1), 1}, {kTileThreads, 1}, Tile::kSharedBytes},
                        &linear_tile<Out, Tile>, prepared(job));
}

// With the smallest power of two that is enough rows.
template <class Out, int rows = 1>
int enqueue_small(const DeviceStream& stream, const LinearProduct& job) {
  if constexpr (rows < kMaxSmallRows)
    if (job.rows > rows) return enqueue_small<Out, 2 * rows>(stream, job);
  constexpr std::int64_t kColumns = kSmallColumns * (kSmallThreads / kWarp);  // of a block
  return device::launch(stream, {{blocks_for(stream, job.columns, kColumns), 1}, {kSmallThreads, 1}},
                        &linear_small<Out, rows>, prepared(job));
}

template <class Out>
int enqueue(const DeviceStream& stream, const LinearProduct& job) {
  if (job.rows <= kMaxSmallRows && job.depth <= kMaxSmallDepth) return enqueue_small<Out>(stream, job);
  if (job.depth > kMaxShallowDepth) return enqueue_tile<Out, DeepTile>(stream, job);
  // A large tile reads half as much for each output, if every multiprocessor has one and its rows are not mostly empty.
  const bool large = job.rows > QuarterTile::kRows && tile_count<ShallowTile>(job) >= stream.multiprocessors;
  return large ? enqueue_tile<Out, ShallowTile>(stream, job) : enqueue_tile<Out, QuarterTile>(stream, job);
}

// The activation's codes and scales, where they are made inside. A GPU reads rows of codes by 16 bytes.
struct PreparedLinear : detail::Prepared {
  static constexpr std::int64_t kAlignment = 64;
  detail::LinearProblem problem;
  std::int64_t code_stride = 0;
  std::int64_t scales = 0;  // offsets from an aligned address; codes come first
  std::int64_t zero_points = 0;
  std::int64_t size = 0;

  explicit PreparedLinear(const detail::LinearProblem& p)
      : problem(p), code_stride(base::divide_up(p.in_features, kChunkBytes) * kChunkBytes) {
    if (!p.quantizes) return;
    const auto aligned = [](std::int64_t bytes) { return base::divide_up(bytes, kAlignment) * kAlignment; };
    scales = aligned(p.max_rows * code_stride);
    zero_points = scales + aligned(p.max_rows * row_bytes(p.compute(), 1));
    const std::int64_t end = zero_points + aligned(p.max_rows * 4);
    size = end == 0 ? 0 : end + kAlignment;  // the caller's address may be any
  }
  std::size_t workspace_size() const override { return static_cast<std::size_t>(size); }
};

std::unique_ptr<const detail::Prepared> prepare(const detail::LinearKernel&, const detail::KernelSet&,
                                                const detail::LinearProblem& problem) {
  return std::make_unique<const PreparedLinear>(problem);
}

template <class Out>
Status launch(const detail::LinearKernel&, const Stream& stream, const detail::Prepared& prepared, void* given,
              const detail::LinearJob& job, const base::Who& who) {
  const auto& plan = static_cast<const PreparedLinear&>(prepared);
  const detail::LinearProblem& p = plan.problem;
  LinearProduct product;
  product.rows = job.rows;
  product.columns = p.out_features;
  product.depth = p.in_features;
  product.activation = job.activation.data;
  product.activation_stride = job.activation.stride;
  product.activation_is_unsigned = p.codes == ElementKind::u8;
  product.weight = job.weight.data;
  product.weight_stride = job.weight.stride;
  product.weight_is_unsigned = p.weight == ElementKind::u8;
  product.act_scale = job.act_scale;
  product.weight_scale = job.weight_scale;
  product.act_zero_point = job.act_zero_point;
  product.weight_zero_point = job.weight_zero_point;
  product.bias = job.bias;
  product.bias_is_output_kind = job.bias_is_output_kind;
  product.out = job.out.data;
  product.out_stride = job.out.stride;
  if (is_code(p.output)) {
    product.output_scale = job.output_scale;
    product.output_zero_point = job.output_zero_point;
    product.q_min = code_range(p.output).min;
    product.q_max = code_range(p.output).max;
  }
  if (p.quantizes && p.in_features != 0) {  // no codes, no scales
    auto* workspace = static_cast<std::byte*>(given);
    workspace += PreparedLinear::kAlignment - reinterpret_cast<std::uintptr_t>(workspace) % PreparedLinear::kAlignment;
    const TokenJob tokens{
        .x = product.activation,
        .out = workspace,
        .x_stride = product.activation_stride,
        .out_stride = plan.code_stride,
        .rows = job.rows,
        .length = p.in_features,
        .divisor = job.smooth,
        .is_static = p.is_static,
        .static_scale = static_cast<double>(job.act_scale.value<compute_t<Out>>()),
        .static_zero_point = job.act_zero_point.value,
        .scale = workspace + plan.scales,
        .zero_point = workspace + plan.zero_points,
        .rules = p.rules,
        .numerics = p.numerics,
    };
    if (Status s = launched(who, quantize_tokens(p.activation, stream.device(), tokens)); !s.ok()) return s;
    product.activation = tokens.out;
    product.activation_stride = plan.code_stride;
    if (!p.is_static) {
      product.act_scale.data = tokens.scale;
      // Symmetric codes have none: the sums that they would be multiplied with need not be found.
      product.act_zero_point = p.rules.symmetric ? detail::ZeroPoints() : detail::ZeroPoints{tokens.zero_point};
    }
  }
  return launched(who, enqueue<Out>(stream.device(), product));
}

template <class Out, ElementKind output>
constexpr detail::LinearKernel linear_kernel() {
  KernelSku sku = device_sku<semantics::sum_t<Out>>(QuantizeKind::w8a8_linear, ElementKind::s8, output);
  sku.epilogue = is_code(output) ? EpilogueKind::requantize_bias : EpilogueKind::dequantize_bias;
  sku.precision_guarantee.accumulator = AccumulatorKind::exact_integer;
  return {sku, nullptr, &prepare, &launch<Out>};
}

template <class... Out>
constexpr auto make_kernels(TypeList<Out...>) {
  using semantics::CodeByte;
  return std::array{linear_kernel<Out, kind_of<Out>>()..., linear_kernel<CodeByte, ElementKind::s8>(),
                    linear_kernel<CodeByte, ElementKind::u8>()};
}

const auto kKernels = make_kernels(core::RealTypes{});
const auto kPointers = pointers_to<detail::LinearKernel>(kKernels);

}  // namespace

template <>
detail::KernelList<detail::LinearKernel> kernels<detail::LinearKernel>() {
  return {kPointers.data(), kPointers.size()};
}

}  // namespace kvant::cuda
