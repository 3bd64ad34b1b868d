// The front desk of the element-wise family: refuses with a reason, turns the granularity into Runs, takes the first
// willing kernel, and cuts a launch into parts for the stream's threads.
#include "kvant/elementwise.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/elementwise_kernel.h"
#include "core/refuse.h"
#include "core/runs.h"
#include "cpu/features.h"
#include "cpu/float_environment.h"
#include "ops/elementwise_registry.h"
#include "ops/overlap.h"
#include "ops/preference.h"

namespace kvant {
namespace {

using core::invalid_problem;
using core::unsupported;
using detail::ElementwiseJob;
using detail::ElementwiseKernel;
using detail::ElementwiseOperands;
using detail::ElementwisePart;

constexpr std::int32_t kMaxMagnitude = 1 << 23;  // of zero points and fake_quantize's range: exact in f32

// Waking a second thread costs about 3 µs. f32 to s8 on two cores of Zen 3: 32 Ki elements took 6.0 µs on one thread
// and 5.8 on two, 64 Ki took 12.1 and 9.3.
constexpr std::int64_t kParallelElements = 1 << 16;
constexpr std::int64_t kMinPartElements = 1 << 14;
constexpr std::int64_t kMaxPartElements = 1 << 19;

// Outputs from this size on are written around the caches. fake_quantize of f32 on Zen 3 with 32 MiB of shared L3,
// plain against non-temporal stores: 6.0 to 5.3 Gelem/s at 4 MiB, 2.6 to 4.9 at 8 MiB, 2.1 to 3.6 at 16 MiB.
constexpr std::int64_t kStreamBytes = 1 << 23;

bool is_backward(QuantizeKind op) {
  return op == QuantizeKind::quantize_backward || op == QuantizeKind::dequantize_backward ||
         op == QuantizeKind::fake_quantize_backward;
}
bool reads_input(QuantizeKind op) { return op != QuantizeKind::dequantize_backward; }
bool rounds(QuantizeKind op) { return op != QuantizeKind::dequantize && op != QuantizeKind::dequantize_backward; }
bool is_fake(QuantizeKind op) {
  return op == QuantizeKind::fake_quantize || op == QuantizeKind::fake_quantize_backward;
}
bool is_dequantize(QuantizeKind op) {
  return op == QuantizeKind::dequantize || op == QuantizeKind::dequantize_backward;
}

// "quantize_per_group", "fake_quantize_per_token_backward"
std::string label(QuantizeKind op, GranularityKind granularity) {
  std::string base(name(op));
  const std::string suffix = "_backward";
  const bool backward = base.ends_with(suffix);
  if (backward) base.resize(base.size() - suffix.size());
  return fmt::format("{}_per_{}{}", base, name(granularity), backward ? suffix : "");
}
std::string label(const ElementwiseDescriptor& d) { return label(d.op, d.granularity.kind()); }

// The floating-point kind that arithmetic happens in, and what the kernel reads and writes.
ElementKind float_kind(const ElementwiseDescriptor& d) { return is_dequantize(d.op) ? d.output : d.input; }
ElementKind read_kind(const ElementwiseDescriptor& d) { return is_backward(d.op) ? float_kind(d) : d.input; }
ElementKind write_kind(const ElementwiseDescriptor& d) { return is_backward(d.op) ? float_kind(d) : d.output; }

Status check_kinds(const ElementwiseDescriptor& d) {
  const bool from_float = !is_dequantize(d.op);
  const bool to_float = is_dequantize(d.op) || is_fake(d.op);
  if (from_float ? !is_float(d.input) : !is_code(d.input))
    return unsupported("{}: input element {} must be one of {}", label(d), name(d.input),
                       from_float ? "f32, f64, f16, bf16" : "s8, u8, s4, u4");
  if (to_float ? !is_float(d.output) : !is_code(d.output))
    return unsupported("{}: output element {} must be one of {}", label(d), name(d.output),
                       to_float ? "f32, f64, f16, bf16" : "s8, u8, s4, u4");
  if (is_fake(d.op) && d.input != d.output)
    return unsupported("{}: output element {} must equal input element {}", label(d), name(d.output), name(d.input));
  return {};
}

struct QRange {
  std::int32_t min;
  std::int32_t max;
};

Result<QRange> checked_range(const ElementwiseDescriptor& d) {
  if (!rounds(d.op)) {
    if (d.q_min || d.q_max) return invalid_problem("{}: q_min and q_max are not used here; leave them unset", label(d));
    return QRange{0, 0};
  }
  const CodeRange limits = is_fake(d.op) ? CodeRange{-kMaxMagnitude, kMaxMagnitude} : code_range(d.output);
  const CodeRange defaults = is_fake(d.op) ? CodeRange{-128, 127} : limits;
  const QRange range{d.q_min.value_or(defaults.min), d.q_max.value_or(defaults.max)};
  const std::string of = is_fake(d.op) ? "that f32 steps hold exactly" : fmt::format("of {}", name(d.output));
  if (range.min < limits.min)
    return invalid_problem("{}: q_min {} is below {}, the least value {}", label(d), range.min, limits.min, of);
  if (range.max > limits.max)
    return invalid_problem("{}: q_max {} is above {}, the greatest value {}", label(d), range.max, limits.max, of);
  if (range.min > range.max) return invalid_problem("{}: q_min {} is above q_max {}", label(d), range.min, range.max);
  return range;
}

// The helpers below take AnyRef and AnyMut alike: copying one into the other would cost more than the checks.
template <class View>
std::int64_t stride_bytes(const View& view) {
  return row_bytes(view.kind, view.row_stride == 0 ? view.shape.row_length() : view.row_stride);
}

template <class View>
bool has_gaps(const View& view) {
  return view.row_stride != 0 && view.row_stride != view.shape.row_length();
}

template <class View>
ops::Extent extent(const View& view, std::int64_t rows) {
  return {view.data, rows, row_bytes(view.kind, view.shape.row_length()), stride_bytes(view)};
}

// A view against the descriptor: kind, shape, stride, address.
template <class View>
Status check_view(const ElementwiseDescriptor& d, std::int64_t rows, const char* what, const View& view,
                  ElementKind kind) {
  if (view.kind != kind)
    return unsupported("{}: {} has element {}, the plan was selected for {}", label(d), what, name(view.kind),
                       name(kind));
  if (!(view.shape == d.shape))
    return invalid_problem("{}: {} has shape {}, the plan was selected for {}", label(d), what, view.shape.to_string(),
                           d.shape.to_string());
  if (view.row_stride != 0) {
    if (view.row_stride < view.shape.row_length())
      return invalid_problem("{}: {} has row stride {}, which is less than its row of {}", label(d), what,
                             view.row_stride, view.shape.row_length());
    if (is_packed(kind) && view.row_stride % 2 != 0)
      return invalid_problem("{}: {} has row stride {}; rows of {} begin at a whole byte, so it must be even", label(d),
                             what, view.row_stride, name(kind));
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(view.row_stride, std::int64_t{8}, &bytes) || __builtin_mul_overflow(bytes, rows, &bytes))
      return invalid_problem("{}: {} has row stride {} in shape {}, more bytes than 63 bits count", label(d), what,
                             view.row_stride, view.shape.to_string());
  }
  if (view.data == nullptr && rows != 0)
    return invalid_problem("{}: {} is null for shape {}", label(d), what, d.shape.to_string());
  return {};
}

// The shapes that a parameter tensor may have: as the granularity says, flat, or per token with a last size of 1.
bool parameter_shape_fits(const Shape& given, const Shape& wanted, std::int64_t count, GranularityKind granularity) {
  if (given == wanted) return true;
  if (given.rank() == 1 && given[0] == count) return true;
  if (granularity != GranularityKind::token || given.rank() != wanted.rank() + 1) return false;
  for (int i = 0; i < wanted.rank(); ++i)
    if (given[i] != wanted[i]) return false;
  return given[wanted.rank()] == 1;
}

Status check_parameter(const ElementwiseDescriptor& d, const char* what, const AnyParameter& p, ElementKind kind,
                       const Shape& wanted, std::int64_t count, std::int64_t elements) {
  if (p.kind() != kind)
    return unsupported("{}: {} has element {}, must be {}", label(d), what, name(p.kind()), name(kind));
  if (p.is_scalar()) return {};
  if (!parameter_shape_fits(p.shape(), wanted, count, d.granularity.kind()))
    return invalid_problem("{}: {} has shape {}, must have {}", label(d), what, p.shape().to_string(),
                           wanted.to_string());
  if (p.row_stride() != 0 && p.row_stride() != p.shape().row_length())
    return invalid_problem("{}: {} has row stride {}, must be dense", label(d), what, p.row_stride());
  if (p.data() == nullptr && count != 0 && elements != 0)
    return invalid_problem("{}: {} is null, must point at {} of them", label(d), what, count);
  return {};
}

template <class T>
T read_unaligned(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// On the bits, because the caller's floating-point mode is still in force here: with denormals read as zero or an
// exception unmasked, a comparison could refuse a good scale or end the program.
template <class C, class Bits>
Status check_one_scale(const ElementwiseDescriptor& d, const void* data, Numerics numerics) {
  constexpr Bits kInfinity = sizeof(C) == 4 ? Bits(0x7F800000) : Bits(0x7FF0000000000000);
  // 2^-128 (2^-1024): its reciprocal is the least power of two that overflows; the next number's is finite.
  constexpr Bits kOverflows = sizeof(C) == 4 ? Bits(0x00200000) : Bits(0x0004000000000000);
  const Bits bits = read_unaligned<Bits>(data);  // a set sign bit makes it larger than infinity's
  const bool no_reciprocal = numerics == Numerics::reciprocal && rounds(d.op) && bits <= kOverflows;
  if (bits != 0 && bits < kInfinity && !no_reciprocal) return {};
  const cpu::DefaultFloatEnvironment environment;  // formatting a number computes with it
  if (bits == 0 || bits >= kInfinity)
    return invalid_problem("{}: scale {} must be finite and positive", label(d), read_unaligned<C>(data));
  return invalid_problem("{}: scale {} has no finite reciprocal; use Numerics::exact", label(d),
                         read_unaligned<C>(data));
}

// How a launch is cut: long lines into pieces, short ones gathered.
struct Partition {
  std::int64_t parts;
  std::int64_t pieces_per_line;  // 1: a part is whole lines
  std::int64_t piece;            // elements, a multiple of 4096
  std::int64_t lines_per_part;

  ElementwisePart part(const detail::Runs& runs, std::int64_t index) const {
    if (pieces_per_line == 1) {
      const std::int64_t first = index * lines_per_part;
      return {first, std::min(first + lines_per_part, runs.lines), 0, runs.length};
    }
    const std::int64_t line = index / pieces_per_line;
    const std::int64_t offset = index % pieces_per_line * piece;
    return {line, line + 1, offset, std::min(piece, runs.length - offset)};
  }
};

Partition partition(const detail::Runs& runs, std::int64_t elements, int threads) {
  if (threads == 1 || elements < kParallelElements) return {1, 1, 0, runs.lines};
  constexpr std::int64_t kPartsPerThread = 8;
  constexpr std::int64_t kPage = 4096;
  const std::int64_t wanted =
      std::clamp(elements / (threads * kPartsPerThread), kMinPartElements, kMaxPartElements) / kPage * kPage;
  if (runs.length >= 2 * wanted) {
    const std::int64_t pieces = (runs.length + wanted - 1) / wanted;
    return {runs.lines * pieces, pieces, wanted, 1};
  }
  const std::int64_t lines = std::max<std::int64_t>(1, wanted / runs.length);
  return {(runs.lines + lines - 1) / lines, 1, 0, lines};
}

struct Launch {
  const ElementwiseKernel* kernel;
  const ElementwiseJob* job;
  Partition partition;

  static void run_part(const void* context, std::int64_t index) {
    const Launch& launch = *static_cast<const Launch*>(context);
    const cpu::DefaultFloatEnvironment environment;
    launch.kernel->run(*launch.job, launch.partition.part(*launch.job->runs, index));
  }
};

}  // namespace

Result<ElementwisePlan> ElementwisePlan::select(const Stream& stream, const ElementwiseDescriptor& d,
                                                const PlanPreference& preference) {
  const auto isa = ops::requested_isa(label(d), stream, preference);
  if (!isa.ok()) return isa.status();
  if (Status status = check_kinds(d); !status.ok()) return status;
  const auto parameters = kvant::parameter_shape(d.shape, d.granularity);
  if (!parameters.ok()) {  // "per_group: …" becomes "quantize_per_group: …"
    const std::string_view reason = parameters.status().message();
    return Status(parameters.status().code(), fmt::format("{}{}", label(d), reason.substr(reason.find(':'))));
  }
  const auto range = checked_range(d);
  if (!range.ok()) return range.status();

  ElementwisePlan plan;
  plan.descriptor_ = d;
  plan.numerics_ = preference.numerics;
  plan.elements_ = *d.shape.element_count();
  plan.rows_ = plan.elements_ == 0 ? 0 : plan.elements_ / d.shape.row_length();
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(plan.elements_, std::int64_t{8}, &bytes))
    return invalid_problem("{}: shape {} has more bytes than 63 bits count", label(d), d.shape.to_string());
  plan.parameter_shape_ = *parameters;
  plan.parameters_ = *parameters->element_count();
  plan.q_min_ = range->min;
  plan.q_max_ = range->max;
  const bool odd_packed_rows = (is_packed(read_kind(d)) || is_packed(write_kind(d))) && d.shape.row_length() % 2 != 0;
  plan.row_runs_ = core::row_runs(d.shape, d.granularity);
  plan.dense_runs_ = odd_packed_rows ? plan.row_runs_ : core::dense_runs(d.shape, d.granularity);

