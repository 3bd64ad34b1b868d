// The dynamic-range kernels of the CUDA backend: one launch where a team of threads or a column of lines makes a
// segment, two where segments are split, and two or three where packed codes of odd runs share bytes between segments
// or short runs are split into very many parts.
#include "cuda/dynamic_range.cuh"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "base/divide_up.h"
#include "core/dynamic_range_kernel.h"
#include "core/kernel_set.h"
#include "cuda/cut_segments.h"
#include "cuda/range_launch.h"
#include "cuda/table.h"
#include "cuda/tokens.h"

namespace kvant::cuda {
namespace {

using detail::DeviceStream;

struct PreparedDynamicRange : detail::Prepared {
  PreparedDynamicRange(const detail::DynamicRangeProblem& problem, const detail::ElementwiseKernel& kernel)
      : whole(problem.finds_global ? std::make_optional<CutTensor>(problem.whole_tensor()) : std::nullopt),
        tensor(problem.segments),
        output(*problem.segments.output),
        rules(problem.rules),
        grid(problem.grid),
        numerics(problem.numerics),
        quantize(&kernel) {}
  std::size_t workspace_size() const override {
    return std::max(tensor.workspace_bytes(), whole ? whole->workspace_bytes() : 0);
  }

  std::optional<CutTensor> whole;  // as one segment, where the global scale is found
  CutTensor tensor;
  ElementKind output;
  semantics::RangeRules rules;
  semantics::FloatGrid grid;
  Numerics numerics;
  const detail::ElementwiseKernel* quantize;  // of the same kinds
};

std::unique_ptr<const detail::Prepared> prepare(const detail::DynamicRangeKernel& kernel, const detail::KernelSet& set,
                                                const detail::DynamicRangeProblem& problem) {
  const auto* quantize =
      set.find<detail::ElementwiseKernel>(QuantizeKind::quantize, kernel.sku.element, kernel.sku.aux_element);
  return quantize == nullptr ? nullptr : std::make_unique<const PreparedDynamicRange>(problem, *quantize);
}

// Lines that a block takes at least once it has merged the partial ranges of its columns.
constexpr std::int64_t kLinesPerBlock = 128;

template <class T, class Code>
int launch_runs(const DeviceStream& stream, const RunsProblem& problem, const Codes& codes) {
  const std::int64_t units = problem.segments.parameters * problem.segments.chunks();
  return device::launch(stream,
                        {{blocks_for(stream, units, kThreads / problem.team_size), 1},
                         {kThreads, 1},
                         Team::shared_bytes(sizeof(compute_t<T>))},
                        &dynamic_runs_kernel<T, Code>, problem, codes);
}

template <class T, class Code>
int launch_columns(const DeviceStream& stream, const ColumnsProblem& problem, const Codes& codes) {
  constexpr int N = kOwnColumns<T, Code>;
  const CutSegments& s = problem.segments;
  const std::int64_t lines = s.runs.lines * s.runs.length / s.parameters;  // of a segment
  const std::int64_t shares = s.chunks() == 1 ? 1 : std::max<std::int64_t>(1, lines / kLinesPerBlock);
  return device::launch(stream, columns_shape<N>(stream, s, shares, ColumnsBlock<compute_t<T>, N>::shared_bytes()),
                        &dynamic_columns_kernel<T, Code>, problem, codes, shares);
}

// One launch of a plan.
template <class T, class Code>
struct Launch {
  const detail::DynamicRangeJob& job;
  const PreparedDynamicRange& plan;
  const CutSegments& s;
  std::int64_t x_stride;
  std::int64_t out_stride;
  void* workspace;

  Launch(const detail::DynamicRangeJob& one, const PreparedDynamicRange& prepared, void* scratch)
      : job(one),
        plan(prepared),
        s(prepared.tensor.geometry(one.gaps)),
        x_stride(prepared.tensor.line_stride(s.runs, kind_of<T>, one.x)),
        out_stride(prepared.tensor.line_stride(s.runs, prepared.output, one.out)),
        workspace(scratch) {}

  Sink parameters_sink(std::int64_t chunks) const {
    return {.kind = SinkKind::parameters,
            .partial = partial_ranges(workspace),
            .chunks = chunks,
            .parameters = s.parameters,
            .rules = plan.rules,
            .scale = job.scale,
            .zero_point = job.zero_point,
            .global_data = job.global_out != nullptr ? job.global_out : job.global_data,
            .global = job.global};
  }

  // The global scale from the whole tensor, before anything reads it.
  Status find_global_scale(const DeviceStream& stream, const base::Who& who) const {
    const CutSegments& segments = plan.whole->geometry(job.gaps);
    const Sink sink{.kind = SinkKind::global_scale,
                    .partial = partial_ranges(workspace),
                    .chunks = segments.runs.lines == 0 ? 0 : segments.chunks(),
                    .parameters = 1,
                    .rules = plan.rules,
                    .scale = job.global_out};
    if (segments.runs.lines == 0) return launched(who, finish_ranges<compute_t<T>>(stream, sink));
    Sink first = sink;
    if (segments.chunks() > 1) first.kind = SinkKind::partials;
    const std::int64_t stride = plan.whole->line_stride(segments.runs, kind_of<T>, job.x);
    if (Status e = launched(who, find_ranges<T>(stream, job.x.data, stride, segments, first)); !e.ok()) return e;
    return segments.chunks() > 1 ? launched(who, finish_ranges<compute_t<T>>(stream, sink)) : Status();
  }

