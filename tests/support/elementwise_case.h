// A problem of the element-wise family with its buffers, and the ways tests need to run it.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kvant/kvant.h"
#include "tests/support/granularity_text.h"
#include "tests/support/kernel_log.h"
#include "tests/support/tables.h"

namespace kvant::tests {

// Memory that ends right before a page that may not be touched, so that one byte too many faults. The start is shifted
// so that the data has the misalignment of its size.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (bytes_ + page - 1) / page * page + page;
    void* p = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) std::abort();
    base_ = static_cast<std::byte*>(p);
    if (mprotect(base_ + mapped_ - page, page, PROT_NONE) != 0) std::abort();
    data_ = base_ + mapped_ - page - bytes_;
  }
  ~GuardedBuffer() { munmap(base_, mapped_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  std::byte* data() { return data_; }
  std::size_t size() const { return bytes_; }
  std::span<std::byte> bytes() { return {data_, bytes_}; }

 private:
  std::byte* base_;
  std::byte* data_;
  std::size_t mapped_;
  std::size_t bytes_;
};

inline double special_value(std::uint32_t which) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  switch (which % 12) {
    case 0: return kInf;
    case 1: return -kInf;
    case 2: return std::numeric_limits<double>::quiet_NaN();
    case 3: return -0.0;
    case 4: return 1e-40;
    case 5: return 3e38;
    case 6: return -3e38;
    case 7: return 0.5;
    case 8: return -1.5;
    case 9: return 2.5;
    case 10: return 6e-8;
    default: return -1e-42;
  }
}

inline void put_float(std::byte* at, ElementKind kind, double value) {
  const float f = static_cast<float>(value);
  switch (kind) {
    case ElementKind::f64: std::memcpy(at, &value, 8); return;
    case ElementKind::f32: std::memcpy(at, &f, 4); return;
    case ElementKind::f16: {
      const Half h = to_half(f);
      std::memcpy(at, &h, 2);
      return;
    }
    default: {
      const BFloat16 b = to_bfloat16(f);
      std::memcpy(at, &b, 2);
      return;
    }
  }
}

// Of an element, and of a byte of packed ones.
inline std::size_t unit_bytes(ElementKind kind) {
  return is_packed(kind) ? 1 : static_cast<std::size_t>(bits_per_element(kind)) / 8;
}

// Numbers around the range, with every seventh a special one; or any bits for codes. Beyond a prime number of elements
// they repeat, because large cases are about addresses and threads.
inline void fill_random(std::span<std::byte> bytes, ElementKind kind, std::mt19937& random) {
  constexpr std::size_t kDistinct = 40009;
  const std::size_t width = unit_bytes(kind);
  const std::size_t fresh = std::min(bytes.size(), kDistinct * width);
  std::normal_distribution<double> normal(0.0, 5.0);
  for (std::size_t i = 0; i + width <= fresh; i += width)
    if (is_code(kind))
      for (std::size_t b = 0; b < width; ++b) bytes[i + b] = static_cast<std::byte>(random());
    else
      put_float(&bytes[i], kind,
                random() % 7 == 0 ? special_value(static_cast<std::uint32_t>(random())) : normal(random));
  for (std::size_t done = fresh; done < bytes.size(); done += fresh)
    std::memcpy(&bytes[done], bytes.data(), std::min(fresh, bytes.size() - done));
}

// Equal bits, any NaN counting as equal to any other.
inline bool same_float(const std::byte* a, const std::byte* b, ElementKind kind) {
  const std::size_t width = static_cast<std::size_t>(bits_per_element(kind)) / 8;
  if (std::memcmp(a, b, width) == 0) return true;
  const auto is_nan = [kind](const std::byte* p) {
    if (kind == ElementKind::f64) {
      double d;
      std::memcpy(&d, p, 8);
      return d != d;
    }
    if (kind == ElementKind::f32) {
      float f;
      std::memcpy(&f, p, 4);
      return f != f;
    }
    std::uint16_t bits;
    std::memcpy(&bits, p, 2);
    const float f = kind == ElementKind::f16 ? to_float(Half{bits}) : to_float(BFloat16{bits});
    return f != f;
  };
  return is_nan(a) && is_nan(b);
}

// The first element that differs, or -1. Packed codes are compared as bytes.
inline std::int64_t first_difference(std::span<const std::byte> a, std::span<const std::byte> b, ElementKind kind) {
  if (a.size() != b.size()) return 0;
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) return -1;
  const std::size_t width = unit_bytes(kind);
  for (std::size_t i = 0; i + width <= a.size(); i += width)
    if (is_float(kind) ? !same_float(&a[i], &b[i], kind) : std::memcmp(&a[i], &b[i], width) != 0)
      return static_cast<std::int64_t>(i / width);
  return -1;
}

// The forward types of an operator on a floating-point and a code type.
inline ElementwiseDescriptor describe(QuantizeKind op, ElementKind f, ElementKind code, const Shape& shape,
                                      const Granularity& granularity) {
  const ElementwiseOperator& o = elementwise_operator(op);
  return {.op = op,
          .shape = shape,
          .granularity = granularity,
          .input = o.input == ElementClass::code ? code : f,
          .output = o.output == ElementClass::code ? code : f};
}

