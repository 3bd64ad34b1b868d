// The front desk of linear layers. A run has two steps: the activation is quantized where it comes in floating point
// and rearranged into tiles, then every panel of the weight meets all tiles.
#include "kvant/linear.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/divide_up.h"
#include "base/float_environment.h"
#include "base/refuse.h"
#include "core/device_kernel.h"
#include "core/dynamic_range_kernel.h"
#include "core/elementwise_kernel.h"
#include "core/linear_kernel.h"
#include "core/runs.h"
#include "ops/device_operands.h"
#include "ops/linear_layer.h"
#include "ops/packed_weight_impl.h"
#include "ops/preference.h"
#include "ops/registry.h"
#include "ops/views.h"
#include "semantics/quantize.h"

namespace kvant {
namespace {

using base::divide_up;
using base::invalid_problem;
using base::unsupported;
using detail::LinearOperands;
using ops::is_given;
using ops::LinearPartition;
using ops::row_count;
using ops::set_kind;

constexpr std::int32_t kMaxZeroPoint = semantics::kMaxZeroPoint;
// 2^19 products take 5 µs on one core with AVX2; waking another one costs 3.
constexpr std::int64_t kMinProducts = 1 << 19;

// One static scale, kept in the type that the arithmetic uses.
struct StaticScale {
  double f64;
  float f32;
  const void* data(ElementKind kind) const {
    return kind == ElementKind::f64 ? static_cast<const void*>(&f64) : static_cast<const void*>(&f32);
  }
};

// Where a run keeps its things in the workspace, as offsets from an address that is a multiple of kAlignment.
struct Layout {
  static constexpr std::int64_t kAlignment = 64;
  std::int64_t tiles = 0;
  std::int64_t wide_tiles = 0;
  std::int64_t row_sums = 0;
  std::int64_t codes = 0;
  std::int64_t scales = 0;
  std::int64_t zero_points = 0;
  std::int64_t smoothed = 0;
  std::int64_t size = 0;
};

}  // namespace

// What select() found out.
struct AnyLinearPlan::Impl {
  QuantizeKind op = QuantizeKind::w8a8_linear;
  std::int64_t max_rows = 0;
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  ElementKind activation = ElementKind::s8;  // what the caller hands over
  ElementKind codes = ElementKind::s8;       // what is multiplied: s8 or u8
  ElementKind weight = ElementKind::s8;
  ElementKind output = ElementKind::f32;
  const detail::LinearKernel* kernel = nullptr;               // of the CPU, or
  const detail::DeviceLinearKernel* device_kernel = nullptr;  // of a GPU
  bool is_static = false;                                     // act_scale and act_zero_point are the descriptor's
  StaticScale act_scale = {};
  std::int32_t act_zero_point = 0;
  // Of quantized_linear:
  bool smooth = false;
  Numerics numerics = Numerics::exact;
  semantics::RangeRules rules = {};
  const detail::DynamicRangeKernel* own_range = nullptr;            // dynamic
  const detail::ElementwiseKernel* quantize = nullptr;              // static
  const detail::DeviceDynamicRangeKernel* device_tokens = nullptr;  // either, on a GPU
  Layout layout;

  ElementKind compute() const { return scale_kind(output); }
  bool quantizes() const { return op == QuantizeKind::quantized_linear; }
  // What quantization reads: the input, or its quotients.
  ElementKind quantized_kind() const { return smooth ? compute() : activation; }
  // Bytes from row to row of the codes that are made inside: a GPU reads them by 16.
  std::int64_t code_stride() const {
    return device_kernel == nullptr ? in_features : base::divide_up(in_features, 16) * 16;
  }

  Status fill(QuantizeKind kind_of_plan, std::int64_t rows, std::int64_t k, std::int64_t n, ElementKind input,
              ElementKind code, const std::optional<ElementKind>& w, const std::optional<ElementKind>& out,
              const ops::Target& target);
  Status set_static_scale(double scale, std::int32_t zero_point);
  void lay_out();

