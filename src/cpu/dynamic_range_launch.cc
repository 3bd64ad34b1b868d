// Dynamic-range quantization on a stream's threads: in one pass where every run is a segment that fits the cache,
// otherwise ranges by a range kernel and codes by an element-wise kernel that reads the scales the first one wrote.
#include <algorithm>
#include <cstring>
#include <optional>

#include "base/float_environment.h"
#include "core/kernel_set.h"
#include "cpu/dynamic_range_kernel.h"
#include "cpu/partition.h"
#include "cpu/range_kernel.h"
#include "cpu/segments.h"

namespace kvant::cpu {
namespace {

struct PreparedDynamicRange : detail::Prepared {
  PreparedDynamicRange(const detail::DynamicRangeProblem& problem, const RangeKernel& range,
                       const ElementwiseKernel& quantize)
      : whole(problem.finds_global ? std::make_optional<SegmentedTensor>(problem.whole_tensor()) : std::nullopt),
        tensor(problem.segments),
        output(*problem.segments.output),
        rules(problem.rules),
        grid(problem.grid),
        numerics(problem.numerics),
        range_kernel(&range),
        quantize_kernel(&quantize) {}
  std::size_t workspace_size() const override {
    return std::max(tensor.workspace_bytes(), whole ? whole->workspace_bytes() : 0);
  }

  std::optional<SegmentedTensor> whole;  // as one segment, where the global scale is found
  SegmentedTensor tensor;
  ElementKind output;
  semantics::RangeRules rules;
  semantics::FloatGrid grid;
  Numerics numerics;
  const RangeKernel* range_kernel;
  const ElementwiseKernel* quantize_kernel;
};

// The largest magnitude of a tensor becomes its global scale.
Status find_global_scale(const Stream& stream, const PreparedDynamicRange& plan, void* workspace,
                         const detail::DynamicRangeJob& job) {
  struct Magnitude {
    const RangeKernel* kernel;
    bool f64;
    double* found;

    void finished(const RangeSlots& slots) const {
      std::byte bytes[sizeof(double)];
      kernel->report({.min = nullptr, .max = nullptr, .max_abs = bytes, .accumulate = false}, slots);
      float narrow;
      std::memcpy(f64 ? static_cast<void*>(found) : static_cast<void*>(&narrow), bytes, f64 ? 8 : 4);
      if (!f64) *found = static_cast<double>(narrow);
    }
    void hot(const ElementwisePart&, bool) const {}
    void part_done() const {}
  };
  const Segments& segments = plan.whole->geometry(job.gaps);
  double max_abs = 0;
  const Magnitude magnitude{plan.range_kernel, plan.tensor.input == ElementKind::f64, &max_abs};
  const RangeWork work = plan.whole->range_work(segments, job.x, false);
  SegmentVisit visit(segments, *plan.range_kernel, work, plan.whole->compute_bytes(), workspace, magnitude);
  if (Status s = visit.run(stream); !s.ok()) return s;
  const base::DefaultFloatEnvironment environment;
  const float global = semantics::nvfp4_global_scale(max_abs, plan.rules.q_max);
  std::memcpy(job.global_out, &global, sizeof global);
  return {};
}

// Ranges become parameters, and the codes of a cell are made while it is hot.
struct Quantizer {
  const RangeKernel* range_kernel;
  const ElementwiseKernel* quantize_kernel;
  const DynamicRangeWork* work;

