// How the kernels of an instruction set reach its KernelSet. Each family has one source in src/cpu (elementwise.cc …),
// which CMake compiles once for each instruction set: KVANT_ISA_HEADER names the header of this folder that says what
// the instruction set is, and KVANT_ISA the struct in it.
#pragma once

#include <array>
#include <cstddef>

#include "core/kernel_set.h"

namespace kvant::cpu {

// The kernels of one family, defined where the family is compiled for Isa.
template <class Isa, class Kernel>
detail::KernelList<Kernel> kernels();

// A table of kernels as pointers to what every backend's kernels of the family have in common.
template <class Kernel, class CpuKernel, std::size_t kCount>
constexpr std::array<const Kernel*, kCount> pointers_to(const std::array<CpuKernel, kCount>& kernels) {
  std::array<const Kernel*, kCount> pointers = {};
  for (std::size_t i = 0; i < kCount; ++i) pointers[i] = &kernels[i];
  return pointers;
}

}  // namespace kvant::cpu
