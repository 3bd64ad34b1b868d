// Linear layers on a stream's threads. A run has two steps: the activation is quantized where it comes in floating
// point and rearranged into tiles, then every panel of the weight meets all tiles.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/divide_up.h"
#include "base/float_environment.h"
#include "core/kernel_set.h"
#include "cpu/dynamic_range_kernel.h"
#include "cpu/elementwise_kernel.h"
#include "cpu/linear_kernel.h"
#include "cpu/linear_partition.h"

namespace kvant::cpu {
namespace {

using base::divide_up;

// 2^19 products take 5 µs on one core with AVX2; waking another one costs 3.
constexpr std::int64_t kMinProducts = 1 << 19;

// Where a run keeps its things in the workspace, as offsets from an address that is a multiple of kAlignment.
struct Layout {
  static constexpr std::int64_t kAlignment = 64;
  std::int64_t tiles = 0, wide_tiles = 0, row_sums = 0;
  std::int64_t codes = 0, scales = 0, zero_points = 0, smoothed = 0;  // where the activation becomes codes here
  std::int64_t size = 0;

  Layout(const detail::LinearProblem& p, const detail::LinearFormat& format) {
    const std::int64_t tile_count = divide_up(p.max_rows, format.tile_rows);
    const std::int64_t rows = tile_count * format.tile_rows;
    std::int64_t end = 0;
    const auto place = [&end](std::int64_t bytes) {
      const std::int64_t begin = end;
      end += divide_up(bytes, kAlignment) * kAlignment;
      return begin;
    };
    tiles = place(tile_count * format.tile_bytes(p.in_features));
    wide_tiles = place(tile_count * format.wide_tile_bytes(p.in_features));
    row_sums = place(rows * 8);
    if (p.quantizes) {
      codes = place(rows * p.in_features);
      scales = place(rows * row_bytes(p.compute(), 1));
      zero_points = place(rows * 4);
      if (p.smooth) smoothed = place(rows * row_bytes(p.compute(), p.in_features));
    }
    size = end == 0 ? 0 : end + kAlignment;  // the caller's address may be any
  }
};

struct PreparedLinear : detail::Prepared {
  PreparedLinear(const detail::LinearProblem& p, const detail::LinearFormat& format) : problem(p), layout(p, format) {}
  std::size_t workspace_size() const override { return static_cast<std::size_t>(layout.size); }

  detail::LinearProblem problem;
  Layout layout;
  const DynamicRangeKernel* own_range = nullptr;  // makes the codes of dynamic activations
  const ElementwiseKernel* quantize = nullptr;    // and of static ones; used by the former too
};

// The first step: tile by tile, from the caller's rows to tiles of codes.
struct Preparation {
  const LinearKernel* kernel;
  const DynamicRangeKernel* own_range;
  const ElementwiseKernel* quantize;
  DynamicRangeWork dynamic_work;
  const ElementwiseWork* static_work;
  const std::byte* input;  // of smoothing
  std::int64_t input_stride;
  const std::byte* smooth;
  std::byte* smoothed;
  std::int64_t smoothed_stride;
  detail::CodeMatrix codes;
  std::byte* tiles;
  std::byte* wide_tiles;
  std::int64_t* row_sums;

  Status run(const Stream& stream) const {
    const std::int64_t count = divide_up(codes.rows, kernel->format->tile_rows);
    // Rearranging 64 Ki codes takes about as long as waking a thread; quantizing them takes longer.
    if (codes.rows * codes.depth >= (1 << 16)) return stream.parallel_for(count, Task(&run_part, this));
    for (std::int64_t i = 0; i < count; ++i) run_part(this, i);
    return {};
  }

  // Of some rows, where the input is floating point.
  void make_codes(std::int64_t first, std::int64_t end) const {
    if (smooth != nullptr)
      for (std::int64_t row = first; row < end; ++row)
        kernel->divide_row(input + row * input_stride, smooth, smoothed + row * smoothed_stride, codes.depth);
    const ElementwisePart part{first, end, 0, codes.depth};
    if (own_range != nullptr)
      own_range->run(dynamic_work, part);
    else if (quantize != nullptr)
      quantize->run(*static_work, part);
  }