  for (const ElementwiseKernel* kernel : ops::elementwise_kernels()) {
    if (kernel->sku.op != d.op || kernel->sku.element != read_kind(d) || kernel->sku.aux_element != write_kind(d))
      continue;
    if (*isa ? kernel->sku.arch != **isa : !cpu::can_run(kernel->sku.arch)) continue;
    plan.kernel_ = kernel;
    return plan;
  }
  return unsupported("{}: no kernel for {} to {}", label(d), name(d.input), name(d.output));
}

KernelSku ElementwisePlan::sku() const { return kernel_->sku; }

Status ElementwisePlan::can_implement(const ElementwiseOperands& o) const {
  const ElementwiseDescriptor& d = descriptor_;
  const AnyMut& output = *o.output;
  const char* output_name = is_backward(d.op) ? "grad_input" : "output";
  if (reads_input(d.op))
    if (Status s = check_view(d, rows_, "input", *o.input, read_kind(d)); !s.ok()) return s;
  if (is_backward(d.op))
    if (Status s = check_view(d, rows_, "grad_output", *o.grad_output, float_kind(d)); !s.ok()) return s;
  if (Status s = check_view(d, rows_, output_name, output, write_kind(d)); !s.ok()) return s;

  const ElementKind scale_type = scale_kind(float_kind(d));
  if (Status s = check_parameter(d, "scale", *o.scale, scale_type, parameter_shape_, parameters_, elements_); !s.ok())
    return s;
  const bool per_tensor = d.granularity.kind() == GranularityKind::tensor;
  if (o.scale->is_scalar() && !per_tensor)
    return invalid_problem("{}: scale is one number, must be a tensor of shape {}", label(d),
                           parameter_shape_.to_string());
  if (per_tensor && elements_ != 0) {
    Status s = scale_type == ElementKind::f64 ? check_one_scale<double, std::uint64_t>(d, o.scale->data(), numerics_)
                                              : check_one_scale<float, std::uint32_t>(d, o.scale->data(), numerics_);
    if (!s.ok()) return s;
  }
  const bool has_zero_point = o.zero_point != nullptr && d.op != QuantizeKind::dequantize_backward;
  if (has_zero_point) {
    if (Status s =
            check_parameter(d, "zero_point", *o.zero_point, ElementKind::s32, parameter_shape_, parameters_, elements_);
        !s.ok())
      return s;
    if (elements_ != 0 && (o.zero_point->is_scalar() || per_tensor)) {
      const auto zp = read_unaligned<std::int32_t>(o.zero_point->data());
      if (zp < -kMaxMagnitude || zp > kMaxMagnitude)
        return invalid_problem("{}: zero_point {} is beyond ±{}, where f32 steps stop being exact", label(d), zp,
                               kMaxMagnitude);
    }
  }
  if (elements_ == 0) return {};

  // In place where reading and writing walk in step: same address, same strides, same width.
  const ops::Extent written = extent(output, rows_);
  const bool in_place_is_legal = is_fake(d.op) || is_backward(d.op);
  const auto check_overlap = [&](const char* what, const AnyRef& view) -> Status {
    const ops::Extent read = extent(view, rows_);
    if (!ops::overlap(written, read)) return {};
    const bool same = read.begin == written.begin && (read.stride == written.stride || read.rows == 1);
    if (same && in_place_is_legal) return {};
    return invalid_problem("{}: {} overlaps {}{}", label(d), output_name, what,
                           in_place_is_legal ? " without being the same buffer" : "");
  };
  if (reads_input(d.op))
    if (Status s = check_overlap("input", *o.input); !s.ok()) return s;
  if (is_backward(d.op))
    if (Status s = check_overlap("grad_output", *o.grad_output); !s.ok()) return s;
  const auto check_parameter_overlap = [&](const char* what, const AnyParameter& p) -> Status {
    const std::int64_t bytes = row_bytes(p.kind(), p.is_scalar() ? 1 : parameters_);
    if (ops::overlap(written, ops::Extent(p.data(), 1, bytes, bytes)))
      return invalid_problem("{}: {} overlaps {}", label(d), output_name, what);
    return {};
  };
  if (Status s = check_parameter_overlap("scale", *o.scale); !s.ok()) return s;
  if (has_zero_point)
    if (Status s = check_parameter_overlap("zero_point", *o.zero_point); !s.ok()) return s;
  return {};
}

