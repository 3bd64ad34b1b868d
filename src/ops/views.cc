#include "ops/views.h"

#include <algorithm>

#include "base/float_environment.h"
#include "base/refuse.h"
#include "semantics/one_number.h"
#include "semantics/scale_formats.h"

namespace kvant::ops {

std::string OneScale::to_string() const {
  const base::DefaultFloatEnvironment environment;  // formatting a number computes with it
  if (wide_) return base::text("{}", read_unaligned<double>(&bits_));
  return base::text("{}", read_unaligned<float>(&bits_));  // the lower half comes first
}

Status check_unusual_view(const base::Who& who, const char* what, const ViewFacts& view, ElementKind kind,
                          const Shape& shape, std::int64_t rows) {
  if (view.kind != kind)
    return base::unsupported("{}: {} has element {}, the plan was selected for {}", who(), what, name(view.kind),
                             name(kind));
  if (!(*view.shape == shape))
    return base::invalid_problem("{}: {} has shape {}, the plan was selected for {}", who(), what,
                                 view.shape->to_string(), shape.to_string());
  if (view.row_stride != 0) {
    if (view.row_stride < view.shape->row_length())
      return base::invalid_problem("{}: {} has row stride {}, which is less than its row of {}", who(), what,
                                   view.row_stride, view.shape->row_length());
    if (const int per_byte = elements_per_byte(kind); view.row_stride % per_byte != 0)
      return base::invalid_problem("{}: {} has row stride {}; rows of {} begin at a whole byte, so it must be {}",
                                   who(), what, view.row_stride, name(kind),
                                   per_byte == 2 ? "even" : base::text("a multiple of {}", per_byte));
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(view.row_stride, std::int64_t{8}, &bytes) || __builtin_mul_overflow(bytes, rows, &bytes))
      return base::invalid_problem("{}: {} has row stride {} in shape {}, more bytes than 63 bits can count", who(),
                                   what, view.row_stride, view.shape->to_string());
  }
  if (view.data == nullptr && rows != 0)
    return base::invalid_problem("{}: {} is null for shape {}", who(), what, shape.to_string());
  return {};
}

Result<Shape> checked_parameter_shape(const base::Who& who, const Shape& shape, const Granularity& granularity) {
  auto parameters = parameter_shape(shape, granularity);
  if (!parameters.ok()) {  // "per_group: …" becomes "quantize_per_group: …"
    const std::string_view reason = parameters.status().message();
    return Status(parameters.status().code(), base::text("{}{}", who(), reason.substr(reason.find(':'))));
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(*shape.element_count(), std::int64_t{8}, &bytes))
    return base::invalid_problem("{}: shape {} has more bytes than 63 bits can count", who(), shape.to_string());
  return parameters;
}

bool parameter_shape_fits(const Shape& given, const Shape& wanted, std::int64_t count, GranularityKind granularity) {
  if (given == wanted) return true;
  if (given.rank() == 1 && given[0] == count) return true;
  if (granularity != GranularityKind::token || given.rank() != wanted.rank() + 1) return false;
  for (int i = 0; i < wanted.rank(); ++i)
    if (given[i] != wanted[i]) return false;
  return given[wanted.rank()] == 1;
}

Status check_unusual_parameters(const base::Who& who, const char* what, const ViewFacts& given, ElementKind kind,
                                const ParameterShape& wanted, bool used) {
  if (given.kind != kind)
    return base::unsupported("{}: {} has element {}, must be {}", who(), what, name(given.kind), name(kind));
  if (!parameter_shape_fits(*given.shape, wanted.shape, wanted.count, wanted.granularity))
    return base::invalid_problem("{}: {} has shape {}, must have {}", who(), what, given.shape->to_string(),
                                 wanted.shape.to_string());
  if (given.row_stride != 0 && given.row_stride != given.shape->row_length())
    return base::invalid_problem("{}: {} has row stride {}, must be dense", who(), what, given.row_stride);
  if (given.data == nullptr && wanted.count != 0 && used)
    return base::invalid_problem("{}: {} is null, must point to {} number{}", who(), what, wanted.count,
                                 wanted.count == 1 ? "" : "s");
  return {};
}

