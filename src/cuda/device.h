// The one door to the GPU. Kernels in this folder reach CUDA through what is declared here and through nothing else, so
// that the same text compiles twice: by nvcc for a GPU, and by any C++ compiler for an executor that runs every GPU
// thread on the CPU and checks each access. The executor includes its own device_host.h, which declares the same names,
// before this file.
//
// Rules that make the second compilation worth something:
// - global memory is touched by load() and store() only, shared memory by shared_load(), shared_store(), copy_async16()
//   and load_matrices(), at byte offsets into the launch's dynamic shared memory;
// - load and store of a T need an address that is a multiple of sizeof(T), which is 1, 2, 4, 8 or 16;
// - warp operations are called by all 32 lanes of a warp, which is 32 threads with consecutive linear_thread();
// - blocks have a multiple of 32 threads;
// - all threads of a block reach the same sync_block().
//
//   KVANT_KERNEL      a function that launch() starts             KVANT_DEVICE    a function that kernels call
//   KVANT_BLOCK(t, b) at most t threads in a block, b blocks wanted on a multiprocessor
//   KVANT_UNROLL      in front of a loop: unroll it
//
//   thread_index() block_index() block_size() grid_size()    .x .y
//   linear_thread()                                          the thread's number in its block, x first
//   sync_block() sync_warp()                                 barriers that order memory
//   shuffle(v, lane) shuffle_xor(v, mask) ballot(b)          for 32-bit and 64-bit values
//   copy_async16(to, from, bytes)  copies `bytes` (0 to 16) from 16-byte aligned global memory to a 16-byte aligned
//                                  shared offset, the rest of the 16 becoming zero; nothing is read for 0. Done only
//                                  after copy_async_commit() and copy_async_wait<N>(), which waits until at most N
//                                  committed groups of this thread are pending; others see it after a barrier.
//   load_matrices(offset)          four 8×8 matrices of 16-bit units: lanes 8i … 8i+7 give the (16-byte aligned) rows
//                                  of matrix i; word i of lane l is units 2(l % 4), 2(l % 4) + 1 of row l / 4.
//                                  (ldmatrix.sync.m8n8.x4)
//   dot4(a, b, c)                  c + the four products of signed bytes (dp4a)
//   mma_s8(c, a, b)                c += A × B for A [16, 32] and B [32, 8] of signed bytes (mma.sync m16n8k32). With
//                                  g = lane / 4 and t = lane % 4, bytes from the lowest:
//                                    a[0]  row g,     columns 4t … 4t+3          b[0]  rows 4t … 4t+3 of column g
//                                    a[1]  row g + 8, columns 4t … 4t+3          b[1]  rows 4t+16 … 4t+19 of column g
//                                    a[2]  row g,     columns 4t+16 … 4t+19      c[0] c[1]  row g,     columns 2t 2t+1
//                                    a[3]  row g + 8, columns 4t+16 … 4t+19      c[2] c[3]  row g + 8, columns 2t 2t+1
//   add_rn sub_rn mul_rn div_rn fma_rn round_even to_int_rn  rounded to nearest even; to_int_rn(NaN) is 0 for float
//                                  and INT_MIN for double, and numbers beyond int saturate
//   magnitude(a)                   |a|, on the bits
//   default_nan<C>() bits_to_float float_to_bits bits_to_double double_to_bits
//   to_real<C>(i)                  an int or long long, rounded to nearest even
//   kHasFloat8, to_float8(y, e4m3) the code of y in e4m3 or e5m2, saturating, by one instruction (sm_89 and later)
//   with_sign(a, b)                the magnitude of a with the sign of b
//   half_to_float float_to_half    on the bits of an IEEE half; rounded to nearest even
//   launch(stream, shape, kernel, arguments…)    0, or an error for error_text()
#pragma once

#if defined(__CUDACC__)

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "core/device_stream.h"

#define KVANT_DEVICE __device__ __forceinline__
#define KVANT_KERNEL __global__
#define KVANT_BLOCK(threads, blocks) __launch_bounds__(threads, blocks)
#define KVANT_UNROLL _Pragma("unroll")

namespace kvant::device {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// 16 bytes that move as one.
struct alignas(16) Words4 {
  std::uint32_t w[4];
};

struct Index2 {
  unsigned x;
  unsigned y;
};

KVANT_DEVICE Index2 thread_index() { return {threadIdx.x, threadIdx.y}; }
KVANT_DEVICE Index2 block_index() { return {blockIdx.x, blockIdx.y}; }
KVANT_DEVICE Index2 block_size() { return {blockDim.x, blockDim.y}; }
KVANT_DEVICE Index2 grid_size() { return {gridDim.x, gridDim.y}; }
KVANT_DEVICE unsigned linear_thread() { return threadIdx.y * blockDim.x + threadIdx.x; }

KVANT_DEVICE void sync_block() { __syncthreads(); }
KVANT_DEVICE void sync_warp() { __syncwarp(); }
template <class T>
KVANT_DEVICE T shuffle(T value, unsigned lane) {
  return __shfl_sync(kAllLanes, value, static_cast<int>(lane));
}
template <class T>
KVANT_DEVICE T shuffle_xor(T value, unsigned mask) {
  return __shfl_xor_sync(kAllLanes, value, static_cast<int>(mask));
}
KVANT_DEVICE unsigned ballot(bool b) { return __ballot_sync(kAllLanes, b); }

template <class T>
KVANT_DEVICE T load(const void* p) {
  return *static_cast<const T*>(p);
}
template <>
KVANT_DEVICE Words4 load<Words4>(const void* p) {
  const uint4 v = *static_cast<const uint4*>(p);
  return {{v.x, v.y, v.z, v.w}};
}
template <class T>
KVANT_DEVICE void store(void* p, const T& value) {
  *static_cast<T*>(p) = value;
}
KVANT_DEVICE void store(void* p, const Words4& value) {
  *static_cast<uint4*>(p) = make_uint4(value.w[0], value.w[1], value.w[2], value.w[3]);
}

KVANT_DEVICE unsigned char* shared_bytes() {
  extern __shared__ __align__(16) unsigned char bytes[];
  return bytes;
}
KVANT_DEVICE unsigned shared_address(unsigned offset) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared_bytes() + offset));
}
template <class T>
KVANT_DEVICE T shared_load(unsigned offset) {
  return *reinterpret_cast<const T*>(shared_bytes() + offset);
}
template <class T>
KVANT_DEVICE void shared_store(unsigned offset, const T& value) {
  *reinterpret_cast<T*>(shared_bytes() + offset) = value;
}