  static void run_part(const void* context, std::int64_t index) {
    const Preparation& p = *static_cast<const Preparation*>(context);
    const base::DefaultFloatEnvironment environment;
    const detail::LinearFormat& format = *p.kernel->format;
    const std::int64_t first = index * format.tile_rows;
    const std::int64_t end = std::min(first + format.tile_rows, p.codes.rows);
    const std::int64_t depth = p.codes.depth;
    if (depth != 0) p.make_codes(first, end);
    format.pack_tile(p.codes, index, p.tiles + index * format.tile_bytes(depth),
                     p.wide_tiles == nullptr ? nullptr : p.wide_tiles + index * format.wide_tile_bytes(depth),
                     p.row_sums);
  }
};

Status prepare_activation(const LinearKernel& kernel, const PreparedLinear& plan, const Stream& stream,
                          std::byte* workspace, bool wide, const detail::LinearJob& job,
                          const std::byte* static_scale) {
  const detail::LinearProblem& p = plan.problem;
  const Layout& layout = plan.layout;
  std::byte* smoothed = workspace + layout.smoothed;
  const std::int64_t smoothed_stride = row_bytes(p.compute(), p.in_features);
  std::byte* made = workspace + layout.codes;
  ElementwiseWork any;
  any.x = p.smooth ? smoothed : job.activation.data;
  any.out = made;
  any.x_stride = p.smooth ? smoothed_stride : job.activation.stride;
  any.out_stride = p.in_features;
  any.scale.data = p.is_static ? static_scale : workspace + layout.scales;
  any.zero_point = {p.is_static ? nullptr : workspace + layout.zero_points, job.act_zero_point.value};
  any.q_min = p.rules.q_min;
  any.q_max = p.rules.q_max;
  any.numerics = p.numerics;
  any.runs = {.lines = job.rows, .length = p.in_features, .run = p.in_features, .outer_step = p.is_static ? 0 : 1};
  ElementwiseWork finite = any;
  finite.bounded = true;  // codes of finite elements use all of s8, or less
  const Preparation preparation{
      .kernel = &kernel,
      .own_range = plan.own_range,
      .quantize = plan.quantize,
      .dynamic_work =
          {&any, &finite, &p.rules, {.data = workspace + layout.scales}, workspace + layout.zero_points, plan.quantize},
      .static_work = &any,
      .input = job.activation.data,
      .input_stride = job.activation.stride,
      .smooth = job.smooth,
      .smoothed = smoothed,
      .smoothed_stride = smoothed_stride,
      .codes = {p.quantizes ? made : job.activation.data, p.quantizes ? p.in_features : job.activation.stride, job.rows,
                p.in_features, detail::activation_flip(p.codes)},
      .tiles = workspace + layout.tiles,
      .wide_tiles = wide ? workspace + layout.wide_tiles : nullptr,
      .row_sums = reinterpret_cast<std::int64_t*>(workspace + layout.row_sums),
  };
  return preparation.run(stream);
}

}  // namespace

std::unique_ptr<const detail::Prepared> prepare_linear(const detail::LinearKernel& kernel, const detail::KernelSet& set,
                                                       const detail::LinearProblem& problem) {
  auto plan = std::make_unique<PreparedLinear>(problem, *kernel.format);
  if (!problem.quantizes) return plan;
  // What quantization reads: the input, or its quotients.
  const ElementKind read = problem.smooth ? problem.compute() : problem.activation;
  const auto* quantize = set.find<detail::ElementwiseKernel>(QuantizeKind::quantize, read, problem.codes);
  if (quantize == nullptr) return nullptr;
  plan->quantize = &of_cpu(*quantize);
  if (!problem.is_static) {
    const auto* own_range =
        set.find<detail::DynamicRangeKernel>(QuantizeKind::dynamic_range_quantize, read, problem.codes);
    if (own_range == nullptr) return nullptr;
    plan->own_range = &of_cpu(*own_range);
  }
  return plan;
}

Status launch_linear(const detail::LinearKernel& base_kernel, const Stream& stream, const detail::Prepared& prepared,
                     void* given, const detail::LinearJob& job, const base::Who& /*who*/) {
  const LinearKernel& kernel = of_cpu(base_kernel);
  const auto& plan = static_cast<const PreparedLinear&>(prepared);
  const detail::LinearProblem& p = plan.problem;
  auto* workspace = static_cast<std::byte*>(given);
  if (workspace != nullptr)
    workspace += Layout::kAlignment - reinterpret_cast<std::uintptr_t>(workspace) % Layout::kAlignment;
  const bool packed = job.panels != nullptr;
  const bool wide = kernel.format->wide_tile_bytes(p.in_features) != 0 && (!packed || job.wide_panels);

  // Scales of the compute type in memory: a tensor's, or one number.
  const auto scale_at = [&p](const detail::Scales& s) {
    if (s.data != nullptr) return s.data;
    return p.compute() == ElementKind::f64 ? reinterpret_cast<const std::byte*>(&s.f64)
                                           : reinterpret_cast<const std::byte*>(&s.f32);
  };
  const auto zero_point_at = [](const detail::ZeroPoints& z) {
    return z.data != nullptr ? z.data : reinterpret_cast<const std::byte*>(&z.value);
  };
  if (Status s = prepare_activation(kernel, plan, stream, workspace, wide, job, scale_at(job.act_scale)); !s.ok())
    return s;

  const bool dynamic = plan.own_range != nullptr && p.in_features != 0;  // no codes, no scales
  LinearWork work = {};
  work.rows = job.rows;
  work.columns = p.out_features;
  work.depth = p.in_features;
  work.tiles = workspace + plan.layout.tiles;
  work.wide_tiles = wide ? workspace + plan.layout.wide_tiles : nullptr;
  work.row_sums = reinterpret_cast<const std::int64_t*>(workspace + plan.layout.row_sums);
  work.panels = job.panels;
  if (!packed)
    work.raw_weight = {job.weight.data, job.weight.stride, p.out_features, p.in_features,
                       detail::weight_flip(p.weight)};
  work.act_scale = dynamic ? workspace + plan.layout.scales : scale_at(job.act_scale);
  work.act_scale_step = dynamic || job.act_scale.data != nullptr ? 1 : 0;
  work.act_zero_point = dynamic ? workspace + plan.layout.zero_points : zero_point_at(job.act_zero_point);
  work.act_zero_point_step = dynamic || job.act_zero_point.data != nullptr ? 1 : 0;
  work.act_zero_point_offset = p.codes == ElementKind::s8 ? 128 : 0;
  work.weight_scale = scale_at(job.weight_scale);
  work.weight_scale_step = job.weight_scale.data != nullptr ? 1 : 0;
  work.weight_zero_point = zero_point_at(job.weight_zero_point);
  work.weight_zero_point_step = job.weight_zero_point.data != nullptr ? 1 : 0;
  work.weight_zero_point_offset = p.weight == ElementKind::u8 ? -128 : 0;
  work.weight_range = code_range(p.weight);
  work.bias = job.bias;
  work.bias_is_output_kind = job.bias_is_output_kind;
  work.out = job.out.data;
  work.out_stride = job.out.stride;
  if (is_code(p.output)) {
    work.output_scale = job.output_scale;
    work.output_zero_point = job.output_zero_point;
    work.output_range = code_range(p.output);
  }
  const LinearGrain grain{kernel.format->panel_columns, kernel.format->tile_rows, kMinProducts};
  return multiply(stream, kernel, work,
                  LinearPartition(grain, job.rows, p.out_features, p.in_features, stream.threads()));
}

}  // namespace kvant::cpu
