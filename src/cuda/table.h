// What the tables of kernels in this folder are made with, and how a launch ends.
#pragma once

#include <array>
#include <cstddef>

#include "base/who.h"
#include "core/cuda_backend.h"
#include "core/guarantee.h"
#include "core/type_lists.h"
#include "kvant/element.h"
#include "kvant/sku.h"
#include "kvant/status.h"

namespace kvant::cuda {

// The kernels of one family, defined by its .cu file.
template <class Kernel>
detail::KernelList<Kernel> kernels();
// Families that exist on the CPU only.
template <>
inline detail::KernelList<detail::F32LinearKernel> kernels<detail::F32LinearKernel>() {
  return {};
}
template <>
inline detail::KernelList<detail::ErrorSumsKernel> kernels<detail::ErrorSumsKernel>() {
  return {};
}
template <>
inline detail::KernelList<detail::NetworkStepsKernel> kernels<detail::NetworkStepsKernel>() {
  return {};
}
template <>
inline detail::KernelList<detail::WeightRoundingKernel> kernels<detail::WeightRoundingKernel>() {
  return {};
}

template <class C>
consteval KernelSku device_sku(QuantizeKind op, ElementKind element, ElementKind aux_element) {
  return detail::bit_stable_sku<C>(ArchSku::sm_80, op, element, aux_element);
}

// What became of a launch.
inline Status launched(const base::Who& who, int error) { return error == 0 ? Status() : launch_status(who(), error); }

// A table of kernels as pointers to what every backend's kernels of the family have in common.
template <class Kernel, class DeviceKernel, std::size_t kCount>
constexpr std::array<const Kernel*, kCount> pointers_to(const std::array<DeviceKernel, kCount>& kernels) {
  std::array<const Kernel*, kCount> pointers = {};
  for (std::size_t i = 0; i < kCount; ++i) pointers[i] = &kernels[i];
  return pointers;
}

}  // namespace kvant::cuda
