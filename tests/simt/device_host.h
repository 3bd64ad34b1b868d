// The names of cuda/device.h for the executor: see there for what they mean, and compile with -ffp-contract=off.
#pragma once

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/device_stream.h"
#include "semantics/half.h"
#include "tests/simt/machine.h"

#define KVANT_DEVICE inline
#define KVANT_KERNEL inline
#define KVANT_BLOCK(threads, blocks)
#define KVANT_UNROLL

namespace kvant::device {

static_assert(FLT_EVAL_METHOD == 0, "every operation rounds");

inline constexpr unsigned kAllLanes = simt::kAllLanes;

inline Index2 thread_index() { return simt::running.thread->index; }
inline Index2 block_index() { return simt::running.block_index; }
inline Index2 block_size() { return simt::running.shape.block; }
inline Index2 grid_size() { return simt::running.shape.grid; }
inline unsigned linear_thread() { return simt::running.thread->linear; }

inline void sync_block() { simt::sync_block(); }
inline void sync_warp() { simt::sync_warp(); }

template <class T>
T exchange(simt::Operation operation, T value, unsigned lane) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  return std::bit_cast<T>(
      static_cast<Bits>(simt::exchange(operation, std::bit_cast<Bits>(value), lane, unsigned{sizeof(T)})));
}
template <class T>
T shuffle(T value, unsigned lane) {
  return exchange(simt::Operation::shuffle, value, lane % simt::kLanes);
}
template <class T>
T shuffle_xor(T value, unsigned mask) {
  const unsigned self = simt::running.thread->lane;
  const unsigned other = self ^ mask;
  return exchange(simt::Operation::shuffle_xor, value, other < simt::kLanes ? other : self);
}
inline unsigned ballot(bool b) { return simt::ballot(b); }

template <class T>
inline constexpr bool moves_as_one = std::is_trivially_copyable_v<T>&& std::has_single_bit(sizeof(T)) &&
                                     sizeof(T) <= 16;

template <class T>
T load(const void* p) {
  static_assert(moves_as_one<T>);
  T value;
  std::memcpy(&value, simt::global<sizeof(T)>(p, simt::Access::load), sizeof value);
  return value;
}
template <class T>
void store(void* p, const T& value) {
  static_assert(moves_as_one<T>);
  std::memcpy(simt::global<sizeof(T)>(p, simt::Access::store), &value, sizeof value);
}
template <class T>
T shared_load(unsigned offset) {
  static_assert(moves_as_one<T>);
  T value;
  std::memcpy(&value, simt::shared<sizeof(T)>(offset, simt::Access::shared_load), sizeof value);
  return value;
}
template <class T>
void shared_store(unsigned offset, const T& value) {
  static_assert(moves_as_one<T>);
  std::memcpy(simt::shared<sizeof(T)>(offset, simt::Access::shared_store), &value, sizeof value);
}

inline void copy_async16(unsigned to, const void* from, int bytes) { simt::copy_async16(to, from, bytes); }
inline void copy_async_commit() { simt::copy_async_commit(); }
template <int kPending>
void copy_async_wait() {
  static_assert(kPending >= 0);
  simt::copy_async_wait(unsigned{kPending});
}

inline Words4 load_matrices(unsigned offset) { return simt::load_matrices(offset); }

// Sums wrap.
inline int dot4(std::uint32_t a, std::uint32_t b, int c) {
  auto sum = static_cast<std::uint32_t>(c);
  for (int i = 0; i < 32; i += 8) {
    const int product = static_cast<std::int8_t>(a >> i) * static_cast<std::int8_t>(b >> i);
    sum += static_cast<std::uint32_t>(product);
  }
  return static_cast<int>(sum);
}
inline void mma_s8(int (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) { simt::mma_s8(c, a, b); }

inline float add_rn(float a, float b) { return a + b; }
inline float sub_rn(float a, float b) { return a - b; }
inline float mul_rn(float a, float b) { return a * b; }
inline float div_rn(float a, float b) { return a / b; }
inline float fma_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float round_even(float a) { return std::rint(a); }
inline float magnitude(float a) { return std::fabs(a); }
inline double add_rn(double a, double b) { return a + b; }
inline double sub_rn(double a, double b) { return a - b; }
inline double mul_rn(double a, double b) { return a * b; }
inline double div_rn(double a, double b) { return a / b; }
inline double fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline double round_even(double a) { return std::rint(a); }
inline double magnitude(double a) { return std::fabs(a); }

template <class C>
int saturated_int(C a, int of_nan) {
  using Limits = std::numeric_limits<int>;
  if (a != a) return of_nan;
  if (a >= C(2147483648.0)) return Limits::max();
  if (a <= C(-2147483648.0)) return Limits::min();
  const C rounded = std::rint(a);  // may reach 2^31 for a double
  return rounded >= C(2147483648.0) ? Limits::max() : static_cast<int>(rounded);
}
inline int to_int_rn(float a) { return saturated_int(a, 0); }
inline int to_int_rn(double a) { return saturated_int(a, std::numeric_limits<int>::min()); }

template <class C>
C to_real(long long i) {
  return static_cast<C>(i);
}
template <class C>
C to_real(int i) {
  return static_cast<C>(i);
}

// The formula is what the executor runs.
inline constexpr bool kHasFloat8 = false;
inline int to_float8(float, bool) { return 0; }
inline float with_sign(float a, float signed_like) { return std::copysign(a, signed_like); }
inline float bits_to_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t float_to_bits(float f) { return std::bit_cast<std::uint32_t>(f); }
inline double bits_to_double(std::uint64_t bits) { return std::bit_cast<double>(bits); }
inline std::uint64_t double_to_bits(double d) { return std::bit_cast<std::uint64_t>(d); }

// NaN comes out of a GPU's conversions as the one of all ones.
inline float half_to_float(std::uint16_t h) {
  return (h & 0x7FFFu) > 0x7C00u ? bits_to_float(0x7FFFFFFFu) : semantics::widen(Half{h});
}
inline std::uint16_t float_to_half(float f) { return f != f ? std::uint16_t{0x7FFF} : semantics::narrow<Half>(f).bits; }

template <class C>
C default_nan();
template <>
inline float default_nan<float>() {
  return bits_to_float(0x7FC00000u);
}
template <>
inline double default_nan<double>() {
  return bits_to_double(0x7FF8000000000000u);
}

template <class... Parameters, class... Arguments>
int launch(const detail::DeviceStream&, const LaunchShape& shape, void (*kernel)(Parameters...),
           const Arguments&... arguments) {
  const auto thread = [&] { kernel(static_cast<Parameters>(arguments)...); };
  return simt::run(
      shape, [](const void* call) { (*static_cast<decltype(thread)*>(call))(); }, &thread);
}
inline const char* error_text(int error) { return simt::error_text(error); }

}  // namespace kvant::device
