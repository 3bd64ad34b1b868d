// Codes of less than a byte: packed and unpacked between a buffer of bytes and the caller's memory. Compiled once for
// each instruction set.
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "core/type_lists.h"
#include "cpu/blocks-inl.h"
#include "kvant/element.h"

namespace kvant::cpu {

// Of an element as kernels see it in memory (core::in_memory_t).
template <class T>
inline constexpr bool kIsPacked = is_packed(kind_of<T>);
template <>
inline constexpr bool kIsPacked<core::FloatCode> = false;
// Elements in a byte; 1 for what is not packed.
template <class T>
inline constexpr std::int64_t kPerByte = elements_per_byte(kind_of<T>);
template <>
inline constexpr std::int64_t kPerByte<core::FloatCode> = 1;

// Bytes from the start of a row to an element. Packed rows are entered at whole bytes only.
template <class T>
KVANT_INLINE std::int64_t byte_offset(std::int64_t element) {
  if constexpr (kIsPacked<T>)
    return element / kPerByte<T>;
  else
    return element * static_cast<std::int64_t>(sizeof(T));
}

// Codes that lanes pack or unpack at once; a buffer of unpacked codes has so many more than it needs.
template <class L, class Code>
inline constexpr std::int64_t kPackBlock = L::template kPackBlock<bits_per_element(kind_of<Code>)>;

template <class L, class Code, class Body>
KVANT_INLINE void for_each_pack_block(std::int64_t n, const Body& body) {
  constexpr std::int64_t kBlock = kPackBlock<L, Code>;
  std::int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) body(i, kBlock);
  if (i < n) body(i, n - i);
}

template <class L, class Code>
KVANT_NOINLINE void pack_codes(std::uint8_t* codes, std::uint8_t* packed, std::int64_t n, bool stream) {
  constexpr int kBits = bits_per_element(kind_of<Code>);
  for (std::int64_t i = n; i % kPerByte<Code> != 0; ++i) codes[i] = 0;  // the bits after the last element
  for_each_pack_block<L, Code>(n, [&](std::int64_t i, std::int64_t count) KVANT_INLINE_LAMBDA {
    if (count == kPackBlock<L, Code>) {
      L::template pack_codes<kBits>(codes + i, packed + i / kPerByte<Code>, stream);
    } else {
      std::uint8_t block[kPackBlock<L, Code> / kPerByte<Code>];
      L::template pack_codes<kBits>(codes + i, block, false);
      copy_elements(packed + i / kPerByte<Code>, block, row_bytes(kind_of<Code>, count));
    }
  });
}

template <class L, class Code>
KVANT_NOINLINE void unpack_codes(const std::uint8_t* packed, std::uint8_t* codes, std::int64_t n) {
  constexpr int kBits = bits_per_element(kind_of<Code>);
  constexpr bool kSigned = code_range(kind_of<Code>).min < 0;
  for_each_pack_block<L, Code>(n, [&](std::int64_t i, std::int64_t count) KVANT_INLINE_LAMBDA {
    if (count == kPackBlock<L, Code>) {
      L::template unpack_codes<kBits, kSigned>(packed + i / kPerByte<Code>, codes + i);
    } else {
      std::uint8_t block[kPackBlock<L, Code> / kPerByte<Code>] = {};
      copy_elements(block, packed + i / kPerByte<Code>, row_bytes(kind_of<Code>, count));
      L::template unpack_codes<kBits, kSigned>(block, codes + i);
    }
  });
}

}  // namespace kvant::cpu
