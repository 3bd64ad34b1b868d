// The sum of x xᵀ over the rows that a linear reads, [in, in]: what GPTQ needs.
//
// Rows are taken in order, kRows at a time, whatever the batches in which they come. Of such a stretch each element is
// one chain of fused multiply-adds in f32 in order of rows (chain_products of network_steps.h); the chains are added up
// in f64, and the sum is rounded to f32 when it is read. So the same bits come out for any number of threads, any batch
// and any instruction set, the matrix is exactly symmetric, and the error is that of one chain, at most
// kRows * 2^-24 * Σ|x y|, however many rows there are.
//
// Only the tiles on and below the diagonal are computed and kept: in f64 they take as much as the whole matrix in f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvant/network_steps.h"
#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant::measure {

// What sums that are formed one after the other share.
struct HessianBuffers {
  std::vector<float> transposed;             // of a stretch of rows
  std::vector<std::vector<float>> products;  // of each thread
};

class HessianSum {
 public:
  static constexpr std::size_t kRows = 512;
  // Larger ones waste more above the diagonal.
  static constexpr std::size_t kTile = 96;

  explicit HessianSum(std::size_t in);

  Status add(const Stream& stream, const NetworkSteps& steps, const float* x, std::int64_t stride, std::int64_t rows,
             HessianBuffers& buffers);
  // Adds the rows that wait for a whole stretch. No more can come.
  Status finish(const Stream& stream, const NetworkSteps& steps, HessianBuffers& buffers);

  // So many rows of the matrix from `first` on, `in` numbers each.
  void read(std::size_t first, std::size_t rows, float* to) const;

 private:
  // Tiles one below the other that are computed together: the columns of x that they read are copied once for all.
  struct Strip {
    std::size_t column, row, count;  // in tiles
  };
  static constexpr std::size_t kTilesOfStrip = 4;

  // A tile of the lower triangle, row by row.
  std::size_t offset_of(std::size_t tile_row, std::size_t tile_column) const;
  std::size_t size_of(std::size_t tile) const;  // in channels
  Status add_stretch(const Stream& stream, const NetworkSteps& steps, const float* x, std::size_t stride,
                     std::size_t rows, HessianBuffers& buffers);

  std::size_t in_;
  std::size_t tiles_;           // in a row or column
  std::vector<Strip> strips_;   // all of the lower triangle
  std::vector<double> sums_;    // tile by tile
  std::vector<float> waiting_;  // rows of a stretch that is not whole yet
};

}  // namespace kvant::measure
