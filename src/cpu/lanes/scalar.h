// One number at a time: the reference that every other lanes header must equal, and what runs on a machine
// without more.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "base/inline.h"
#include "core/half.h"
#include "cpu/lanes/block.h"
#include "kvant/element.h"
#include "semantics/lanes.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace kvant::cpu {

template <class Compute>
struct ScalarLanes {
  using C = Compute;
  using F = Compute;
  using I = std::int32_t;
  using M = bool;
  using Quad = semantics::Quad<F>;
  using QuadI = semantics::Quad<I>;

  static constexpr int kWidth = 1;
  static constexpr bool kHasFma = false;
  static constexpr bool kHasNarrowCodes = false;
  static constexpr bool kHasRangeBits = false;
  template <class In>
  static constexpr Order kUniformOrder = Order::natural;

  static KVANT_INLINE F set(C c) { return c; }
  static KVANT_INLINE I set_int(std::int32_t i) { return i; }
  static KVANT_INLINE F add(F a, F b) { return a + b; }
  static KVANT_INLINE F sub(F a, F b) { return a - b; }
  static KVANT_INLINE F mul(F a, F b) { return a * b; }
  static KVANT_INLINE F div(F a, F b) { return a / b; }
  // The C library's where the compiler's target has no instruction; rounded once either way.
  static KVANT_INLINE F fma(F a, F b, F c) { return std::fma(a, b, c); }
  static KVANT_INLINE F min(F a, F b) { return a < b ? a : b; }
  static KVANT_INLINE F max(F a, F b) { return a > b ? a : b; }
  static KVANT_INLINE I add_int(I a, I b) { return a + b; }
  static KVANT_INLINE I sub_int(I a, I b) { return a - b; }
  static KVANT_INLINE I min_int(I a, I b) { return a < b ? a : b; }
  static KVANT_INLINE I max_int(I a, I b) { return a > b ? a : b; }
  static KVANT_INLINE M le(F a, F b) { return a <= b; }
  static KVANT_INLINE M both(M a, M b) { return a && b; }
  static KVANT_INLINE bool all(M m) { return m; }
  static KVANT_INLINE F masked(M m, F a) { return m ? a : F(0); }
  static KVANT_INLINE F select(M m, F a, F b) { return m ? a : b; }
  static KVANT_INLINE I select_int(M m, I a, I b) { return m ? a : b; }
  static KVANT_INLINE F abs(F a) { return std::fabs(a); }
  static KVANT_INLINE F zero_if_nan(F a) { return a == a ? a : F(0); }
  static KVANT_INLINE F nan_if_nan(F a) { return a == a ? a : static_cast<F>(__builtin_nan("")); }
  static KVANT_INLINE F to_float(I i) { return static_cast<F>(i); }

  // In the rounding mode that run() has set: to nearest even.
  static KVANT_INLINE I to_int(F a) {
#if defined(__SSE2__)
    if constexpr (std::is_same_v<F, float>)
      return _mm_cvtss_si32(_mm_set_ss(a));
    else
      return _mm_cvtsd_si32(_mm_set_sd(a));
#else
    return a == a ? static_cast<I>(std::lrint(a)) : 0;
#endif
  }

  // From 2^23 (2^52) on every number is an integer; below, adding and subtracting it drops the fraction. NaN
  // fails the comparison and stays.
  static KVANT_INLINE F round_even(F a) {
    constexpr F kInteger = std::is_same_v<F, float> ? F(0x1p23) : F(0x1p52);
    const F magnitude = std::fabs(a);
    return magnitude < kInteger ? std::copysign((magnitude + kInteger) - kInteger, a) : a;
  }

  // Of a vector without NaN.
  static KVANT_INLINE C least(F a) { return a; }
  static KVANT_INLINE C greatest(F a) { return a; }
  // As many vectors of ranges as a vector is wide become one.
  template <class Range>
  static KVANT_INLINE Range transpose_fold(const Range* r) {
    return *r;
  }

  static KVANT_INLINE F widen(C x) { return x; }
  static KVANT_INLINE F widen(Half x) { return core::widen(x); }
  static KVANT_INLINE F widen(BFloat16 x) { return core::widen(x); }

  // One number everywhere, from memory.
  static KVANT_INLINE F broadcast(const C* p) { return *p; }
  // A block of parameters in the order in which load<kOrder> spreads elements.
  template <Order>
  static KVANT_INLINE Quad load_parameters(const C* p) {
    return load<Order::natural>(p);
  }
  template <Order>
  static KVANT_INLINE QuadI load_parameters(const I* p) {
    return load_int(p);
  }
  template <Order, class T>
  static KVANT_INLINE Quad load(const T* p) {
    return {widen(load_unaligned(p)), widen(load_unaligned(p + 1)), widen(load_unaligned(p + 2)),
            widen(load_unaligned(p + 3))};
  }
  template <class T>
  static KVANT_INLINE QuadI load_int(const T* p) {
    return {load_unaligned(p), load_unaligned(p + 1), load_unaligned(p + 2), load_unaligned(p + 3)};
  }

  static KVANT_INLINE void store_one(C* p, F x) { store_unaligned(p, x); }
  static KVANT_INLINE void store_one(Half* p, F x) { store_unaligned(p, core::narrow_to_half(x)); }
  static KVANT_INLINE void store_one(BFloat16* p, F x) { store_unaligned(p, core::narrow_to_bfloat16(x)); }
  template <Order, class T>
  static KVANT_INLINE void store(T* p, const Quad& q, bool /*stream*/) {
    store_one(p, q.a);
    store_one(p + 1, q.b);
    store_one(p + 2, q.c);
    store_one(p + 3, q.d);
  }
  // One vector from memory and to it.
  template <class T>
  static KVANT_INLINE F get(const T* p) {
    return widen(load_unaligned(p));
  }
  template <class T>
  static KVANT_INLINE void put(T* p, F x) {
    store_one(p, x);
  }
  // As many vectors as a vector is wide, number j of vector i becomes number i of vector j.
  static KVANT_INLINE void transpose(F (&)[1]) {}
  static KVANT_INLINE I get_int(const I* p) { return load_unaligned(p); }
  static KVANT_INLINE void put_int(I* p, I x) { store_unaligned(p, x); }
  template <class T>
  static KVANT_INLINE void store_codes(T* p, const QuadI& q, bool /*stream*/) {
    p[0] = static_cast<T>(q.a);
    p[1] = static_cast<T>(q.b);
    p[2] = static_cast<T>(q.c);
    p[3] = static_cast<T>(q.d);
  }

  // Two codes to a byte and back.
  static constexpr int kNibbleBlock = 2;
  static KVANT_INLINE void pack_nibbles(const std::uint8_t* codes, std::uint8_t* packed, bool /*stream*/) {
    packed[0] = static_cast<std::uint8_t>((codes[0] & 0xF) | (codes[1] & 0xF) << 4);
  }
  template <bool kSigned>
  static KVANT_INLINE void unpack_nibbles(const std::uint8_t* packed, std::uint8_t* codes) {
    constexpr int kSign = kSigned ? 8 : 0;
    codes[0] = static_cast<std::uint8_t>(((packed[0] & 0xF) ^ kSign) - kSign);
    codes[1] = static_cast<std::uint8_t>(((packed[0] >> 4) ^ kSign) - kSign);
  }

  static constexpr std::size_t kStreamAlignment = 1;
  static KVANT_INLINE void finish_streaming() {}
};

struct ScalarIsa {
  template <class Compute>
  using Lanes = ScalarLanes<Compute>;
};

}  // namespace kvant::cpu
