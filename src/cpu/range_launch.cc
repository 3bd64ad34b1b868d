// Finding ranges on a stream's threads.
#include "cpu/range_kernel.h"
#include "cpu/segments.h"

namespace kvant::cpu {
namespace {

using PreparedRange = detail::PreparedTensor<SegmentedTensor>;

// Ranges go straight to the caller's buffers, and a cell that is still hot is of no further use.
struct Reporter {
  const RangeKernel* kernel;
  RangeReport report;
  void finished(const RangeSlots& slots) const { kernel->report(report, slots); }
  void hot(const ElementwisePart&, bool) const {}
  void part_done() const {}
};

}  // namespace

std::unique_ptr<const detail::Prepared> prepare_range(const detail::SegmentProblem& problem) {
  return PreparedRange::prepare(problem);
}

Status launch_range(const detail::RangeKernel& kernel, const Stream& stream, const detail::Prepared& prepared,
                    void* workspace, const detail::RangeJob& job, const base::Who& /*who*/) {
  const SegmentedTensor& tensor = static_cast<const PreparedRange&>(prepared).tensor;
  const Segments& segments = tensor.geometry(job.gaps);
  const bool large = row_bytes(tensor.input, segments.elements) >= kStreamBytes;
  const RangeWork work = tensor.range_work(segments, job.x, large);
  const Reporter reporter{&of_cpu(kernel), {job.min, job.max, job.max_abs, job.accumulate}};
  return SegmentVisit(segments, of_cpu(kernel), work, tensor.compute_bytes(), workspace, reporter).run(stream);
}

}  // namespace kvant::cpu
