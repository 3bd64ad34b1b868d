// CUDA lanes: one number in each thread. The vocabulary of semantics/lanes.h, with every rounding spelled out so that
// no compiler flag can change a bit.
#pragma once

#include <cuda_runtime.h>

#include "semantics/inline.h"

namespace kvant::cuda {

template <class Compute>
struct DeviceLanes;

// What does not depend on the compute type.
struct DeviceIntegers {
  using I = int;
  using M = bool;
  static constexpr int kWidth = 1;
  static constexpr bool kHasFma = true;

  static __device__ __forceinline__ I set_int(int i) { return i; }
  static __device__ __forceinline__ I add_int(I a, I b) { return a + b; }
  static __device__ __forceinline__ I sub_int(I a, I b) { return a - b; }
  static __device__ __forceinline__ I min_int(I a, I b) { return a < b ? a : b; }
  static __device__ __forceinline__ I max_int(I a, I b) { return a > b ? a : b; }
  static __device__ __forceinline__ M both(M a, M b) { return a && b; }
  static __device__ __forceinline__ bool all(M m) { return m; }
  static __device__ __forceinline__ I select_int(M m, I a, I b) { return m ? a : b; }
};

template <>
struct DeviceLanes<float> : DeviceIntegers {
  using C = float;
  using F = float;

  static __device__ __forceinline__ F set(C c) { return c; }
  static __device__ __forceinline__ F add(F a, F b) { return __fadd_rn(a, b); }
  static __device__ __forceinline__ F sub(F a, F b) { return __fsub_rn(a, b); }
  static __device__ __forceinline__ F mul(F a, F b) { return __fmul_rn(a, b); }
  static __device__ __forceinline__ F div(F a, F b) { return __fdiv_rn(a, b); }
  static __device__ __forceinline__ F fma(F a, F b, F c) { return __fmaf_rn(a, b, c); }
  static __device__ __forceinline__ F fnma(F a, F b, F c) { return __fmaf_rn(-a, b, c); }
  static __device__ __forceinline__ F min(F a, F b) { return a < b ? a : b; }
  static __device__ __forceinline__ F max(F a, F b) { return a > b ? a : b; }
  static __device__ __forceinline__ F round_even(F a) { return rintf(a); }
  static __device__ __forceinline__ I to_int(F a) { return __float2int_rn(a); }  // NaN gives 0
  static __device__ __forceinline__ F to_float(I i) { return __int2float_rn(i); }
  static __device__ __forceinline__ M le(F a, F b) { return a <= b; }
  static __device__ __forceinline__ F masked(M m, F a) { return m ? a : 0.0f; }
  static __device__ __forceinline__ F select(M m, F a, F b) { return m ? a : b; }
  static __device__ __forceinline__ F abs(F a) { return fabsf(a); }
  static __device__ __forceinline__ F zero_if_nan(F a) { return a == a ? a : 0.0f; }
  static __device__ __forceinline__ F nan_if_nan(F a) { return a == a ? a : __int_as_float(0x7FC00000); }
};

template <>
struct DeviceLanes<double> : DeviceIntegers {
  using C = double;
  using F = double;

  static __device__ __forceinline__ F set(C c) { return c; }
  static __device__ __forceinline__ F add(F a, F b) { return __dadd_rn(a, b); }
  static __device__ __forceinline__ F sub(F a, F b) { return __dsub_rn(a, b); }
  static __device__ __forceinline__ F mul(F a, F b) { return __dmul_rn(a, b); }
  static __device__ __forceinline__ F div(F a, F b) { return __ddiv_rn(a, b); }
  static __device__ __forceinline__ F fma(F a, F b, F c) { return __fma_rn(a, b, c); }
  static __device__ __forceinline__ F fnma(F a, F b, F c) { return __fma_rn(-a, b, c); }
  static __device__ __forceinline__ F min(F a, F b) { return a < b ? a : b; }
  static __device__ __forceinline__ F max(F a, F b) { return a > b ? a : b; }
  static __device__ __forceinline__ F round_even(F a) { return rint(a); }
  static __device__ __forceinline__ I to_int(F a) { return __double2int_rn(a); }
  static __device__ __forceinline__ F to_float(I i) { return __int2double_rn(i); }
  static __device__ __forceinline__ M le(F a, F b) { return a <= b; }
  static __device__ __forceinline__ F masked(M m, F a) { return m ? a : 0.0; }
  static __device__ __forceinline__ F select(M m, F a, F b) { return m ? a : b; }
  static __device__ __forceinline__ F abs(F a) { return fabs(a); }
  static __device__ __forceinline__ F zero_if_nan(F a) { return a == a ? a : 0.0; }
  static __device__ __forceinline__ F nan_if_nan(F a) {
    return a == a ? a : __longlong_as_double(0x7FF8000000000000LL);
  }
};

}  // namespace kvant::cuda