Status check_workspace(const base::Who& who, const Workspace& workspace, std::size_t needed) {
  if (needed == 0) return {};
  if (workspace.size < needed)
    return base::refuse(StatusCode::WorkspaceTooSmall, "{}: workspace has {} bytes, needs {}", who(), workspace.size,
                        needed);
  if (workspace.data == nullptr) return base::invalid_problem("{}: workspace is null, needs {} bytes", who(), needed);
  return {};
}

Status AlignmentCheck::check(const char* what, ElementKind kind, const void* data) const {
  const auto bytes = static_cast<std::uintptr_t>(row_bytes(kind, 1));
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (address % bytes == 0) return {};
  return base::refuse(StatusCode::MisalignedOperand,
                      "{}: {} is {} bytes past a multiple of {}, which CUDA needs for {}", who_(), what,
                      address % bytes, bytes, name(kind));
}

bool is_stored_scale(ElementKind kind) { return std::ranges::find(kStoredScales, kind) != kStoredScales.end(); }

Status check_scale_kind(const base::Who& who, const char* what, ElementKind kind, ElementKind compute) {
  if (kind == compute || is_stored_scale(kind)) return {};
  std::string others;
  for (const ElementKind other : kStoredScales) others += base::text("{}{}", others.empty() ? "" : ", ", name(other));
  return base::unsupported("{}: {} has element {}, must be {} (or a tensor of {})", who(), what, name(kind),
                           name(compute), others);
}

Status check_global_scale(const base::Who& who, ElementKind scales, const AnyParameter& global, bool can_look) {
  const bool given = is_given(global);
  if (scales != ElementKind::e4m3) {
    if (!given) return {};
    return base::invalid_problem("{}: global_scale is for scales of e4m3, these are {}", who(), name(scales));
  }
  if (!given) return base::invalid_problem("{}: scales of e4m3 need a global_scale", who());
  if (global.kind() != ElementKind::f32)
    return base::unsupported("{}: global_scale has element {}, must be f32", who(), name(global.kind()));
  if (!global.is_scalar() && !(global.shape() == Shape()) && !(global.shape() == Shape{1}))
    return base::invalid_problem("{}: global_scale has shape {}, must be one number", who(),
                                 global.shape().to_string());
  if (!can_look && !global.is_scalar()) return {};
  const OneScale one(ElementKind::f32, global.data());
  if (one.is_finite_and_positive()) return {};
  return base::invalid_problem("{}: global_scale {} must be finite and positive", who(), one.to_string());
}

namespace {

template <class C>
C stored_scale_in(ElementKind kind, const void* data, const AnyParameter& global) {
  using L = semantics::OneNumber<C>;
  switch (kind) {
    case ElementKind::f16: return to_float(read_unaligned<Half>(data));
    case ElementKind::bf16: return to_float(read_unaligned<BFloat16>(data));
    case ElementKind::e8m0: return semantics::e8m0_value<L>(read_unaligned<std::uint8_t>(data));
    default: return semantics::nvfp4_value<L>(read_unaligned<std::uint8_t>(data), read_unaligned<float>(global.data()));
  }
}

}  // namespace

OneScale stored_scale(ElementKind kind, const void* data, const AnyParameter& global, ElementKind compute) {
  const base::DefaultFloatEnvironment environment;
  const double wide = compute == ElementKind::f64 ? stored_scale_in<double>(kind, data, global) : 0;
  const float narrow = compute == ElementKind::f64 ? 0 : stored_scale_in<float>(kind, data, global);
  return {compute, compute == ElementKind::f64 ? static_cast<const void*>(&wide) : &narrow};
}

detail::Scales scales_of(const AnyParameter& p, const AnyParameter* global) {
  detail::Scales scales;
  scales.kind = p.kind();
  if (!p.is_scalar())
    scales.data = static_cast<const std::byte*>(p.data());
  else if (p.kind() == ElementKind::f64)
    scales.f64 = read_unaligned<double>(p.data());
  else
    scales.f32 = read_unaligned<float>(p.data());
  if (global == nullptr || !is_given(*global)) return scales;
  if (global->is_scalar())
    scales.global = read_unaligned<float>(global->data());
  else
    scales.global_data = static_cast<const std::byte*>(global->data());
  return scales;
}

detail::ZeroPoints zero_points_of(const AnyParameter& p) {
  if (!p.is_scalar()) return {static_cast<const std::byte*>(p.data())};
  return {nullptr, read_unaligned<std::int32_t>(p.data())};
}

}  // namespace kvant::ops
