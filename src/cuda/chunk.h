// A chunk: the neighbouring elements that one thread moves at once, 128 bits at a time where the address allows it and
// element by element elsewhere. Floating-point elements become numbers of the compute type, codes become int.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/type_lists.h"
#include "cuda/device.h"
#include "cuda/numbers.h"
#include "kvant/element.h"

namespace kvant::cuda {

template <class T>
inline constexpr int kBits = bits_per_element(kind_of<T>);
template <class T>
inline constexpr bool kIsPacked = is_packed(kind_of<T>);
// Elements in a byte; 1 for what is not packed.
template <class T>
inline constexpr int kPerByte = elements_per_byte(kind_of<T>);
template <class T>
inline constexpr bool kIsFloat = is_float(kind_of<T>);
template <class T>
inline constexpr bool kIsSigned = code_range(kind_of<T>).min < 0;
template <class T>
inline constexpr bool kHasFloatGrid = has_float_grid(kind_of<T>);

// Codes of floating-point grids in a byte, which share their kernels.
template <>
inline constexpr int kBits<core::FloatCode> = 8;
template <>
inline constexpr bool kIsPacked<core::FloatCode> = false;
template <>
inline constexpr int kPerByte<core::FloatCode> = 1;
template <>
inline constexpr bool kIsFloat<core::FloatCode> = false;
template <>
inline constexpr bool kIsSigned<core::FloatCode> = false;
template <>
inline constexpr bool kHasFloatGrid<core::FloatCode> = true;

// What an element becomes in a register.
template <class T, bool kFloat = kIsFloat<T>>
struct Number {
  using Type = int;
};
template <class T>
struct Number<T, true> {
  using Type = compute_t<T>;
};
template <class T>
using number_t = typename Number<T>::Type;

// Elements in a chunk of something that is read as A and written as B: 128 bits of the narrower type, as long as the
// wider takes no more than four times as many.
template <class A, class B>
inline constexpr int kChunk = 128 / (kBits<A> < kBits<B> ? kBits<A> : kBits<B>) <
                                      512 / (kBits<A> > kBits<B> ? kBits<A> : kBits<B>)
                                  ? 128 / (kBits<A> < kBits<B> ? kBits<A> : kBits<B>)
                                  : 512 / (kBits<A> > kBits<B> ? kBits<A> : kBits<B>);

// Bytes from the beginning of a line to its element i, which begins a byte for packed types.
template <class T>
KVANT_DEVICE std::int64_t offset_of(std::int64_t i) {
  return kIsPacked<T> ? i / kPerByte<T> : i * (kBits<T> / 8);
}

// The bits of a chunk.
template <int kBytes>
struct Packet {
  static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes % 16 == 0);
  static constexpr unsigned kAlignment = kBytes < 16 ? kBytes : 16;
  std::uint32_t w[kBytes < 4 ? 1 : kBytes / 4];

  static KVANT_DEVICE bool fits(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % kAlignment == 0; }

  static KVANT_DEVICE Packet load(const std::byte* p) {
    Packet r;
    if constexpr (kBytes == 2) {
      r.w[0] = device::load<std::uint16_t>(p);
    } else if constexpr (kBytes == 4) {
      r.w[0] = device::load<std::uint32_t>(p);
    } else if constexpr (kBytes == 8) {
      const auto both = device::load<std::uint64_t>(p);
      r.w[0] = static_cast<std::uint32_t>(both);
      r.w[1] = static_cast<std::uint32_t>(both >> 32);
    } else {
      KVANT_UNROLL
      for (int i = 0; i < kBytes / 16; ++i) {
        const auto four = device::load<device::Words4>(p + 16 * i);
        KVANT_UNROLL
        for (int j = 0; j < 4; ++j) r.w[4 * i + j] = four.w[j];
      }
    }
    return r;
  }

  KVANT_DEVICE void store(std::byte* p) const {
    if constexpr (kBytes == 2) {
      device::store(p, static_cast<std::uint16_t>(w[0]));
    } else if constexpr (kBytes == 4) {
      device::store(p, w[0]);
    } else if constexpr (kBytes == 8) {
      device::store(p, static_cast<std::uint64_t>(w[1]) << 32 | w[0]);
    } else {
      KVANT_UNROLL
      for (int i = 0; i < kBytes / 16; ++i)
        device::store(p + 16 * i, device::Words4{{w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]}});
    }
  }
};

// Element i of the words of a packet; i is known when compiling.
template <class T>
KVANT_DEVICE number_t<T> unpack(const std::uint32_t* w, int i) {
  if constexpr (std::is_same_v<T, double>) {
    return device::bits_to_double(static_cast<std::uint64_t>(w[2 * i + 1]) << 32 | w[2 * i]);
  } else if constexpr (std::is_same_v<T, float>) {
    return device::bits_to_float(w[i]);
  } else {
    constexpr int kPerWord = 32 / kBits<T>;
    const std::uint32_t up = w[i / kPerWord] << (32 - kBits<T> * (i % kPerWord + 1));  // the element in the top bits
    if constexpr (kIsFloat<T>)
      return widen(T{static_cast<std::uint16_t>(up >> 16)});
    else if constexpr (kIsSigned<T>)
      return static_cast<int>(up) >> (32 - kBits<T>);
    else
      return static_cast<int>(up >> (32 - kBits<T>));
  }
}