  void finished(const RangeSlots& slots) const {
    range_kernel->parameters(*work->rules, slots, work->scale, work->zero_point);
  }
  void hot(const ElementwisePart& part, bool finite) const {
    quantize_kernel->run(finite ? *work->finite : *work->any, part);
  }
  void part_done() const {
    if (work->any->stream) quantize_kernel->finish_streaming();
  }
};

// True where every run is a segment that fits the cache. Packed codes of some runs in one line would not begin at whole
// bytes.
bool runs_are_segments(const Segments& s, ElementKind output) {
  const bool whole_bytes = fills_bytes(output, s.runs.run) || s.runs.run == s.runs.length;
  return s.cells.count != 0 && s.unit_lines == 1 && s.runs.run > 1 && whole_bytes;
}

Status run_by_runs(const Stream& stream, const DynamicRangeKernel& kernel, const ElementwiseKernel& quantize_kernel,
                   const DynamicRangeWork& work, std::int64_t elements) {
  struct Launch {
    const DynamicRangeKernel* kernel;
    const ElementwiseKernel* quantize_kernel;
    const DynamicRangeWork* work;
    Partition partition;

    static void run_part(const void* context, std::int64_t index) {
      const Launch& l = *static_cast<const Launch*>(context);
      const base::DefaultFloatEnvironment environment;
      l.kernel->run(*l.work, l.partition.part(l.work->any->runs, index));
      if (l.work->any->stream) l.quantize_kernel->finish_streaming();
    }
  };
  const detail::Runs& runs = work.any->runs;
  const Launch launch{&kernel, &quantize_kernel, &work, partition(runs, elements, stream.threads(), runs.run)};
  return stream.parallel_for(launch.partition.parts, Task(&Launch::run_part, &launch));
}

// Codes of finite elements lie inside [q_min, q_max] or, by one rounding, a step outside it, where saturation mends
// them if that is the range of the type. Symmetric ones reach from -q_max to q_max and no further. A scale of f16 ends
// at 65504 and may leave elements far outside, and so may powers of two and codes of e4m3.
bool codes_stay_inside(const semantics::RangeRules& rules, ElementKind output) {
  using semantics::ScaleRule;
  if (rules.scale_rule != ScaleRule::plain && rules.scale_rule != ScaleRule::bf16) return false;
  const bool whole_byte =
      !is_packed(output) && rules.q_min == code_range(output).min && rules.q_max == code_range(output).max;
  return whole_byte || (rules.symmetric && rules.q_min <= -rules.q_max);
}

}  // namespace

std::unique_ptr<const detail::Prepared> prepare_dynamic_range(const detail::DynamicRangeKernel& kernel,
                                                              const detail::KernelSet& set,
                                                              const detail::DynamicRangeProblem& problem) {
  const ElementKind input = kernel.sku.element, output = kernel.sku.aux_element;
  const auto* range = set.find<detail::RangeKernel>(QuantizeKind::range, input, scale_kind(input));
  const auto* quantize = set.find<detail::ElementwiseKernel>(QuantizeKind::quantize, input, output);
  if (range == nullptr || quantize == nullptr) return nullptr;
  return std::make_unique<const PreparedDynamicRange>(problem, of_cpu(*range), of_cpu(*quantize));
}

Status launch_dynamic_range(const detail::DynamicRangeKernel& kernel, const Stream& stream,
                            const detail::Prepared& prepared, void* workspace, const detail::DynamicRangeJob& job,
                            const base::Who& /*who*/) {
  const auto& plan = static_cast<const PreparedDynamicRange&>(prepared);
  const Segments& segments = plan.tensor.geometry(job.gaps);
  const bool large = row_bytes(plan.output, segments.elements) >= kStreamBytes;
  ElementwiseWork any;
  detail::fill_codes_job(job, plan.rules, plan.grid, plan.numerics, segments.runs,
                         plan.tensor.line_stride(segments.runs, plan.tensor.input, job.x),
                         plan.tensor.line_stride(segments.runs, plan.output, job.out), any);
  any.stream = large;
  any.fetch_ahead = large ? kFetchAhead : 0;
  ElementwiseWork finite = any;
  finite.bounded = codes_stay_inside(plan.rules, plan.output);
  if (job.global_out != nullptr)
    if (Status s = find_global_scale(stream, plan, workspace, job); !s.ok()) return s;
  const ScaleSink scales{job.scale, row_bytes(job.scale_kind, 1), any.scale.global_on_cpu()};
  const DynamicRangeWork work{&any, &finite, &plan.rules, scales, job.zero_point, plan.quantize_kernel};
  if (runs_are_segments(segments, plan.output))
    return run_by_runs(stream, of_cpu(kernel), *plan.quantize_kernel, work, segments.elements);
  const RangeWork range_work = plan.tensor.range_work(segments, job.x, large);
  const Quantizer quantizer{plan.range_kernel, plan.quantize_kernel, &work};
  SegmentVisit visit(segments, *plan.range_kernel, range_work, plan.tensor.compute_bytes(), workspace, quantizer);
  if (Status s = visit.run(stream); !s.ok()) return s;
  if (segments.cells.count != 0 || segments.elements == 0) return {};
  return launch_work(*plan.quantize_kernel, stream, visit.finite() ? finite : any);
}

}  // namespace kvant::cpu
