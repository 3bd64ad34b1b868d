// The blocks of GGUF tensors as f32, in ggml's order of operations, so that the bits are ggml's: a product is rounded
// before an offset is added. A block is a few bytes of scales and the codes of 32 or 256 elements; `d` and `m` are
// halves that are widened exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/inline.h"
#include "kvant/element.h"

namespace kvant::semantics {

// Blocks are not aligned.
KVANT_INLINE float half_at(const std::uint8_t* from) {
  Half half;
  std::memcpy(&half.bits, from, sizeof half.bits);
  return to_float(half);
}

struct BlockF32 {
  static constexpr std::size_t kElements = 1, kBytes = 4;
  KVANT_INLINE static void decode(const std::uint8_t* block, float* to) { std::memcpy(to, block, kBytes); }
};

struct BlockF16 {
  static constexpr std::size_t kElements = 1, kBytes = 2;
  KVANT_INLINE static void decode(const std::uint8_t* block, float* to) { *to = half_at(block); }
};

struct BlockBF16 {
  static constexpr std::size_t kElements = 1, kBytes = 2;
  KVANT_INLINE static void decode(const std::uint8_t* block, float* to) {
    const std::uint32_t bits = static_cast<std::uint32_t>(block[0] | block[1] << 8) << 16;
    std::memcpy(to, &bits, sizeof bits);
  }
};

// y = d q: d, then 32 signed bytes.
struct BlockQ8_0 {
  static constexpr std::size_t kElements = 32, kBytes = 34;
  KVANT_INLINE static void decode(const std::uint8_t* block, float* to) {
    const float d = half_at(block);
    for (std::size_t i = 0; i < kElements; ++i) to[i] = static_cast<float>(static_cast<std::int8_t>(block[2 + i])) * d;
  }
};

// Byte i has element i in its low half and element i + 16 in its high half.
// y = d (q - 8)
struct BlockQ4_0 {
  static constexpr std::size_t kElements = 32, kBytes = 18;
  KVANT_INLINE static void decode(const std::uint8_t* block, float* to) {
    const float d = half_at(block);
    const std::uint8_t* const q = block + 2;
    for (std::size_t i = 0; i < 16; ++i) {
      to[i] = static_cast<float>((q[i] & 15) - 8) * d;
      to[i + 16] = static_cast<float>((q[i] >> 4) - 8) * d;
    }
  }
};

// y = d q + m
struct BlockQ4_1 {
  static constexpr std::size_t kElements = 32, kBytes = 20;
  KVANT_INLINE static void decode(const std::uint8_t* block, float* to) {
    const float d = half_at(block), m = half_at(block + 2);
    const std::uint8_t* const q = block + 4;
    for (std::size_t i = 0; i < 16; ++i) {
      to[i] = static_cast<float>(q[i] & 15) * d + m;
      to[i + 16] = static_cast<float>(q[i] >> 4) * d + m;
    }
  }
};

// The fifth bits of all 32 elements are one word before the halves of bytes.
KVANT_INLINE int fifth_bit(const std::uint8_t* word, std::size_t i) { return (word[i / 8] >> (i % 8) & 1) << 4; }

// y = d (q - 16)
struct BlockQ5_0 {
  static constexpr std::size_t kElements = 32, kBytes = 22;
  KVANT_INLINE static void decode(const std::uint8_t* block, float* to) {
    const float d = half_at(block);
    const std::uint8_t *const high = block + 2, *const q = block + 6;
    for (std::size_t i = 0; i < 16; ++i) {
      to[i] = static_cast<float>(((q[i] & 15) | fifth_bit(high, i)) - 16) * d;
      to[i + 16] = static_cast<float>(((q[i] >> 4) | fifth_bit(high, i + 16)) - 16) * d;
    }
  }
};

// y = d q + m
struct BlockQ5_1 {
  static constexpr std::size_t kElements = 32, kBytes = 24;
  KVANT_INLINE static void decode(const std::uint8_t* block, float* to) {
    const float d = half_at(block), m = half_at(block + 2);
    const std::uint8_t *const high = block + 4, *const q = block + 8;
    for (std::size_t i = 0; i < 16; ++i) {
      to[i] = static_cast<float>((q[i] & 15) | fifth_bit(high, i)) * d + m;
      to[i + 16] = static_cast<float>((q[i] >> 4) | fifth_bit(high, i + 16)) * d + m;
    }
  }
};

// Eight groups of 32 with a scale and a min of six bits each: y = (d s) q - (d_min m). The twelve bytes of the sixes
// hold the first four scales, the first four mins (in the low six bits of a byte each), and the low four bits of the
// others, whose high two bits are above the first ones.
struct BlockQ4_K {
  static constexpr std::size_t kElements = 256, kBytes = 144;
  KVANT_INLINE static int scale(const std::uint8_t* six, std::size_t group) {
    return group < 4 ? six[group] & 63 : (six[group + 4] & 15) | (six[group - 4] >> 6) << 4;
  }
  KVANT_INLINE static int min(const std::uint8_t* six, std::size_t group) {
    return group < 4 ? six[group + 4] & 63 : (six[group + 4] >> 4) | (six[group] >> 6) << 4;
  }
  KVANT_INLINE static void decode(const std::uint8_t* block, float* to) {
    const float d = half_at(block), d_min = half_at(block + 2);
    const std::uint8_t* const six = block + 4;
    for (std::size_t group = 0; group < 8; ++group) {
      const float s = d * static_cast<float>(scale(six, group)), m = d_min * static_cast<float>(min(six, group));
      // Two groups share 32 bytes: the first has the low halves.
      const std::uint8_t* const q = block + 16 + group / 2 * 32;
      const unsigned shift = group % 2 * 4;
      for (std::size_t i = 0; i < 32; ++i) to[group * 32 + i] = s * static_cast<float>(q[i] >> shift & 15) - m;
    }
  }
};

// Sixteen groups of 16 with a signed scale of eight bits each: y = (d s) (q - 32). Low four bits, high two bits,
// scales, d. In each half of 128 elements, four times 32 elements share the bytes: the first two times have the low
// halves of 64 bytes, the others the high ones, and all four two bits each of 32 bytes.
struct BlockQ6_K {
  static constexpr std::size_t kElements = 256, kBytes = 210;
  KVANT_INLINE static void decode(const std::uint8_t* block, float* to) {
    const float d = half_at(block + 208);
    for (std::size_t group = 0; group < 16; ++group) {
      const std::size_t half = group / 8, quarter = group % 8 / 2, first = group % 2 * 16;
      const std::uint8_t* const low = block + half * 64 + quarter % 2 * 32 + first;
      const std::uint8_t* const high = block + 128 + half * 32 + first;
      const float s = d * static_cast<float>(static_cast<std::int8_t>(block[192 + group]));
      for (std::size_t i = 0; i < 16; ++i) {
        const int q = (low[i] >> quarter / 2 * 4 & 15) | (high[i] >> quarter * 2 & 3) << 4;
        to[group * 16 + i] = s * static_cast<float>(q - 32);
      }
    }
  }
};

}  // namespace kvant::semantics
