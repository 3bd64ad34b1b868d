// One number at a time: the reference that every other lanes header must equal, and what runs on a machine
// without more.
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "cpu/lanes/block.h"
#include "kvant/element.h"
#include "semantics/half.h"
#include "semantics/lanes.h"
#include "semantics/one_number.h"

namespace kvant::cpu {

template <class Compute>
struct ScalarLanes : semantics::OneNumber<Compute> {
  using C = Compute;
  using F = Compute;
  using I = std::int32_t;
  using Quad = semantics::Quad<F>;
  using QuadI = semantics::Quad<I>;

  static constexpr bool kHasNarrowCodes = false;
  static constexpr bool kHasRangeBits = false;
  static constexpr bool kHasHalves = false;
  struct GridProducts {};
  template <class In>
  struct GridCoder {};
  static constexpr bool kHasGridCodes = false;
  template <class In>
  static constexpr Order kUniformOrder = Order::natural;

  // Of a vector without NaN.
  static KVANT_INLINE C least(F a) { return a; }
  static KVANT_INLINE C greatest(F a) { return a; }
  // Of all numbers in a vector, added in halves.
  static KVANT_INLINE C total(F a) { return a; }
  // As many vectors of ranges as a vector is wide become one.
  template <class Range>
  static KVANT_INLINE Range transpose_fold(const Range* r) {
    return *r;
  }

  template <class T>
  static KVANT_INLINE F widen(T x) {
    return semantics::widen(x);
  }

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
  static KVANT_INLINE void store_one(Half* p, F x) { store_unaligned(p, semantics::narrow<Half>(x)); }
  static KVANT_INLINE void store_one(BFloat16* p, F x) { store_unaligned(p, semantics::narrow<BFloat16>(x)); }
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
  // f(i), f(i + kWidth), … as one vector of f32, rounded.
  template <class Function>
  static KVANT_INLINE float narrow(const Function& f, std::size_t i) {
    return static_cast<float>(f(i));
  }
  // As many vectors as a vector is wide, number j of vector i becomes number i of vector j.
  static KVANT_INLINE void transpose(F (&)[1]) {}
  static KVANT_INLINE I get_int(const I* p) { return load_unaligned(p); }
  static KVANT_INLINE void put_int(I* p, I x) { store_unaligned(p, x); }
  template <class T>
  static KVANT_INLINE void store_codes(T* p, const QuadI& q, bool /*stream*/) {
    store_unaligned(p, static_cast<T>(q.a));
    store_unaligned(p + 1, static_cast<T>(q.b));
    store_unaligned(p + 2, static_cast<T>(q.c));
    store_unaligned(p + 3, static_cast<T>(q.d));
  }

  // Integers of 0 to 255, for elements that load<kOrder> spread.
  template <Order>
  static KVANT_INLINE void store_bytes(std::uint8_t* p, const QuadI& q, bool stream) {
    store_codes(p, q, stream);
  }

  // Codes of less than a byte, a byte of them at a time, and back.
  template <int kBits>
  static constexpr int kPackBlock = 8 / kBits;
  template <int kBits>
  static KVANT_INLINE void pack_codes(const std::uint8_t* codes, std::uint8_t* packed, bool /*stream*/) {
    unsigned byte = 0;
    for (int i = 0; i < kPackBlock<kBits>; ++i) byte |= (codes[i] & ((1u << kBits) - 1)) << (kBits * i);
    packed[0] = static_cast<std::uint8_t>(byte);
  }
  template <int kBits, bool kSigned>
  static KVANT_INLINE void unpack_codes(const std::uint8_t* packed, std::uint8_t* codes) {
    constexpr int kSign = kSigned ? 1 << (kBits - 1) : 0;
    for (int i = 0; i < kPackBlock<kBits>; ++i)
      codes[i] = static_cast<std::uint8_t>(((packed[0] >> (kBits * i) & ((1 << kBits) - 1)) ^ kSign) - kSign);
  }

  static constexpr std::size_t kStreamAlignment = 1;
  static KVANT_INLINE void finish_streaming() {}
};

}  // namespace kvant::cpu
