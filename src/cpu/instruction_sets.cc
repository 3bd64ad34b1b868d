#include "cpu/instruction_sets.h"

#include <array>
#include <cstdint>

#include "cpu/isa/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kvant::cpu {

// Of the headers in cpu/isa, which only code for their instruction set may include.
struct ScalarIsa;
struct Avx2Isa;

namespace {

#if defined(KVANT_HAS_AVX2)
// AVX2, FMA and F16C in the processor, and an operating system that saves the upper halves of the registers.
bool has_avx2() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kNeeded = bit_FMA | bit_F16C | bit_AVX | bit_OSXSAVE;
  if ((c & kNeeded) != kNeeded) return false;
  std::uint32_t lo = 0, hi = 0;
  __asm__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  if ((lo & 0x6) != 0x6) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_AVX2) != 0;
}
#endif

// The kernels of every family that were compiled for Isa.
template <class Isa>
detail::KernelSet kernels_of(ArchSku arch) {
  return detail::make_kernel_set(
      arch, []<class Kernel>(TypeList<Kernel>) { return kernels<Isa, Kernel>(); }, detail::KernelFamilies{});
}

}  // namespace

std::span<const InstructionSet> instruction_sets() {
  static const std::array all = {
#if defined(KVANT_HAS_AVX2)
    InstructionSet{kernels_of<Avx2Isa>(ArchSku::avx2), has_avx2()},
#endif
    InstructionSet{kernels_of<ScalarIsa>(ArchSku::scalar), true},
  };
  return all;
}

const InstructionSet* instruction_set(ArchSku arch) {
  for (const InstructionSet& set : instruction_sets())
    if (set.arch() == arch) return &set;
  return nullptr;
}

bool can_run(ArchSku arch) {
  const InstructionSet* set = instruction_set(arch);
  return set != nullptr && set->runs_here;
}

}  // namespace kvant::cpu