// The descriptors that a kernel serves: its own types, and for one that has no codes, the range of s8 or a
// floating-point grid.
inline ElementwiseDescriptor descriptor_for(const KernelSku& sku, const Shape& shape, const Granularity& granularity,
                                            std::optional<ElementKind> grid = std::nullopt) {
  const ElementKind f = is_float(sku.element) ? sku.element : sku.aux_element;
  const ElementKind code = is_code(sku.element)       ? sku.element
                           : is_code(sku.aux_element) ? sku.aux_element
                                                      : grid.value_or(ElementKind::s8);
  ElementwiseDescriptor d = describe(sku.op, f, code, shape, granularity);
  if (is_fake(sku.op)) d.grid = grid;
  return d;
}

// The floating-point grid of a problem, if it has one.
inline std::optional<ElementKind> float_grid_of(const ElementwiseDescriptor& d) {
  for (const std::optional<ElementKind> code : {d.grid, std::optional(d.input), std::optional(d.output)})
    if (code && has_float_grid(*code)) return code;
  return std::nullopt;
}

// The same problem where what is beyond the grid becomes infinity or NaN, if it can.
inline ElementwiseDescriptor unsaturated(ElementwiseDescriptor d) {
  const auto grid = float_grid_of(d);
  const bool makes_codes = elementwise_operator(d.op).rounds && !is_backward(d.op);
  if (makes_codes && grid && may_overflow(*grid)) d.saturate = false;
  return d;
}

// A kernel on one of the grids that it serves.
template <class Kernel>
struct KernelOnGrid {
  const Kernel* kernel;
  std::optional<ElementKind> grid;  // of a kernel that has no codes

  ElementwiseDescriptor descriptor(const Shape& shape, const Granularity& granularity) const {
    return descriptor_for(kernel->sku, shape, granularity, grid);
  }
  std::string name() const { return kernel->sku.name() + (grid ? "_on_" + std::string(kvant::name(*grid)) : ""); }
};
template <class Kernel>
std::vector<KernelOnGrid<Kernel>> on_each_grid(const std::vector<const Kernel*>& kernels) {
  std::vector<KernelOnGrid<Kernel>> all;
  for (const Kernel* kernel : kernels) {
    const KernelSku& sku = kernel->sku;
    all.push_back({kernel, std::nullopt});
    if (!elementwise_operator(sku.op).rounds || is_code(sku.element) || is_code(sku.aux_element)) continue;
    for (const ElementKind grid : kFloatGrids) all.push_back({kernel, grid});
  }
  return all;
}

inline const std::vector<Granularity> kGranularities2d = {
    Granularity::per_tensor(),     Granularity::per_channel(0),    Granularity::per_channel(1),
    Granularity::per_token(),      Granularity::per_group(1, 1),   Granularity::per_group(1, 5),
    Granularity::per_group(1, 8),  Granularity::per_group(1, 16),  Granularity::per_group(1, 32),
    Granularity::per_group(0, 2),  Granularity::per_group(0, 100), Granularity::per_block(2, 5),
    Granularity::per_block(2, 32), Granularity::per_block(100, 8)};

// One problem: random operands and parameters, and what the operator reads and writes.
struct ElementwiseCase {
  ElementwiseDescriptor descriptor;
  ElementKind float_kind;
  ElementKind read_kind;
  ElementKind write_kind;
  std::int64_t elements;
  std::int64_t rows;
  Shape parameter_shape_;
  std::vector<std::byte> input, gradient;
  std::vector<double> scale64;
  std::vector<float> scale32;
  std::vector<std::int32_t> zero_point;
  std::optional<ElementKind> grid;  // a floating-point one, which has no zero point
  ElementKind scale_type;           // as the operator is given scales
  std::vector<std::byte> scale;
  float global_scale = 17.25f;  // over scales of e4m3