// Adds element i to the words of a packet that were zero there.
template <class T>
KVANT_DEVICE void pack(std::uint32_t* w, int i, number_t<T> value) {
  if constexpr (std::is_same_v<T, double>) {
    const std::uint64_t bits = device::double_to_bits(value);
    w[2 * i] = static_cast<std::uint32_t>(bits);
    w[2 * i + 1] = static_cast<std::uint32_t>(bits >> 32);
  } else if constexpr (std::is_same_v<T, float>) {
    w[i] = device::float_to_bits(value);
  } else {
    constexpr int kPerWord = 32 / kBits<T>;
    std::uint32_t bits;
    if constexpr (kIsFloat<T>)
      bits = narrow<T>(value).bits;
    else
      bits = static_cast<std::uint32_t>(value) & ((1u << kBits<T>)-1);
    w[i / kPerWord] |= bits << (kBits<T> * (i % kPerWord));
  }
}

// Elements [first, first + count) of a line, count <= N; the others become zero. For packed types `first` begins a
// byte.
template <class T, int N>
KVANT_DEVICE void load_chunk(const std::byte* line, std::int64_t first, int count, number_t<T> (&v)[N]) {
  using Bits = Packet<N * kBits<T> / 8>;
  const std::byte* p = line + offset_of<T>(first);
  if (count == N && Bits::fits(p)) {
    const Bits bits = Bits::load(p);
    KVANT_UNROLL
    for (int i = 0; i < N; ++i) v[i] = unpack<T>(bits.w, i);
    return;
  }
  KVANT_UNROLL
  for (int i = 0; i < N; ++i) {
    v[i] = 0;
    if (i >= count) continue;
    if constexpr (kIsPacked<T>) {
      const std::uint32_t byte = device::load<std::uint8_t>(p + i / kPerByte<T>);
      v[i] = unpack<T>(&byte, i % kPerByte<T>);
    } else if constexpr (kIsFloat<T>) {
      v[i] = widen(device::load<T>(p + i * sizeof(T)));
    } else if constexpr (kHasFloatGrid<T>) {
      v[i] = device::load<std::uint8_t>(p + i);
    } else {
      v[i] = device::load<T>(p + i * sizeof(T));
    }
  }
}

// The same elements of a line that is written. The bits of a byte after the last element become zero.
template <class T, int N>
KVANT_DEVICE void store_chunk(std::byte* line, std::int64_t first, int count, const number_t<T> (&v)[N]) {
  using Bits = Packet<N * kBits<T> / 8>;
  std::byte* p = line + offset_of<T>(first);
  if (count == N && Bits::fits(p)) {
    Bits bits = {};
    KVANT_UNROLL
    for (int i = 0; i < N; ++i) pack<T>(bits.w, i, v[i]);
    bits.store(p);
    return;
  }
  KVANT_UNROLL
  for (int i = 0; i < N; ++i) {
    if (i >= count) continue;
    if constexpr (kIsPacked<T>) {
      if (i % kPerByte<T> != 0) continue;
      std::uint32_t byte = 0;
      KVANT_UNROLL
      for (int j = 0; j < kPerByte<T>; ++j)
        if (i + j < count) pack<T>(&byte, j, v[i + j]);
      device::store(p + i / kPerByte<T>, static_cast<std::uint8_t>(byte));
    } else if constexpr (kIsFloat<T>) {
      device::store(p + i * sizeof(T), narrow<T>(v[i]));
    } else if constexpr (kHasFloatGrid<T>) {
      device::store(p + i, static_cast<std::uint8_t>(v[i]));
    } else {
      device::store(p + i * sizeof(T), static_cast<T>(v[i]));
    }
  }
}

// How the elements [begin, end) of a line are cut into chunks of N: the first may be shorter, so that those after it
// begin at a multiple of 128 bits of T, the wider type of the line's operands.
template <class T, int N>
struct Cut {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t origin;  // where chunk 0 would begin if it were whole

  // Chunks begin at multiples of kUnit elements, since some operand is packed so many to a byte.
  template <int kUnit>
  static KVANT_DEVICE Cut make(const std::byte* line, std::int64_t begin, std::int64_t end) {
    const auto address = reinterpret_cast<std::uintptr_t>(line) + static_cast<std::uintptr_t>(offset_of<T>(begin));
    const int behind = static_cast<int>(address % 16) * 8 / kBits<T>;  // elements since the last multiple
    return {begin, end, behind % kUnit != 0 ? begin : begin - behind};
  }

  KVANT_DEVICE std::int64_t chunks() const { return end > begin ? (end - origin + N - 1) / N : 0; }
  KVANT_DEVICE std::int64_t first(std::int64_t chunk) const { return chunk == 0 ? begin : origin + chunk * N; }
  KVANT_DEVICE int count(std::int64_t chunk) const {
    const std::int64_t stop = origin + (chunk + 1) * N;
    return static_cast<int>((stop < end ? stop : end) - first(chunk));
  }
};

}  // namespace kvant::cuda
