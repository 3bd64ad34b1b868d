// Staging: how a block of linear_tile brings the rows of an operand to shared memory, some steps ahead of the products.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device.h"
#include "cuda/linear_launch.h"
#include "cuda/linear_tile_shape.h"

namespace kvant::cuda {

// A thread's part in bringing one operand's rows to shared memory: one chunk of every 64th row.
template <class Depth, int rows>
class TileSource {
 public:
  KVANT_DEVICE TileSource(const std::byte* data, std::int64_t stride, bool aligned, std::int64_t first_row,
                          std::int64_t end_row, Depth depth, unsigned to)
      : aligned_(aligned) {
    const unsigned row = device::linear_thread() / 4, chunk = device::linear_thread() % 4;
    to_ = to + swizzled(row, chunk);
    KVANT_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const std::int64_t at = first_row + row + kRowStep * i;
      const bool exists = at < end_row;
      from_[i] = data + (exists ? at : first_row) * stride + chunk * kChunkBytes;
      left_[i] = (exists ? depth : Depth(0)) - static_cast<Depth>(chunk * kChunkBytes);
    }
  }

  // The next step's bytes, to a stage. What lies beyond the operand becomes zero.
  KVANT_DEVICE void fetch(unsigned stage_offset) {
    KVANT_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const unsigned to = to_ + stage_offset + kRowStep * 64 * static_cast<unsigned>(i);
      const int bytes = left_[i] >= 16 ? 16 : left_[i] > 0 ? static_cast<int>(left_[i]) : 0;
      if (aligned_) {
        device::copy_async16(to, from_[i], bytes);
      } else {
        device::Words4 words;
        KVANT_UNROLL
        for (int w = 0; w < 4; ++w) words.w[w] = gather4(from_[i] + 4 * w, bytes - 4 * w, 0);
        device::shared_store(to, words);
      }
      from_[i] += 64;
      left_[i] -= 64;
    }
  }

 private:
  static constexpr int kRowStep = kTileThreads / 4;
  static constexpr int kCount = rows / kRowStep;

  bool aligned_;
  unsigned to_;
  const std::byte* from_[kCount];
  Depth left_[kCount];
};

}  // namespace kvant::cuda
