// Checks of the buffers that a plan is given, shared by all front desks.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/who.h"
#include "core/parameters.h"
#include "core/range_kernel.h"
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
  std::string to_string() const;

 private:
  bool wide_;
  std::uint64_t bits_;
};

// What a view says besides its shape, which AnyRef and AnyMut have in different types.
struct ViewFacts {
  const void* data;
  ElementKind kind;
  const Shape* shape;
  std::int64_t row_stride;

  ViewFacts(const AnyRef& v) : data(v.data), kind(v.kind), shape(&v.shape), row_stride(v.row_stride) {}  // NOLINT
  ViewFacts(const AnyMut& v) : data(v.data), kind(v.kind), shape(&v.shape), row_stride(v.row_stride) {}  // NOLINT
};

// A view against what the plan was selected for: kind, shape, stride, address. No rows: nothing is touched. What is
// usual is seen to be right inline; run() on 64 elements takes 100 ns.
Status check_unusual_view(const base::Who& who, const char* what, const ViewFacts& view, ElementKind kind,
                          const Shape& shape, std::int64_t rows);
template <class View>
Status check_view(const base::Who& who, const char* what, const View& view, ElementKind kind, const Shape& shape,
                  std::int64_t rows) {
  if (view.kind == kind && view.row_stride == 0 && view.data != nullptr && view.shape == shape) return {};
  return check_unusual_view(who, what, view, kind, shape, rows);
}

// parameter_shape() in the name of `who`, for a shape whose bytes can be counted.
Result<Shape> checked_parameter_shape(const base::Who& who, const Shape& shape, const Granularity& granularity);

// The shapes that a parameter tensor may have: as the granularity says, flat, or per token with a last size of 1.
bool parameter_shape_fits(const Shape& given, const Shape& wanted, std::int64_t count, GranularityKind granularity);

// What a plan expects of its parameter tensors.
struct ParameterShape {
  const Shape& shape;
  std::int64_t count;
  GranularityKind granularity;
};

// A dense tensor of parameters; `used` is false where nothing would be read or written.
Status check_unusual_parameters(const base::Who& who, const char* what, const ViewFacts& given, ElementKind kind,
                                const ParameterShape& wanted, bool used);
template <class View>
Status check_parameters(const base::Who& who, const char* what, const View& given, ElementKind kind,
                        const ParameterShape& wanted, bool used) {
  if (given.kind == kind && given.row_stride == 0 && given.data != nullptr && given.shape == wanted.shape) return {};
  return check_unusual_parameters(who, what, given, kind, wanted, used);
}

// The kinds of scales that are codes, in the order of their names in sentences.
inline constexpr std::array kStoredScales = {ElementKind::f16, ElementKind::bf16, ElementKind::e8m0, ElementKind::e4m3};
bool is_stored_scale(ElementKind kind);

// A kind of scales for an operator that computes in `compute`: that or a code.
Status check_scale_kind(const base::Who& who, const char* what, ElementKind kind, ElementKind compute);

inline bool is_given(const AnyParameter& p) { return p.is_scalar() || p.data() != nullptr; }

// The global scale against the kind of the scales that it is over. `can_look`: it is in the CPU's memory.
Status check_global_scale(const base::Who& who, ElementKind scales, const AnyParameter& global, bool can_look);

// One scale that is a code, as the number that it stands for in the compute type.
OneScale stored_scale(ElementKind kind, const void* data, const AnyParameter& global, ElementKind compute);

Status check_workspace(const base::Who& who, const Workspace& workspace, std::size_t needed);

// GPUs read and write whole elements at multiples of their size; the CPU takes any address, and nothing is refused for
// its kernels.
class AlignmentCheck {
 public:
  AlignmentCheck(const base::Who& who, BackendKind backend) : who_(who), needed_(backend == BackendKind::cuda) {}
  template <class View>
  Status operator()(const char* what, const View& view) const {
    return needed_ ? check(what, view.kind, view.data) : Status();
  }
  Status operator()(const char* what, const AnyParameter& p) const {
    return !needed_ || p.is_scalar() ? Status() : check(what, p.kind(), p.data());
  }

 private:
  Status check(const char* what, ElementKind kind, const void* data) const;

  const base::Who& who_;
  bool needed_;
};

// A parameter as kernels take it. `global` is over scales of e4m3; null where there is none.
detail::Scales scales_of(const AnyParameter& p, const AnyParameter* global = nullptr);
detail::ZeroPoints zero_points_of(const AnyParameter& p);

// The rows of a view; kernels do not write to what they read.
template <class View>
detail::Rows rows_of(const View& view) {
  return {static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(view.data))), stride_bytes(view)};
}

}  // namespace kvant::ops
