// The caller's arguments as a GPU's kernels take them.
#pragma once

#include <cstdint>

#include "base/refuse.h"
#include "core/device_kernel.h"
#include "kvant/tensor.h"
#include "ops/views.h"

namespace kvant::ops {

// GPUs read and write whole elements at multiples of their size; the CPU takes any address.
template <class Who>
Status check_alignment(const Who& who, const char* what, ElementKind kind, const void* data) {
  const auto bytes = static_cast<std::uintptr_t>(row_bytes(kind, 1));
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (address % bytes == 0) return {};
  return base::refuse(StatusCode::MisalignedOperand, "{}: {} is {} bytes beyond a multiple of {}, where CUDA needs {}",
                      who(), what, address % bytes, bytes, name(kind));
}
template <class Who, class View>
Status check_alignment(const Who& who, const char* what, const View& view) {
  return check_alignment(who, what, view.kind, view.data);
}
template <class Who>
Status check_alignment(const Who& who, const char* what, const AnyParameter& p) {
  return p.is_scalar() ? Status() : check_alignment(who, what, p.kind(), p.data());
}

// What became of a launch.
template <class Who>
Status launched(const Who& who, int error) {
  return error == 0 ? Status() : cuda::launch_status(who(), error);
}

inline detail::DeviceScales device_scales(const AnyParameter& p) {
  if (!p.is_scalar()) return {static_cast<const std::byte*>(p.data())};
  const double value = p.kind() == ElementKind::f64 ? read_unaligned<double>(p.data())
                                                    : static_cast<double>(read_unaligned<float>(p.data()));
  return {nullptr, value};
}
inline detail::DeviceZeroPoints device_zero_points(const AnyParameter& p) {
  if (!p.is_scalar()) return {static_cast<const std::byte*>(p.data())};
  return {nullptr, read_unaligned<std::int32_t>(p.data())};
}

}  // namespace kvant::ops
