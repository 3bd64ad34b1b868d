// Blocks, the unit of the conveyor: four vectors of elements. A stretch is walked block by block; its tail goes through
// the same body on padded copies. Compiled once for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/inline.h"
#include "cpu/fetch.h"

namespace kvant::cpu {

// Where a stretch of neighbouring elements begins in each buffer. dy is null where there is none.
template <class In, class Out>
struct Stretch {
  const In* x;
  const In* dy;
  Out* out;

  KVANT_INLINE Stretch operator+(std::int64_t n) const { return {x + n, dy == nullptr ? dy : dy + n, out + n}; }
};

// How a stretch is read and written.
struct Traffic {
  bool stream;               // store around the caches; the output is aligned for it
  std::int64_t fetch_ahead;  // bytes in front of x and dy to fetch, 0 for none
};

template <class T>
KVANT_INLINE void copy_elements(T* to, const T* from, std::int64_t n) {
  __builtin_memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
}

// Copies n elements, fewer than two times kHalf. From kHalf on as two copies of it, which may overlap: their size is
// known, so that they are a few instructions where memcpy is a call. Groups of 16, as NVFP4 has them, are half a block
// of AVX2 and nothing but rest.
template <std::int64_t kHalf, class T>
KVANT_INLINE void copy_rest(T* to, const T* from, std::int64_t n) {
  if (n < kHalf) return copy_elements(to, from, n);
  copy_elements(to, from, kHalf);
  copy_elements(to + (n - kHalf), from + (n - kHalf), kHalf);
}

// Calls body(stretch, first element, stream) for each whole block of n elements.
template <class L, class In, class Out, class Body>
KVANT_INLINE void for_each_whole_block(const Stretch<In, Out>& s, std::int64_t n, Traffic traffic, const Body& body) {
  constexpr std::int64_t kBlock = 4 * L::kWidth;
  for (std::int64_t i = 0; i + kBlock <= n; i += kBlock) {
    if (traffic.fetch_ahead != 0) {
      fetch_block<kBlock>(s.x + i, traffic.fetch_ahead);
      if (s.dy != nullptr) fetch_block<kBlock>(s.dy + i, traffic.fetch_ahead);
    }
    body(s + i, i, traffic.stream);
  }
}

// The same for the rest, on copies padded with zeros: the tail is the body.
template <class L, class In, class Out, class Body>
KVANT_INLINE void for_rest(const Stretch<In, Out>& s, std::int64_t n, const Body& body) {
  constexpr std::int64_t kBlock = 4 * L::kWidth, kHalf = kBlock / 2;
  const std::int64_t rest = n % kBlock;
  if (rest <= 0) return;
  const Stretch<In, Out> tail = s + (n - rest);
  In x[kBlock] = {};
  In dy[kBlock] = {};
  Out out[kBlock];
  copy_rest<kHalf>(x, tail.x, rest);
  if (tail.dy != nullptr) copy_rest<kHalf>(dy, tail.dy, rest);
  body(Stretch<In, Out>{x, dy, out}, n - rest, false);
  copy_rest<kHalf>(tail.out, out, rest);
}

template <class L, class In, class Out, class Body>
KVANT_INLINE void for_each_block(const Stretch<In, Out>& s, std::int64_t n, Traffic traffic, const Body& body) {
  for_each_whole_block<L>(s, n, traffic, body);
  for_rest<L>(s, n, body);
}

}  // namespace kvant::cpu
