// What every kernel of linear layers is launched with, and how it takes codes from memory.
//
// Everything is s8 inside: the bytes of u8 codes get their top bit flipped, which takes 128 off each, and the zero
// points follow.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device.h"
#include "cuda/linear_product.h"

namespace kvant::cuda {

// A job, and what the host worked out about it once. All branches on these are uniform.
struct LinearLaunch {
  LinearProduct job;
  bool activation_is_aligned = false;  // every row of it starts at a multiple of 16 bytes
  bool weight_is_aligned = false;
  bool out_is_aligned = false;
  bool needs_row_sums = false;     // a weight zero point may be other than 0, as s8
  bool needs_column_sums = false;  // an activation zero point may be
};

inline constexpr unsigned kChunkBytes = 16;  // what a thread moves at once

// u8 codes to s8: 128 less.
inline constexpr std::uint32_t kFlip = 0x80808080u;
inline constexpr std::int32_t kFlipOffset = -128;
// dot4 with it adds four bytes up.
inline constexpr std::uint32_t kOnes = 0x01010101u;

// Numbers that move as one.
template <class T, int count>
struct alignas(sizeof(T) * count) Packed {
  T v[count];
};

// Four bytes from any address, the first in the lowest bits; bytes beyond `count` are not read and become those of
// `fill`.
KVANT_DEVICE std::uint32_t gather4(const std::byte* from, std::int64_t count, std::uint32_t fill) {
  if (count >= 4 && reinterpret_cast<std::uintptr_t>(from) % 4 == 0) return device::load<std::uint32_t>(from);
  std::uint32_t word = 0;
  KVANT_UNROLL
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t byte = i < count ? device::load<std::uint8_t>(from + i) : (fill >> (8 * i)) & 0xFFu;
    word |= byte << (8 * i);
  }
  return word;
}

KVANT_DEVICE device::Words4 flipped(device::Words4 words) {
  KVANT_UNROLL
  for (int i = 0; i < 4; ++i) words.w[i] ^= kFlip;
  return words;
}

}  // namespace kvant::cuda