  Status check_shapes(const LinearOperands& o) const;
  Status check_weight(const LinearOperands& o) const;
  Status check_parameters(const LinearOperands& o, std::int64_t rows) const;
  Status check_alignments(const LinearOperands& o) const;
  template <class Function>
  Status for_each_read(const LinearOperands& o, std::int64_t rows, const Function& f) const;
  Status prepare(const Stream& stream, std::byte* workspace, bool wide, const LinearOperands& o,
                 std::int64_t rows) const;
  Status enqueue(const Stream& stream, std::byte* workspace, const LinearOperands& o, std::int64_t rows) const;
};

namespace {

std::int64_t aligned(std::int64_t bytes) { return divide_up(bytes, Layout::kAlignment) * Layout::kAlignment; }

bool has_bias(const LinearOperands& o) { return o.bias != nullptr && o.bias->data != nullptr; }

Status check_kinds(QuantizeKind op, ElementKind codes, const std::optional<ElementKind>& weight,
                   const std::optional<ElementKind>& output) {
  const char* output_name = op == QuantizeKind::quantized_linear ? "input" : "output";
  const auto is_byte = [](ElementKind kind) { return kind == ElementKind::s8 || kind == ElementKind::u8; };
  if (!weight) return invalid_problem("{}: the descriptor does not name the weight element", name(op));
  if (!output) return invalid_problem("{}: the descriptor does not name the {} element", name(op), output_name);
  if (!is_byte(codes)) return unsupported("{}: activation element {} must be s8 or u8", name(op), name(codes));
  if (!is_byte(*weight)) return unsupported("{}: weight element {} must be s8 or u8", name(op), name(*weight));
  if (!is_float(*output))
    return unsupported("{}: {} element {} must be one of f32, f64, f16, bf16", name(op), output_name, name(*output));
  return {};
}

// ---- Checks of the arguments ----

// A parameter that is one number or `count` of them, in one of the shapes that `fits` accepts.
template <class Fits>
Status check_parameter(QuantizeKind op, const char* what, const AnyParameter& p, ElementKind kind, std::int64_t count,
                       const Fits& fits) {
  if (p.kind() != kind)
    return unsupported("{}: {} has element {}, must be {}", name(op), what, name(p.kind()), name(kind));
  if (p.is_scalar()) return {};
  if (!fits(p.shape()))
    return invalid_problem("{}: {} has shape {}, must be a number or {} of them", name(op), what, p.shape().to_string(),
                           count);
  if (p.row_stride() != 0 && p.row_stride() != p.shape().row_length())
    return invalid_problem("{}: {} has row stride {}, must be dense", name(op), what, p.row_stride());
  if (p.data() == nullptr && count != 0)
    return invalid_problem("{}: {} is null, must point at {} of them", name(op), what, count);
  return {};
}

template <class Fits>
Status check_scale(QuantizeKind op, const char* what, const AnyParameter& p, ElementKind kind, std::int64_t count,
                   const Fits& fits) {
  if (Status s = check_parameter(op, what, p, kind, count, fits); !s.ok()) return s;
  if (!p.is_scalar()) return {};
  const ops::OneScale scale(p.kind(), p.data());
  if (scale.is_finite_and_positive()) return {};
  return invalid_problem("{}: {} {} must be finite and positive", name(op), what, scale.to_string());
}

template <class Fits>
Status check_zero_point(QuantizeKind op, const char* what, const AnyParameter& p, CodeRange range, std::int64_t count,
                        const Fits& fits) {
  if (Status s = check_parameter(op, what, p, ElementKind::s32, count, fits); !s.ok()) return s;
  if (!p.is_scalar()) return {};
  const auto zero_point = ops::read_unaligned<std::int32_t>(p.data());
  if (zero_point >= range.min && zero_point <= range.max) return {};
  return invalid_problem("{}: {} {} must lie in [{}, {}]", name(op), what, zero_point, range.min, range.max);
}

// [M], the leading sizes of the activation, or those with a last size of 1.
bool is_row_shape(const Shape& given, const Shape& activation, std::int64_t rows) {
  if (given.rank() == 1 && given[0] == rows) return true;
  const int leading = activation.rank() - 1;
  if (given.rank() != leading && !(given.rank() == leading + 1 && given[leading] == 1)) return false;
  for (int i = 0; i < leading; ++i)
    if (given[i] != activation[i]) return false;
  return true;
}

ops::Extent parameter_extent(const AnyParameter& p, std::int64_t count) {
  const std::int64_t bytes = p.is_scalar() ? 0 : row_bytes(p.kind(), count);
  return {p.data(), 1, bytes, bytes};
}

// ---- Running ----

// The first step: tile by tile, from the caller's rows to tiles of codes.
struct Preparation {
  const detail::LinearKernel* kernel;
  const detail::DynamicRangeKernel* own_range;  // dynamic
  const detail::ElementwiseKernel* quantize;    // static
  const detail::DynamicRangeJob* dynamic_job;
  const detail::ElementwiseJob* static_job;
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
    const detail::ElementwisePart part{first, end, 0, codes.depth};
    if (own_range != nullptr)
      own_range->run(*dynamic_job, part);
    else if (quantize != nullptr)
      quantize->run(*static_job, part);
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

struct Multiplication {
  const detail::LinearKernel* kernel;
  const detail::LinearJob* job;
  LinearPartition partition;