Status ElementwisePlan::run(const Stream& stream, Workspace, const ElementwiseOperands& o) const {
  if (!stream.status().ok()) return stream.status();
  if (Status status = can_implement(o); !status.ok()) return status;
  if (elements_ == 0) return {};

  const bool backward = is_backward(descriptor_.op);
  const AnyRef& x = reads_input(descriptor_.op) ? *o.input : *o.grad_output;
  const AnyRef* dy = backward && reads_input(descriptor_.op) ? o.grad_output : nullptr;
  const AnyMut& out = *o.output;
  const bool gaps = has_gaps(x) || has_gaps(out) || (dy != nullptr && has_gaps(*dy));
  const detail::Runs& runs = gaps ? row_runs_ : dense_runs_;
  const bool lines_are_rows = runs.length == descriptor_.shape.row_length();
  const auto line_stride = [&](const auto& view) {
    return lines_are_rows ? stride_bytes(view) : row_bytes(view.kind, runs.length);
  };
  const bool in_place = x.data == out.data || (dy != nullptr && dy->data == out.data);
  const bool has_zero_point = reads_input(descriptor_.op);
  const bool one_zero_point = has_zero_point && o.zero_point->is_scalar();

  const ElementwiseJob job{
      .x = static_cast<const std::byte*>(x.data),
      .dy = dy == nullptr ? nullptr : static_cast<const std::byte*>(dy->data),
      .out = static_cast<std::byte*>(o.output->data),
      .x_stride = line_stride(x),
      .dy_stride = dy == nullptr ? 0 : line_stride(*dy),
      .out_stride = line_stride(out),
      .scale = static_cast<const std::byte*>(o.scale->data()),
      .zero_point = has_zero_point && !one_zero_point ? static_cast<const std::byte*>(o.zero_point->data()) : nullptr,
      .common_zero_point = one_zero_point ? read_unaligned<std::int32_t>(o.zero_point->data()) : 0,
      .q_min = q_min_,
      .q_max = q_max_,
      .numerics = numerics_,
      .stream = !in_place && row_bytes(out.kind, elements_) >= kStreamBytes,
      .runs = &runs,
  };
  const Launch launch{kernel_, &job, partition(runs, elements_, stream.threads())};
  return stream.parallel_for(launch.partition.parts, Task(&Launch::run_part, &launch));
}

Result<ElementwisePlan> detail::select_typed(const Stream& stream, ElementwiseDescriptor descriptor,
                                             const PlanPreference& preference, ElementKind input, ElementKind output) {
  if (!stream.status().ok()) return stream.status();
  if (descriptor.input != input || descriptor.output != output)
    return unsupported("{}: the descriptor names {} to {}, the plan's types are {} to {}", label(descriptor),
                       name(descriptor.input), name(descriptor.output), name(input), name(output));
  return ElementwisePlan::select(stream, descriptor, preference);
}

}  // namespace kvant