  ElementwiseCase(const ElementwiseDescriptor& d, std::uint32_t seed, bool wild_parameters,
                  std::optional<ElementKind> scale_code = std::nullopt)
      : descriptor(d),
        float_kind(is_float(d.input) ? d.input : d.output),
        read_kind(is_backward(d.op) ? float_kind : d.input),
        write_kind(is_backward(d.op) ? float_kind : d.output),
        elements(d.shape.element_count().value()),
        rows(elements == 0 ? 0 : elements / d.shape.row_length()),
        parameter_shape_(parameter_shape(d.shape, d.granularity).value()),
        grid(float_grid_of(d)),
        scale_type(scale_code.value_or(scale_kind(float_kind))) {
    std::mt19937 random(seed);
    const auto bytes_of = [&](ElementKind kind) {
      return static_cast<std::size_t>(rows * row_bytes(kind, d.shape.row_length()));
    };
    input.resize(bytes_of(read_kind));
    gradient.resize(bytes_of(float_kind));
    fill_random(input, read_kind, random);
    fill_random(gradient, float_kind, random);
    const auto count = static_cast<std::size_t>(parameter_shape_.element_count().value());
    std::uniform_real_distribution<double> around(0.01, 0.2);
    for (std::size_t i = 0; i < count; ++i) {
      double s = around(random);
      std::int32_t zp = static_cast<std::int32_t>(random() % 9) - 4;
      // A tensor of parameters may hold anything; one number may not.
      if (wild_parameters && count > 1 && random() % 5 == 0) {
        constexpr double kWild[] = {0.0, -0.1, 1e-39, 3e38, 1e-31, 2e30};
        const auto which = static_cast<std::uint32_t>(random() % 9);
        s = which < 6    ? kWild[which]
            : which == 6 ? std::numeric_limits<double>::infinity()
            : which == 7 ? std::numeric_limits<double>::quiet_NaN()
                         : -std::numeric_limits<double>::infinity();
      }
      if (wild_parameters && random() % 5 == 0) {
        constexpr std::int32_t kWild[] = {127, -128, 300, -1000, 32001, -40001, 1 << 23, -(1 << 23)};
        zp = kWild[random() % 8];
        if (count > 1 && random() % 4 == 0) zp = random() % 2 == 0 ? INT32_MAX : INT32_MIN;
      }
      scale64.push_back(s);
      float f = static_cast<float>(s);
      if (f != f) {  // a payload that would be lost in bf16
        const std::uint32_t bits = 0x7FFFFFFF;
        std::memcpy(&f, &bits, 4);
      }
      scale32.push_back(f);
      zero_point.push_back(zp);
    }
    store_scales(wild_parameters && count > 1, random);
  }

  // Scales and zero points in memory of the caller's, as it may hold them.
  AnyParameter scale_parameter(const void* at) const {
    return AnyParameter(AnyRef{at, scale_type, parameter_shape_, 0});
  }
  AnyParameter zero_point_parameter(const void* at) const {
    return grid ? AnyParameter(std::int32_t{0}) : AnyParameter(AnyRef{at, ElementKind::s32, parameter_shape_, 0});
  }

  ElementwiseArgs args(const std::byte* x, const std::byte* dy, std::byte* out) const {
    ElementwiseArgs a;
    a.input = {x, read_kind, descriptor.shape, 0};
    a.grad_output = {dy, float_kind, descriptor.shape, 0};
    a.output = {out, write_kind, descriptor.shape, 0};
    a.scale = scale_parameter(scale.data());
    a.zero_point = zero_point_parameter(zero_point.data());
    // One number or a tensor of one.
    if (scale_type == ElementKind::e4m3)
      a.global_scale =
          elements % 2 == 0 ? AnyParameter(global_scale) : AnyParameter(AnyRef{&global_scale, ElementKind::f32, {}, 0});
    return a;
  }

  std::size_t output_bytes() const {
    return static_cast<std::size_t>(rows * row_bytes(write_kind, descriptor.shape.row_length()));
  }

  std::string describe_case() const {
    return std::string(name(descriptor.op)) + " " + std::string(name(descriptor.input)) + ">" +
           std::string(name(descriptor.output)) + " " + granularity_text(descriptor.granularity) + " shape " +
           descriptor.shape.to_string() + (grid ? " grid " + std::string(name(*grid)) : "") +
           (descriptor.saturate ? "" : " unsaturated") + " scales of " + std::string(name(scale_type));
  }

  // The result on ordinary buffers.
  std::vector<std::byte> run(const Stream& stream, ArchSku isa, Numerics numerics) const {
    std::vector<std::byte> out(output_bytes(), std::byte{0xA5});
    const auto plan = ElementwisePlan::select(stream, descriptor, {.isa = isa, .numerics = numerics});
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    if (!plan.ok()) return out;
    const Status status = plan->run(stream, {}, args(input.data(), gradient.data(), out.data()));
    EXPECT_TRUE(status.ok()) << status.message() << " in " << describe_case();
    note_kernel(plan->sku());
    return out;
  }

 private:
  // The numbers above in the type of the scales; as e8m0 and e4m3, others of their size. `wild`: any bits.
  void store_scales(bool wild, std::mt19937& random) {
    const std::size_t width = unit_bytes(scale_type);
    scale.resize(scale64.size() * width);
    for (std::size_t i = 0; i < scale64.size(); ++i) {
      std::byte* const at = &scale[i * width];
      const auto any = static_cast<std::uint32_t>(random());
      if (scale_type == ElementKind::f32)
        std::memcpy(at, &scale32[i], 4);
      else if (is_float(scale_type))
        put_float(at, scale_type, scale64[i]);
      else if (wild && any % 5 == 0)
        *at = static_cast<std::byte>(any >> 8);
      else if (scale_type == ElementKind::e8m0)
        *at = static_cast<std::byte>(120 + (any >> 8) % 5);
      else
        *at = static_cast<std::byte>(0x28 + (any >> 8) % 0x20);
    }
  }
};

}  // namespace kvant::tests
