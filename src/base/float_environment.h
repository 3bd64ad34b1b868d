// The floating-point mode that kernels run in, whatever the caller's is: round to nearest even, denormals kept,
// exceptions masked. Saved and restored around the work of each thread, exception flags included.
#pragma once

#include <cfenv>
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kvant::base {

#if defined(__x86_64__)
// Reading the register costs about 3 ns and writing it more, so it is written only where that changes something.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() : saved_(_mm_getcsr()) {
    if ((saved_ & kControl) != kDefault) _mm_setcsr(kDefault);
  }
  ~DefaultFloatEnvironment() {
    if (_mm_getcsr() != saved_) _mm_setcsr(saved_);
  }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  static constexpr unsigned kDefault = 0x1F80;  // all exceptions masked, everything else off
  static constexpr unsigned kControl = 0xFFC0;  // all but the sticky exception flags
  unsigned saved_;
};
#else
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};
#endif

}  // namespace kvant::base