  // The codes of a tensor whose scales and zero points are there.
  Status quantize_with_parameters(const Stream& stream, const base::Who& who) const {
    detail::ElementwiseJob codes;
    detail::fill_codes_job(job, plan.rules, plan.grid, plan.numerics, s.runs, x_stride, out_stride, codes);
    return plan.quantize->launch(*plan.quantize, stream, codes, who);
  }

  Status run(const Stream& on, const base::Who& who) const {
    const DeviceStream& stream = on.device();
    if (job.global_out != nullptr)
      if (Status error = find_global_scale(stream, who); !error.ok()) return error;
    if (s.runs.lines == 0) return launched(who, finish_ranges<compute_t<T>>(stream, parameters_sink(0)));
    const bool columns = has_columns(s);
    const bool whole_bytes = fills_bytes(plan.output, s.runs.run) || s.runs.run >= s.runs.length;
    const unsigned team = team_size(base::divide_up(s.runs.run, s.piece_chunks), kChunk<T, Code>);
    // Teams make codes of their own segments, unless those share bytes or a small team would merge many partial ranges.
    constexpr std::int64_t kMaxMerged = 8;  // by one thread
    const bool by_teams = whole_bytes && s.chunks() <= kMaxMerged * team;
    const Sink sink = parameters_sink(s.chunks());
    if (s.chunks() > 1 || !(by_teams || columns)) {
      Sink first = sink;
      if (s.chunks() > 1) first.kind = SinkKind::partials;
      if (Status error = launched(who, find_ranges<T>(stream, job.x.data, x_stride, s, first)); !error.ok())
        return error;
    }
    if (!(by_teams || columns)) {
      if (s.chunks() > 1)
        if (Status error = launched(who, finish_ranges<compute_t<T>>(stream, sink)); !error.ok()) return error;
      return quantize_with_parameters(on, who);
    }
    const Codes codes{
        .out = job.out.data,
        .out_stride = out_stride,
        .sink = sink,
        .settings = {plan.rules.q_min, plan.rules.q_max, plan.numerics == Numerics::reciprocal, plan.grid}};
    if (columns) return launched(who, launch_columns<T, Code>(stream, {job.x.data, x_stride, s}, codes));
    return launched(who, launch_runs<T, Code>(stream, {job.x.data, x_stride, s, team}, codes));
  }
};

template <class T, class Code>
Status launch(const detail::DynamicRangeKernel&, const Stream& stream, const detail::Prepared& prepared,
              void* workspace, const detail::DynamicRangeJob& job, const base::Who& who) {
  return Launch<T, Code>(job, static_cast<const PreparedDynamicRange&>(prepared), workspace).run(stream, who);
}

template <class T>
int quantize_tokens_of(const DeviceStream& stream, const TokenJob& job) {
  using Code = std::int8_t;
  const CutSegments segments{.runs = {.lines = job.rows, .length = job.length, .run = job.length, .outer_step = 1},
                             .parameters = job.rows};
  const RunsProblem problem{job.x, job.x_stride, segments, team_size(job.length, kChunk<T, Code>)};
  const Codes codes{.out = job.out,
                    .out_stride = job.out_stride,
                    .sink = {.kind = SinkKind::parameters,
                             .parameters = job.rows,
                             .rules = job.rules,
                             .scale = job.scale,
                             .zero_point = job.zero_point},
                    .settings = {job.rules.q_min, job.rules.q_max, job.numerics == Numerics::reciprocal, {}},
                    .divisor = job.divisor,
                    .is_static = job.is_static,
                    .static_scale = job.static_scale,
                    .static_zero_point = job.static_zero_point};
  return launch_runs<T, Code>(stream, problem, codes);
}

constexpr auto make_kernels() {
  std::array<detail::DynamicRangeKernel, core::RealTypes::kSize * core::CodeTypes::kSize> all{};
  std::size_t n = 0;
  core::for_each_type(core::RealTypes{}, [&]<class T>(TypeList<T>) {
    core::for_each_type(core::CodeTypes{}, [&]<class Code>(TypeList<Code>) {
      all[n++] = {device_sku<compute_t<T>>(QuantizeKind::dynamic_range_quantize, kind_of<T>, kind_of<Code>), &prepare,
                  &launch<T, core::in_memory_t<Code>>};
    });
  });
  return all;
}

const auto kKernels = make_kernels();
const auto kPointers = pointers_to<detail::DynamicRangeKernel>(kKernels);

}  // namespace

int quantize_tokens(ElementKind input, const DeviceStream& stream, const TokenJob& job) {
  int error = 0;
  core::for_each_type(core::RealTypes{}, [&]<class T>(TypeList<T>) {
    if (kind_of<T> == input) error = quantize_tokens_of<T>(stream, job);
  });
  return error;
}

template <>
detail::KernelList<detail::DynamicRangeKernel> kernels<detail::DynamicRangeKernel>() {
  return {kPointers.data(), kPointers.size()};
}

}  // namespace kvant::cuda
