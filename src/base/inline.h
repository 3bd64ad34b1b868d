// KVANT_INLINE: formulas must vanish into the loop that calls them, on the host and on the device. Inlining is
// also what keeps code compiled for one instruction set out of functions that another one could be linked to.
#pragma once

#if defined(__CUDACC__)
#define KVANT_INLINE __host__ __device__ __forceinline__
#define KVANT_INLINE_LAMBDA
#else
#define KVANT_INLINE inline __attribute__((always_inline))
#define KVANT_INLINE_LAMBDA __attribute__((always_inline))
#endif

// KVANT_NOINLINE: a template that several kernels share, so that it is compiled once.
#define KVANT_NOINLINE __attribute__((noinline))
