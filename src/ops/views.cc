#include "ops/views.h"

#include "base/float_environment.h"
#include "base/refuse.h"

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

detail::Scales scales_of(const AnyParameter& p) {
  if (!p.is_scalar()) return {.data = static_cast<const std::byte*>(p.data())};
  if (p.kind() == ElementKind::f64) return {.f64 = read_unaligned<double>(p.data())};
  return {.f32 = read_unaligned<float>(p.data())};
}

detail::ZeroPoints zero_points_of(const AnyParameter& p) {
  if (!p.is_scalar()) return {static_cast<const std::byte*>(p.data())};
  return {nullptr, read_unaligned<std::int32_t>(p.data())};
}

}  // namespace kvant::ops