KVANT_DEVICE void copy_async16(unsigned to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
}
KVANT_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
KVANT_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

KVANT_DEVICE Words4 load_matrices(unsigned offset) {
  Words4 r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.w[0]), "=r"(r.w[1]), "=r"(r.w[2]), "=r"(r.w[3])
               : "r"(shared_address(offset))
               : "memory");
  return r;
}

KVANT_DEVICE int dot4(std::uint32_t a, std::uint32_t b, int c) {
  return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
}
KVANT_DEVICE void mma_s8(int (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

KVANT_DEVICE float add_rn(float a, float b) { return __fadd_rn(a, b); }
KVANT_DEVICE float sub_rn(float a, float b) { return __fsub_rn(a, b); }
KVANT_DEVICE float mul_rn(float a, float b) { return __fmul_rn(a, b); }
KVANT_DEVICE float div_rn(float a, float b) { return __fdiv_rn(a, b); }
KVANT_DEVICE float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
KVANT_DEVICE float round_even(float a) { return rintf(a); }
KVANT_DEVICE int to_int_rn(float a) { return __float2int_rn(a); }
KVANT_DEVICE float magnitude(float a) { return fabsf(a); }
KVANT_DEVICE double add_rn(double a, double b) { return __dadd_rn(a, b); }
KVANT_DEVICE double sub_rn(double a, double b) { return __dsub_rn(a, b); }
KVANT_DEVICE double mul_rn(double a, double b) { return __dmul_rn(a, b); }
KVANT_DEVICE double div_rn(double a, double b) { return __ddiv_rn(a, b); }
KVANT_DEVICE double fma_rn(double a, double b, double c) { return __fma_rn(a, b, c); }
KVANT_DEVICE double round_even(double a) { return rint(a); }
KVANT_DEVICE int to_int_rn(double a) { return __double2int_rn(a); }
KVANT_DEVICE double magnitude(double a) { return fabs(a); }

template <class C>
KVANT_DEVICE C to_real(long long i);
template <>
KVANT_DEVICE float to_real<float>(long long i) {
  return __ll2float_rn(i);
}
template <>
KVANT_DEVICE double to_real<double>(long long i) {
  return __ll2double_rn(i);
}
template <class C>
KVANT_DEVICE C to_real(int i);
template <>
KVANT_DEVICE float to_real<float>(int i) {
  return __int2float_rn(i);
}
template <>
KVANT_DEVICE double to_real<double>(int i) {
  return __int2double_rn(i);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
inline constexpr bool kHasFloat8 = true;
KVANT_DEVICE int to_float8(float y, bool e4m3) {
  unsigned short pair;
  if (e4m3)
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(y));
  else
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(y));
  return pair & 0xFF;
}
#else
inline constexpr bool kHasFloat8 = false;
KVANT_DEVICE int to_float8(float, bool) { return 0; }
#endif
KVANT_DEVICE float with_sign(float a, float signed_like) { return copysignf(a, signed_like); }

KVANT_DEVICE float bits_to_float(std::uint32_t bits) { return __uint_as_float(bits); }
KVANT_DEVICE std::uint32_t float_to_bits(float f) { return __float_as_uint(f); }
KVANT_DEVICE double bits_to_double(std::uint64_t bits) { return __longlong_as_double(static_cast<long long>(bits)); }
KVANT_DEVICE std::uint64_t double_to_bits(double d) { return static_cast<std::uint64_t>(__double_as_longlong(d)); }
KVANT_DEVICE float half_to_float(std::uint16_t h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
KVANT_DEVICE std::uint16_t float_to_half(float f) {
  std::uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
template <class C>
KVANT_DEVICE C default_nan();
template <>
KVANT_DEVICE float default_nan<float>() {
  return bits_to_float(0x7FC00000u);
}
template <>
KVANT_DEVICE double default_nan<double>() {
  return bits_to_double(0x7FF8000000000000u);
}

struct LaunchShape {
  Index2 grid;
  Index2 block;
  unsigned shared_bytes = 0;
};

template <class... Parameters, class... Arguments>
int launch(const detail::DeviceStream& stream, const LaunchShape& shape, void (*kernel)(Parameters...),
           const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.grid.x, shape.grid.y);
  config.blockDim = dim3(shape.block.x, shape.block.y);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.handle);
  // Not <<<…>>> and cudaGetLastError(), which would tell of what the host program did before.
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (error != cudaSuccess) (void)cudaGetLastError();  // it is told here, and not once more by another call
  return static_cast<int>(error);
}
inline const char* error_text(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

}  // namespace kvant::device

#elif !defined(KVANT_DEVICE)
#error "Not a CUDA compiler: include an executor's declarations of these names first"
#endif