  static void run_part(const void* context, std::int64_t index) {
    const Multiplication& m = *static_cast<const Multiplication*>(context);
    const base::DefaultFloatEnvironment environment;
    m.kernel->run(*m.job, m.partition.part(index));
  }
};

}  // namespace

// ---- Selecting ----

Status AnyLinearPlan::Impl::fill(QuantizeKind kind_of_plan, std::int64_t rows, std::int64_t k, std::int64_t n,
                                 ElementKind input, ElementKind code, const std::optional<ElementKind>& w,
                                 const std::optional<ElementKind>& out, const ops::Target& target) {
  op = kind_of_plan;
  if (Status s = check_kinds(op, code, w, out); !s.ok()) return s;
  if (Status s = ops::check_linear_sizes(name(op).data(), rows, k, n); !s.ok()) return s;
  max_rows = rows;
  in_features = k;
  out_features = n;
  activation = input;
  codes = code;
  weight = *w;
  output = *out;
  kernel = ops::find_linear_kernel(output, target);
  device_kernel = ops::find_device_linear_kernel(output, target);
  if (kernel == nullptr && device_kernel == nullptr) return unsupported("{}: no kernel for {}", name(op), name(output));
  return {};
}

Status AnyLinearPlan::Impl::set_static_scale(double scale, std::int32_t zero_point) {
  const base::DefaultFloatEnvironment environment;
  is_static = true;
  act_scale = {scale, static_cast<float>(scale)};
  act_zero_point = zero_point;
  const ops::OneScale number(compute(), act_scale.data(compute()));
  if (!number.is_finite_and_positive())
    return invalid_problem("{}: act_scale {} must be finite and positive{}", name(op), scale,
                           compute() == ElementKind::f32 ? " in f32" : "");
  if (quantizes() && numerics == Numerics::reciprocal && !number.has_finite_reciprocal())
    return invalid_problem("{}: act_scale {} has no finite reciprocal; use Numerics::exact", name(op), scale);
  if (zero_point < -kMaxZeroPoint || zero_point > kMaxZeroPoint)
    return invalid_problem("{}: act_zero_point {} must lie in [{}, {}]", name(op), zero_point, -kMaxZeroPoint,
                           kMaxZeroPoint);
  return {};
}

void AnyLinearPlan::Impl::lay_out() {
  std::int64_t rows = max_rows;
  std::int64_t end = 0;
  const auto place = [&end](std::int64_t bytes) {
    const std::int64_t begin = end;
    end += aligned(bytes);
    return begin;
  };
  if (kernel != nullptr) {
    const detail::LinearFormat& format = *kernel->format;
    const std::int64_t tiles = divide_up(max_rows, format.tile_rows);
    rows = tiles * format.tile_rows;
    layout.tiles = place(tiles * format.tile_bytes(in_features));
    layout.wide_tiles = place(tiles * format.wide_tile_bytes(in_features));
    layout.row_sums = place(rows * 8);
  }
  if (quantizes()) {
    layout.codes = place(rows * code_stride());
    layout.scales = place(rows * row_bytes(compute(), 1));
    layout.zero_points = place(rows * 4);
    if (smooth && kernel != nullptr) layout.smoothed = place(rows * row_bytes(compute(), in_features));
  }
  layout.size = end == 0 ? 0 : end + Layout::kAlignment;  // the caller's address may be any
}

AnyLinearPlan::AnyLinearPlan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<AnyLinearPlan> AnyLinearPlan::select(const Stream& stream, const W8A8LinearDescriptor& d,
                                            const PlanPreference& preference) {
  const auto target = ops::target_of("w8a8_linear", stream, preference);
  if (!target.ok()) return target.status();
  Impl plan;
  if (Status s = plan.fill(QuantizeKind::w8a8_linear, d.max_rows, d.in_features, d.out_features, d.activation,
                           d.activation, d.weight, d.output, *target);
      !s.ok())
    return s;
  plan.lay_out();
  return AnyLinearPlan(std::make_shared<const Impl>(plan));
}

Result<AnyLinearPlan> AnyLinearPlan::select(const Stream& stream, const SmoothQuantLinearDescriptor& d,
                                            const PlanPreference& preference) {
  const auto target = ops::target_of("smoothquant_linear", stream, preference);
  if (!target.ok()) return target.status();
  Impl plan;
  if (Status s = plan.fill(QuantizeKind::smoothquant_linear, d.max_rows, d.in_features, d.out_features, d.activation,
                           d.activation, d.weight, d.output, *target);
      !s.ok())
    return s;
  if (Status s = plan.set_static_scale(d.act_scale, d.act_zero_point); !s.ok()) return s;
  plan.lay_out();
  return AnyLinearPlan(std::make_shared<const Impl>(plan));
}

Result<AnyLinearPlan> AnyLinearPlan::select(const Stream& stream, const QuantizedLinearDescriptor& d,
                                            const PlanPreference& preference) {
  const auto target = ops::target_of("quantized_linear", stream, preference);
  if (!target.ok()) return target.status();
  Impl plan;
  if (Status s = plan.fill(QuantizeKind::quantized_linear, d.max_rows, d.in_features, d.out_features,
                           d.input.value_or(ElementKind::f32), ElementKind::s8, d.weight, d.input, *target);
      !s.ok())
    return s;
  plan.smooth = d.smooth;
  plan.numerics = preference.numerics;
  if (!d.act_scale && d.act_zero_point != 0)
    return invalid_problem("quantized_linear: act_zero_point {} belongs to a static act_scale, which is not set",
                           d.act_zero_point);
  if (d.act_scale) {
    if (Status s = plan.set_static_scale(*d.act_scale, d.act_zero_point); !s.ok()) return s;
    plan.quantize = ops::find_elementwise_kernel(QuantizeKind::quantize, plan.quantized_kind(), plan.codes, *target);
  } else {
    plan.own_range = ops::find_dynamic_range_kernel(plan.quantized_kind(), plan.codes, *target);
  }
  // On a GPU the kernel that reads the input divides it too.
  plan.device_tokens = ops::find_device_dynamic_range_kernel(plan.activation, plan.codes, *target);
  if (plan.quantize == nullptr && plan.own_range == nullptr && plan.device_tokens == nullptr)
    return unsupported("quantized_linear: no kernel for {}", name(plan.output));
  const CodeRange range = code_range(plan.codes);
  plan.rules = {.symmetric = d.mode == DynamicRangeMode::symmetric,
                .include_zero = d.include_zero,
                .q_min = range.min,
                .q_max = range.max};
  plan.lay_out();
  return AnyLinearPlan(std::make_shared<const Impl>(plan));
}

Result<AnyLinearPlan> detail::select_linear(const Stream& stream, W8A8LinearDescriptor d,
                                            const PlanPreference& preference, ElementKind weight, ElementKind output) {
  if (!stream.status().ok()) return stream.status();
  if (Status s = set_kind("w8a8_linear", "weight", d.weight, weight); !s.ok()) return s;
  if (Status s = set_kind("w8a8_linear", "output", d.output, output); !s.ok()) return s;
  return AnyLinearPlan::select(stream, d, preference);
}

Result<AnyLinearPlan> detail::select_linear(const Stream& stream, SmoothQuantLinearDescriptor d,
                                            const PlanPreference& preference, ElementKind weight, ElementKind output) {
  if (!stream.status().ok()) return stream.status();
  if (Status s = set_kind("smoothquant_linear", "weight", d.weight, weight); !s.ok()) return s;
  if (Status s = set_kind("smoothquant_linear", "output", d.output, output); !s.ok()) return s;
  return AnyLinearPlan::select(stream, d, preference);
}

Result<AnyLinearPlan> detail::select_linear(const Stream& stream, QuantizedLinearDescriptor d,
                                            const PlanPreference& preference, ElementKind weight, ElementKind input) {
  if (!stream.status().ok()) return stream.status();
  if (Status s = set_kind("quantized_linear", "weight", d.weight, weight); !s.ok()) return s;
  if (Status s = set_kind("quantized_linear", "input", d.input, input); !s.ok()) return s;
  return AnyLinearPlan::select(stream, d, preference);
}

std::size_t AnyLinearPlan::workspace_size() const { return static_cast<std::size_t>(impl_->layout.size); }

KernelSku AnyLinearPlan::sku() const {
  KernelSku sku = impl_->kernel != nullptr ? impl_->kernel->sku : impl_->device_kernel->sku;
  sku.op = impl_->op;
  sku.element = impl_->activation;
  return sku;
}

// ---- Checking ----

Status AnyLinearPlan::Impl::check_shapes(const LinearOperands& o) const {
  const auto who = [&] { return name(op); };
  const AnyRef& x = *o.activation;
  const AnyMut& y = *o.output;
  const char* x_name = quantizes() ? "input" : "activation";
  if (x.kind != activation)
    return unsupported("{}: {} has element {}, the plan was selected for {}", who(), x_name, name(x.kind),
                       name(activation));
  if (!x.shape.element_count() || x.shape.rank() == 0 || x.shape.row_length() != in_features)
    return invalid_problem("{}: {} has shape {}, must have {} in_features as its last size", who(), x_name,
                           x.shape.to_string(), in_features);
  const std::int64_t rows = row_count(x.shape);
  if (rows > max_rows)
    return invalid_problem("{}: {} has shape {} with {} rows, the plan was selected for max_rows {}", who(), x_name,
                           x.shape.to_string(), rows, max_rows);
  if (Status s = ops::check_view(who, x_name, x, activation, x.shape, in_features == 0 ? 0 : rows); !s.ok()) return s;
  Shape wanted = x.shape;
  wanted[wanted.rank() - 1] = out_features;
  return ops::check_view(who, "output", y, output, wanted, out_features == 0 ? 0 : rows);
}

Status AnyLinearPlan::Impl::check_weight(const LinearOperands& o) const {
  const auto who = [&] { return name(op); };
  const bool raw = is_given(o.weight);
  if (raw && o.packed_weight != nullptr)
    return invalid_problem("{}: both weight and packed_weight are set; give one", who());
  if (!raw && o.packed_weight == nullptr)
    return invalid_problem("{}: neither weight nor packed_weight is set; give one", who());
  if (raw)
    return ops::check_view(who, "weight", *o.weight, weight, {out_features, in_features},
                           in_features == 0 ? 0 : out_features);
  const PackedWeight& packed = *o.packed_weight;
  if (kernel == nullptr)
    return unsupported("{}: packed_weight was packed for {}, the plan runs on cuda and takes the raw weight", who(),
                       name(packed.isa()));
  if (packed.out_features() != out_features || packed.in_features() != in_features)
    return invalid_problem("{}: packed_weight has shape [{}, {}], must have [{}, {}]", who(), packed.out_features(),
                           packed.in_features(), out_features, in_features);
  if (packed.element() != weight)
    return unsupported("{}: packed_weight has element {}, the plan was selected for {}", who(), name(packed.element()),
                       name(weight));
  if (packed.isa() != kernel->format->arch)
    return unsupported("{}: packed_weight was packed for {}, the plan runs on {}", who(), name(packed.isa()),
                       name(kernel->format->arch));
  return {};
}

Status AnyLinearPlan::Impl::check_parameters(const LinearOperands& o, std::int64_t rows) const {
  const auto who = [&] { return name(op); };
  const auto of_columns = [&](const Shape& shape) { return shape.rank() == 1 && shape[0] == out_features; };
  const auto of_rows = [&](const Shape& shape) { return is_row_shape(shape, o.activation->shape, rows); };
  if (Status s = check_scale(op, "weight_scale", *o.weight_scale, compute(), out_features, of_columns); !s.ok())
    return s;
  if (Status s =
          check_zero_point(op, "weight_zero_point", *o.weight_zero_point, code_range(weight), out_features, of_columns);
      !s.ok())
    return s;
  if (op == QuantizeKind::w8a8_linear) {
    if (Status s = check_scale(op, "act_scale", *o.act_scale, compute(), rows, of_rows); !s.ok()) return s;
    constexpr CodeRange kRange = {-kMaxZeroPoint, kMaxZeroPoint};
    if (Status s = check_zero_point(op, "act_zero_point", *o.act_zero_point, kRange, rows, of_rows); !s.ok()) return s;
  } else {
    const char* source = is_static ? "has it in its descriptor" : "finds it in the data";
    if (o.act_scale != nullptr && o.act_scale->data() != nullptr)
      return invalid_problem("{}: act_scale is given, but this plan {}", who(), source);
    const AnyParameter* zero_point = o.act_zero_point;
    if (zero_point != nullptr && zero_point->data() != nullptr &&
        !(zero_point->is_scalar() && ops::read_unaligned<std::int32_t>(zero_point->data()) == 0))
      return invalid_problem("{}: act_zero_point is given, but this plan {}", who(), source);
  }
  if (is_given(o.smooth) && !smooth)
    return invalid_problem("{}: smooth is given, but the descriptor does not say so", who());
  if (smooth)
    if (Status s = ops::check_view(who, "smooth", *o.smooth, compute(), {in_features}, in_features == 0 ? 0 : 1);
        !s.ok())
      return s;
  if (!has_bias(o)) return {};
  if (o.bias->kind != compute() && o.bias->kind != output)
    return unsupported("{}: bias has element {}, must be {}{}", who(), name(o.bias->kind), name(output),
                       compute() == output ? "" : fmt::format(" or {}", name(compute())));
  return ops::check_view(who, "bias", *o.bias, o.bias->kind, {out_features}, out_features == 0 ? 0 : 1);
}

// f(name, extent) for everything that is read, until one refuses.
template <class Function>
Status AnyLinearPlan::Impl::for_each_read(const LinearOperands& o, std::int64_t rows, const Function& f) const {
  if (Status s = f(quantizes() ? "input" : "activation", ops::extent(*o.activation, rows)); !s.ok()) return s;
  if (o.packed_weight != nullptr) {
    const auto size = static_cast<std::int64_t>(o.packed_weight->bytes().size());
    if (Status s = f("packed_weight", ops::Extent(o.packed_weight->bytes().data(), 1, size, size)); !s.ok()) return s;
  } else {
    if (Status s = f("weight", ops::extent(*o.weight, out_features)); !s.ok()) return s;
  }
  if (Status s = f("weight_scale", parameter_extent(*o.weight_scale, out_features)); !s.ok()) return s;
  if (Status s = f("weight_zero_point", parameter_extent(*o.weight_zero_point, out_features)); !s.ok()) return s;
  if (op == QuantizeKind::w8a8_linear) {
    if (Status s = f("act_scale", parameter_extent(*o.act_scale, rows)); !s.ok()) return s;
    if (Status s = f("act_zero_point", parameter_extent(*o.act_zero_point, rows)); !s.ok()) return s;
  }
  if (smooth)
    if (Status s = f("smooth", ops::extent(*o.smooth, 1)); !s.ok()) return s;
  return has_bias(o) ? f("bias", ops::extent(*o.bias, 1)) : Status();
}

Status AnyLinearPlan::Impl::check_alignments(const LinearOperands& o) const {
  const auto who = [&] { return name(op); };
  if (Status s = ops::check_alignment(who, quantizes() ? "input" : "activation", *o.activation); !s.ok()) return s;
  if (Status s = ops::check_alignment(who, "weight_scale", *o.weight_scale); !s.ok()) return s;
  if (Status s = ops::check_alignment(who, "weight_zero_point", *o.weight_zero_point); !s.ok()) return s;
  if (op == QuantizeKind::w8a8_linear) {
    if (Status s = ops::check_alignment(who, "act_scale", *o.act_scale); !s.ok()) return s;
    if (Status s = ops::check_alignment(who, "act_zero_point", *o.act_zero_point); !s.ok()) return s;
  }
  if (smooth)
    if (Status s = ops::check_alignment(who, "smooth", *o.smooth); !s.ok()) return s;
  if (has_bias(o))
    if (Status s = ops::check_alignment(who, "bias", *o.bias); !s.ok()) return s;
  return ops::check_alignment(who, "output", *o.output);
}

Status AnyLinearPlan::can_implement(const LinearOperands& o) const {
  if (Status s = impl_->check_shapes(o); !s.ok()) return s;
  if (Status s = impl_->check_weight(o); !s.ok()) return s;
  const std::int64_t rows = row_count(o.activation->shape);
  if (Status s = impl_->check_parameters(o, rows); !s.ok()) return s;
  if (impl_->device_kernel != nullptr)
    if (Status s = impl_->check_alignments(o); !s.ok()) return s;
  const ops::Extent written = ops::extent(*o.output, rows);
  return impl_->for_each_read(o, rows, [&](const char* what, const ops::Extent& read) -> Status {
    if (!ops::overlap(written, read)) return {};
    return invalid_problem("{}: output overlaps {}", name(impl_->op), what);
  });
}

namespace {
LinearOperands operands(const AnyLinearArgs& a) {
  return {&a.activation,   &a.act_scale,    &a.act_zero_point,    &a.smooth, &a.weight,
          a.packed_weight, &a.weight_scale, &a.weight_zero_point, &a.bias,   &a.output};
}
}  // namespace

Status AnyLinearPlan::can_implement(const AnyLinearArgs& args) const { return can_implement(operands(args)); }

Status AnyLinearPlan::run(const Stream& stream, Workspace workspace, const AnyLinearArgs& args) const {
  return run(stream, workspace, operands(args));
}

// ---- Running ----

// The first step.
Status AnyLinearPlan::Impl::prepare(const Stream& stream, std::byte* workspace, bool wide, const LinearOperands& o,
                                    std::int64_t rows) const {
  const AnyRef& x = *o.activation;
  const std::byte* input = static_cast<const std::byte*>(x.data);
  const std::int64_t input_stride = ops::stride_bytes(x);
  std::byte* smoothed = workspace + layout.smoothed;
  const std::int64_t smoothed_stride = row_bytes(compute(), in_features);
  std::byte* made = workspace + layout.codes;
  const detail::Runs runs{.lines = rows, .length = in_features, .run = in_features, .outer_step = is_static ? 0 : 1};
  const detail::ElementwiseJob job{
      .x = smooth ? smoothed : input,
      .dy = nullptr,
      .out = made,
      .x_stride = smooth ? smoothed_stride : input_stride,
      .dy_stride = 0,
      .out_stride = in_features,
      .scale = is_static ? static_cast<const std::byte*>(act_scale.data(compute())) : workspace + layout.scales,
      .zero_point = is_static ? nullptr : workspace + layout.zero_points,
      .common_zero_point = act_zero_point,
      .q_min = rules.q_min,
      .q_max = rules.q_max,
      .numerics = numerics,
      .bounded = false,
      .stream = false,
      .fetch_ahead = 0,
      .runs = &runs,
  };
  detail::ElementwiseJob finite_job = job;
  finite_job.bounded = true;  // codes of finite elements use all of s8, or less
  const detail::DynamicRangeJob dynamic_job{&job, &finite_job, &rules, workspace + layout.scales,
                                            workspace + layout.zero_points};
  const Preparation preparation{
      .kernel = kernel,
      .own_range = own_range,
      .quantize = quantize,
      .dynamic_job = &dynamic_job,
      .static_job = &job,
      .input = input,
      .input_stride = input_stride,
      .smooth = smooth ? static_cast<const std::byte*>(o.smooth->data) : nullptr,
      .smoothed = smoothed,
      .smoothed_stride = smoothed_stride,
      .codes = {quantizes() ? made : input, quantizes() ? in_features : input_stride, rows, in_features,
                ops::activation_flip(codes)},
      .tiles = workspace + layout.tiles,
      .wide_tiles = wide ? workspace + layout.wide_tiles : nullptr,
      .row_sums = reinterpret_cast<std::int64_t*>(workspace + layout.row_sums),
  };
  return preparation.run(stream);
}

// Both steps on a GPU.
Status AnyLinearPlan::Impl::enqueue(const Stream& stream, std::byte* workspace, const LinearOperands& o,
                                    std::int64_t rows) const {
  const auto who = [&] { return name(op); };
  const AnyRef& x = *o.activation;
  detail::DeviceLinearJob job{
      .rows = rows,
      .columns = out_features,
      .depth = in_features,
      .activation = static_cast<const std::byte*>(x.data),
      .activation_stride = ops::stride_bytes(x),
      .activation_is_unsigned = codes == ElementKind::u8,
      .weight = static_cast<const std::byte*>(o.weight->data),
      .weight_stride = ops::stride_bytes(*o.weight),
      .weight_is_unsigned = weight == ElementKind::u8,
      .act_scale = {nullptr, compute() == ElementKind::f64 ? act_scale.f64 : static_cast<double>(act_scale.f32)},
      .weight_scale = ops::device_scales(*o.weight_scale),
      .act_zero_point = {nullptr, act_zero_point},
      .weight_zero_point = ops::device_zero_points(*o.weight_zero_point),
      .bias = has_bias(o) ? static_cast<const std::byte*>(o.bias->data) : nullptr,
      .bias_is_output_kind = has_bias(o) && o.bias->kind == output,
      .out = static_cast<std::byte*>(o.output->data),
      .out_stride = ops::stride_bytes(*o.output),
  };
  if (op == QuantizeKind::w8a8_linear) {
    job.act_scale = ops::device_scales(*o.act_scale);
    job.act_zero_point = ops::device_zero_points(*o.act_zero_point);
  }
  if (quantizes() && in_features != 0) {  // no codes, no scales
    const detail::DeviceTokenJob tokens{
        .x = job.activation,
        .out = workspace + layout.codes,
        .x_stride = job.activation_stride,
        .out_stride = code_stride(),
        .rows = rows,
        .length = in_features,
        .divisor = smooth ? static_cast<const std::byte*>(o.smooth->data) : nullptr,
        .is_static = is_static,
        .static_scale = job.act_scale.value,
        .static_zero_point = act_zero_point,
        .scale = workspace + layout.scales,
        .zero_point = workspace + layout.zero_points,
        .rules = rules,
        .numerics = numerics,
    };
    if (Status s = ops::launched(who, device_tokens->enqueue_tokens(stream.device(), tokens)); !s.ok()) return s;
    job.activation = tokens.out;
    job.activation_stride = code_stride();
    if (!is_static) {
      job.act_scale = {tokens.scale};
      // Symmetric codes have none: the sums that they would be multiplied with need not be found.
      job.act_zero_point = rules.symmetric ? detail::DeviceZeroPoints() : detail::DeviceZeroPoints{tokens.zero_point};
    }
  }
  return ops::launched(who, device_kernel->enqueue(stream.device(), job));
}

Status AnyLinearPlan::run(const Stream& stream, Workspace given, const LinearOperands& o) const {
  const Impl& plan = *impl_;
  const auto who = [&] { return name(plan.op); };
  if (Status s = ops::check_stream(who, stream, sku().backend); !s.ok()) return s;
  if (Status s = can_implement(o); !s.ok()) return s;
  if (Status s = ops::check_workspace(who, given, workspace_size()); !s.ok()) return s;
  const std::int64_t rows = row_count(o.activation->shape);
  const auto size = static_cast<std::int64_t>(workspace_size());
  const ops::Extent scratch(given.data, 1, size, size);
  if (ops::overlap(scratch, ops::extent(*o.output, rows)))
    return invalid_problem("{}: the workspace overlaps output", who());
  if (Status s = plan.for_each_read(o, rows,
                                    [&](const char* what, const ops::Extent& read) -> Status {
                                      if (!ops::overlap(scratch, read)) return {};
                                      return invalid_problem("{}: the workspace overlaps {}", who(), what);
                                    });
      !s.ok())
    return s;
  if (rows == 0 || plan.out_features == 0) return {};

  auto* workspace = static_cast<std::byte*>(given.data);
  if (workspace != nullptr)
    workspace += Layout::kAlignment - reinterpret_cast<std::uintptr_t>(workspace) % Layout::kAlignment;
  if (plan.device_kernel != nullptr) return plan.enqueue(stream, workspace, o, rows);
  const bool packed = o.packed_weight != nullptr;
  const bool wide =
      plan.kernel->format->wide_tile_bytes(plan.in_features) != 0 && (!packed || o.packed_weight->impl().wide);
  if (Status s = plan.prepare(stream, workspace, wide, o, rows); !s.ok()) return s;

  const bool dynamic = plan.own_range != nullptr && plan.in_features != 0;  // no codes, no scales
  detail::LinearJob job = {};
  job.rows = rows;
  job.columns = plan.out_features;
  job.depth = plan.in_features;
  job.tiles = workspace + plan.layout.tiles;
  job.wide_tiles = wide ? workspace + plan.layout.wide_tiles : nullptr;
  job.row_sums = reinterpret_cast<const std::int64_t*>(workspace + plan.layout.row_sums);
  job.panels = packed ? o.packed_weight->impl().panels() : nullptr;
  if (!packed)
    job.raw_weight = {static_cast<const std::byte*>(o.weight->data), ops::stride_bytes(*o.weight), plan.out_features,
                      plan.in_features, ops::weight_flip(plan.weight)};
  if (dynamic) {
    job.act_scale = workspace + plan.layout.scales;
    job.act_zero_point = workspace + plan.layout.zero_points;
    job.act_scale_step = job.act_zero_point_step = 1;
  } else if (plan.op == QuantizeKind::w8a8_linear) {
    job.act_scale = static_cast<const std::byte*>(o.act_scale->data());
    job.act_zero_point = static_cast<const std::byte*>(o.act_zero_point->data());
    job.act_scale_step = o.act_scale->is_scalar() ? 0 : 1;
    job.act_zero_point_step = o.act_zero_point->is_scalar() ? 0 : 1;
  } else {
    job.act_scale = static_cast<const std::byte*>(plan.act_scale.data(plan.compute()));
    job.act_zero_point = reinterpret_cast<const std::byte*>(&plan.act_zero_point);
  }
  job.act_zero_point_offset = plan.codes == ElementKind::s8 ? 128 : 0;
  job.weight_scale = static_cast<const std::byte*>(o.weight_scale->data());
  job.weight_scale_step = o.weight_scale->is_scalar() ? 0 : 1;
  job.weight_zero_point = static_cast<const std::byte*>(o.weight_zero_point->data());
  job.weight_zero_point_step = o.weight_zero_point->is_scalar() ? 0 : 1;
  job.weight_zero_point_offset = plan.weight == ElementKind::u8 ? -128 : 0;
  job.weight_range = code_range(plan.weight);
  if (has_bias(o)) {
    job.bias = static_cast<const std::byte*>(o.bias->data);
    job.bias_is_output_kind = o.bias->kind == plan.output;
  }
  job.out = static_cast<std::byte*>(o.output->data);
  job.out_stride = ops::stride_bytes(*o.output);
  const detail::LinearFormat& format = *plan.kernel->format;
  const ops::LinearGrain grain{format.panel_columns, format.tile_rows, kMinProducts};
  const Multiplication multiplication{
      plan.kernel, &job, ops::partition(grain, rows, plan.out_features, plan.in_features, stream.threads())};
  return stream.parallel_for(multiplication.partition.parts(), Task(&Multiplication::run_part, &multiplication));
}

}  // namespace kvant
