// Checks of the buffers that a plan is given, shared by all front desks. `who` is called for the beginning of a
// sentence ("quantize_per_group"), and only where something is refused.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/float_environment.h"
#include "base/refuse.h"
#include "kvant/element.h"
#include "kvant/granularity.h"
#include "kvant/plan.h"
#include "kvant/status.h"
#include "kvant/tensor.h"
#include "ops/overlap.h"

namespace kvant::ops {

// The helpers take AnyRef and AnyMut alike: copying one into the other would cost more than the checks.
template <class View>
std::int64_t stride_bytes(const View& view) {
  return row_bytes(view.kind, view.row_stride == 0 ? view.shape.row_length() : view.row_stride);
}

template <class View>
bool has_gaps(const View& view) {
  return view.row_stride != 0 && view.row_stride != view.shape.row_length();
}

template <class View>
Extent extent(const View& view, std::int64_t rows) {
  return {view.data, rows, row_bytes(view.kind, view.shape.row_length()), stride_bytes(view)};
}

template <class T>
T read_unaligned(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// A scale given as one f32 or f64. On the bits, because the caller's floating-point mode is still in force where
// arguments are checked: with denormals read as zero or an exception unmasked, a comparison could refuse a good scale
// or end the program.
class OneScale {
 public:
  OneScale(ElementKind kind, const void* data)
      : wide_(kind == ElementKind::f64),
        bits_(wide_ ? read_unaligned<std::uint64_t>(data) : read_unaligned<std::uint32_t>(data)) {}

  bool is_finite_and_positive() const {
    const std::uint64_t infinity = wide_ ? 0x7FF0000000000000 : 0x7F800000;
    return bits_ != 0 && bits_ < infinity;  // a set sign bit makes it larger than infinity's
  }
  // 2^-128 (2^-1024): its reciprocal is the least power of two that overflows; the next number's is finite.
  bool has_finite_reciprocal() const { return bits_ > (wide_ ? 0x0004000000000000 : 0x00200000); }
  std::string to_string() const {
    const base::DefaultFloatEnvironment environment;  // formatting a number computes with it
    if (wide_) return fmt::format("{}", read_unaligned<double>(&bits_));
    return fmt::format("{}", read_unaligned<float>(&bits_));  // the lower half comes first
  }

 private:
  bool wide_;
  std::uint64_t bits_;
};

// A view against what the plan was selected for: kind, shape, stride, address. No rows: nothing is touched.
template <class Who, class View>
Status check_view(const Who& who, const char* what, const View& view, ElementKind kind, const Shape& shape,
                  std::int64_t rows) {
  if (view.kind != kind)
    return base::unsupported("{}: {} has element {}, the plan was selected for {}", who(), what, name(view.kind),
                             name(kind));
  if (!(view.shape == shape))
    return base::invalid_problem("{}: {} has shape {}, the plan was selected for {}", who(), what,
                                 view.shape.to_string(), shape.to_string());
  if (view.row_stride != 0) {
    if (view.row_stride < view.shape.row_length())
      return base::invalid_problem("{}: {} has row stride {}, which is less than its row of {}", who(), what,
                                   view.row_stride, view.shape.row_length());
    if (is_packed(kind) && view.row_stride % 2 != 0)
      return base::invalid_problem("{}: {} has row stride {}; rows of {} begin at a whole byte, so it must be even",
                                   who(), what, view.row_stride, name(kind));
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(view.row_stride, std::int64_t{8}, &bytes) || __builtin_mul_overflow(bytes, rows, &bytes))
      return base::invalid_problem("{}: {} has row stride {} in shape {}, more bytes than 63 bits count", who(), what,
                                   view.row_stride, view.shape.to_string());
  }
  if (view.data == nullptr && rows != 0)
    return base::invalid_problem("{}: {} is null for shape {}", who(), what, shape.to_string());
  return {};
}

// parameter_shape() in the name of `who`, for a shape whose bytes can be counted.
template <class Who>
Result<Shape> checked_parameter_shape(const Who& who, const Shape& shape, const Granularity& granularity) {
  auto parameters = parameter_shape(shape, granularity);
  if (!parameters.ok()) {  // "per_group: …" becomes "quantize_per_group: …"
    const std::string_view reason = parameters.status().message();
    return Status(parameters.status().code(), fmt::format("{}{}", who(), reason.substr(reason.find(':'))));
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(*shape.element_count(), std::int64_t{8}, &bytes))
    return base::invalid_problem("{}: shape {} has more bytes than 63 bits count", who(), shape.to_string());
  return parameters;
}

// The shapes that a parameter tensor may have: as the granularity says, flat, or per token with a last size of 1.
inline bool parameter_shape_fits(const Shape& given, const Shape& wanted, std::int64_t count,
                                 GranularityKind granularity) {
  if (given == wanted) return true;
  if (given.rank() == 1 && given[0] == count) return true;
  if (granularity != GranularityKind::token || given.rank() != wanted.rank() + 1) return false;
  for (int i = 0; i < wanted.rank(); ++i)
    if (given[i] != wanted[i]) return false;
  return given[wanted.rank()] == 1;
}

// What a plan expects of its parameter tensors.
struct ParameterShape {
  const Shape& shape;
  std::int64_t count;
  GranularityKind granularity;
};

// A dense tensor of parameters; `used` is false where nothing would be read or written.
template <class Who>
Status check_parameters(const Who& who, const char* what, ElementKind given_kind, const Shape& given,
                        std::int64_t row_stride, const void* data, ElementKind kind, const ParameterShape& wanted,
                        bool used) {
  if (given_kind != kind)
    return base::unsupported("{}: {} has element {}, must be {}", who(), what, name(given_kind), name(kind));
  if (!parameter_shape_fits(given, wanted.shape, wanted.count, wanted.granularity))
    return base::invalid_problem("{}: {} has shape {}, must have {}", who(), what, given.to_string(),
                                 wanted.shape.to_string());
  if (row_stride != 0 && row_stride != given.row_length())
    return base::invalid_problem("{}: {} has row stride {}, must be dense", who(), what, row_stride);
  if (data == nullptr && wanted.count != 0 && used)
    return base::invalid_problem("{}: {} is null, must point at {} of them", who(), what, wanted.count);
  return {};
}

template <class Who>
Status check_workspace(const Who& who, const Workspace& workspace, std::size_t needed) {
  if (needed == 0) return {};
  if (workspace.size < needed)
    return base::refuse(StatusCode::WorkspaceTooSmall, "{}: workspace has {} bytes, needs {}", who(), workspace.size,
                        needed);
  if (workspace.data == nullptr) return base::invalid_problem("{}: workspace is null, needs {} bytes", who(), needed);
  return {};
}

}  // namespace kvant::ops
