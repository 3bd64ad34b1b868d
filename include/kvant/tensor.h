// Views: where the elements of a tensor are, and its shape. A view owns nothing.
//
// Data is row-major. A row is the last dimension. `row_stride` is the distance between the starts of two
// neighbouring rows in elements; 0 means dense (rows follow each other without a gap; packed rows are rounded up to
// whole bytes). A stride must be at least the row's length and, for packed types, a multiple of the elements in a byte.
// Pointers need no alignment.
//
//   std::vector<float> x(64 * 128);
//   kvant::TensorRef<float> all(x.data(), {64, 128});
//   kvant::TensorRef<float> left_half(x.data(), {64, 64}, 128);
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "kvant/element.h"
#include "kvant/export.h"

namespace kvant {

inline constexpr int kMaxRank = 8;

// Up to kMaxRank signed 64-bit sizes. Rank 0 is a single element; a size of 0 is valid and means no
// elements. Every select() refuses a shape with more than kMaxRank sizes (rank() says how many).
class Shape {
 public:
  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<std::int64_t> sizes)
      : Shape(std::span<const std::int64_t>(sizes.begin(), sizes.size())) {}
  constexpr explicit Shape(std::span<const std::int64_t> sizes) : rank_(static_cast<int>(sizes.size())) {
    for (int i = 0; i < rank_ && i < kMaxRank; ++i) sizes_[i] = sizes[static_cast<std::size_t>(i)];
  }

  constexpr int rank() const { return rank_; }
  constexpr std::int64_t operator[](int i) const { return sizes_[i]; }
  constexpr std::int64_t& operator[](int i) { return sizes_[i]; }

  // The last size; 1 for rank 0.
  constexpr std::int64_t row_length() const { return rank_ == 0 ? 1 : sizes_[rank_ - 1]; }

  // The number of elements. Nothing if a size is negative, the rank is above kMaxRank, or the product of the non-zero
  // sizes overflows 63 bits (even if another size is 0).
  KVANT_API std::optional<std::int64_t> element_count() const;

  // "[64, 128]"
  KVANT_API std::string to_string() const;

  friend constexpr bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_ && i < kMaxRank; ++i)
      if (a.sizes_[i] != b.sizes_[i]) return false;
    return true;
  }

 private:
  std::int64_t sizes_[kMaxRank] = {};
  int rank_ = 0;
};

// Views for callers that learn the element kind at run time.
struct AnyRef {
  const void* data = nullptr;
  ElementKind kind = ElementKind::f32;
  Shape shape;
  std::int64_t row_stride = 0;
};
struct AnyMut {
  void* data = nullptr;
  ElementKind kind = ElementKind::f32;
  Shape shape;
  std::int64_t row_stride = 0;

  operator AnyRef() const { return {data, kind, shape, row_stride}; }  // NOLINT: a mutable view reads too
};

// The same with the element kind in the type.
template <class T>
struct TensorRef : AnyRef {
  TensorRef() : AnyRef{nullptr, kind_of<T>, {}, 0} {}
  TensorRef(const storage_t<T>* elements, const Shape& sizes, std::int64_t stride = 0)
      : AnyRef{elements, kind_of<T>, sizes, stride} {}
};
template <class T>
struct TensorMut : AnyMut {
  TensorMut() : AnyMut{nullptr, kind_of<T>, {}, 0} {}
  TensorMut(storage_t<T>* elements, const Shape& sizes, std::int64_t stride = 0)
      : AnyMut{elements, kind_of<T>, sizes, stride} {}

  operator TensorRef<T>() const {  // NOLINT
    return TensorRef<T>(static_cast<const storage_t<T>*>(data), shape, row_stride);
  }
};

// A quantization parameter: one value, or a dense tensor of values in the shape that the granularity asks
// for (parameter_shape() in granularity.h).
class AnyParameter {
 public:
  AnyParameter() = default;
  explicit AnyParameter(float value) : kind_(ElementKind::f32), scalar_(true) { value_.f32 = value; }
  explicit AnyParameter(double value) : kind_(ElementKind::f64), scalar_(true) { value_.f64 = value; }
  explicit AnyParameter(std::int32_t value) : kind_(ElementKind::s32), scalar_(true) { value_.s32 = value; }
  explicit AnyParameter(const AnyRef& tensor)
      : data_(tensor.data), kind_(tensor.kind), shape_(tensor.shape), row_stride_(tensor.row_stride) {}

  bool is_scalar() const { return scalar_; }
  ElementKind kind() const { return kind_; }
  const Shape& shape() const { return shape_; }  // [] for a scalar
  std::int64_t row_stride() const { return row_stride_; }
  const void* data() const { return scalar_ ? static_cast<const void*>(&value_) : data_; }

 private:
  union Value {
    double f64;
    float f32;
    std::int32_t s32;
  };
  const void* data_ = nullptr;
  ElementKind kind_ = ElementKind::f32;
  bool scalar_ = false;
  Value value_ = {0.0};
  Shape shape_;
  std::int64_t row_stride_ = 0;
};

template <class T>
class Parameter : public AnyParameter {
 public:
  Parameter() : AnyParameter(TensorRef<T>()) {}
  Parameter(T value) : AnyParameter(value) {}                      // NOLINT: a number is a parameter
  Parameter(const TensorRef<T>& tensor) : AnyParameter(tensor) {}  // NOLINT: and so is a tensor
};

// A scale: one number or a tensor of the compute type C, or a tensor of scales as checkpoints store them. e4m3 goes
// with a global scale.
template <class C>
class ScaleParameter : public AnyParameter {
 public:
  ScaleParameter() : AnyParameter(TensorRef<C>()) {}
  ScaleParameter(C value) : AnyParameter(value) {}                               // NOLINT: a number is a parameter
  ScaleParameter(const TensorRef<C>& tensor) : AnyParameter(tensor) {}           // NOLINT: and so are tensors
  ScaleParameter(const TensorRef<Half>& tensor) : AnyParameter(tensor) {}        // NOLINT
  ScaleParameter(const TensorRef<BFloat16>& tensor) : AnyParameter(tensor) {}    // NOLINT
  ScaleParameter(const TensorRef<Float8E8M0>& tensor) : AnyParameter(tensor) {}  // NOLINT
  ScaleParameter(const TensorRef<Float8E4M3>& tensor) : AnyParameter(tensor) {}  // NOLINT
};

// Where scales are written: in the compute type C, or as checkpoints store them.
template <class C>
struct ScaleMut : AnyMut {
  ScaleMut() : AnyMut{nullptr, kind_of<C>, {}, 0} {}
  ScaleMut(C* elements, const Shape& sizes, std::int64_t stride = 0) : AnyMut{elements, kind_of<C>, sizes, stride} {}
  template <class T>
  ScaleMut(const TensorMut<T>& tensor) : AnyMut(tensor) {}  // NOLINT
};

}  // namespace kvant
