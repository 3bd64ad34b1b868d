#include "cpu/features.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>
#endif

namespace kvant::cpu {
namespace {

#if defined(__x86_64__)
// AVX2, FMA and F16C in the processor, and an operating system that saves the upper halves of the registers.
bool detect_avx2() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kNeeded = bit_FMA | bit_F16C | bit_AVX | bit_OSXSAVE;
  if ((c & kNeeded) != kNeeded) return false;
  std::uint32_t lo = 0, hi = 0;
  __asm__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  if ((lo & 0x6) != 0x6) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_AVX2) != 0;
}
#else
bool detect_avx2() { return false; }
#endif

#if defined(KVANT_HAS_AVX2)
constexpr ArchSku kCompiled[] = {ArchSku::avx2, ArchSku::scalar};
#else
constexpr ArchSku kCompiled[] = {ArchSku::scalar};
#endif

}  // namespace

std::span<const ArchSku> compiled_isas() { return kCompiled; }

bool can_run(ArchSku arch) {
  static const bool has_avx2 = detect_avx2();
  switch (arch) {
    case ArchSku::scalar: return true;
    case ArchSku::avx2: return has_avx2;
    case ArchSku::sm_80: return false;
  }
  return false;
}

}  // namespace kvant::cpu
