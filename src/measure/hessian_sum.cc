#include "measure/hessian_sum.h"

#include <algorithm>

#include "base/divide_up.h"
#include "base/float_environment.h"
#include "base/for_each_part.h"

namespace kvant::measure {
namespace {

// From one channel to the next in the transposed rows: not a power of two, whose multiples share few sets of a cache.
constexpr std::size_t kStride = HessianSum::kRows + 16;

}  // namespace

HessianSum::HessianSum(std::size_t in)
    : in_(in),
      tiles_(base::parts_of(in, kTile)),
      sums_(tiles_ == 0 ? 0 : offset_of(tiles_ - 1, tiles_ - 1) + size_of(tiles_ - 1) * size_of(tiles_ - 1)) {
  for (std::size_t column = 0; column < tiles_; ++column)
    for (std::size_t row = column; row < tiles_; row += kTilesOfStrip)
      strips_.push_back({column, row, std::min(kTilesOfStrip, tiles_ - row)});
}

std::size_t HessianSum::size_of(std::size_t tile) const { return std::min(kTile, in_ - tile * kTile); }

std::size_t HessianSum::offset_of(std::size_t tile_row, std::size_t tile_column) const {
  // Only the last row of tiles may be lower than the others.
  return tile_row * (tile_row + 1) / 2 * kTile * kTile + tile_column * size_of(tile_row) * kTile;
}

Status HessianSum::add(const Stream& stream, const NetworkSteps& steps, const float* x, std::int64_t stride,
                       std::int64_t rows, HessianBuffers& buffers) {
  const auto step = static_cast<std::size_t>(stride);
  for (auto left = static_cast<std::size_t>(rows); left > 0;) {
    std::size_t taken = kRows;
    if (waiting_.empty() && left >= kRows) {
      if (Status s = add_stretch(stream, steps, x, step, kRows, buffers); !s.ok()) return s;
    } else {
      taken = std::min(left, kRows - waiting_.size() / in_);
      for (std::size_t r = 0; r < taken; ++r) waiting_.insert(waiting_.end(), x + r * step, x + r * step + in_);
      if (waiting_.size() == kRows * in_)
        if (Status s = finish(stream, steps, buffers); !s.ok()) return s;
    }
    x += taken * step;
    left -= taken;
  }
  return {};
}

Status HessianSum::finish(const Stream& stream, const NetworkSteps& steps, HessianBuffers& buffers) {
  if (waiting_.empty()) return {};
  Status status = add_stretch(stream, steps, waiting_.data(), in_, waiting_.size() / in_, buffers);
  waiting_.clear();
  return status;
}

Status HessianSum::add_stretch(const Stream& stream, const NetworkSteps& steps, const float* x, std::size_t stride,
                               std::size_t rows, HessianBuffers& buffers) {
  buffers.transposed.resize(std::max(buffers.transposed.size(), in_ * kStride));
  buffers.products.resize(static_cast<std::size_t>(stream.threads()));
  float* const transposed = buffers.transposed.data();
  const Status done = base::for_each_part(stream, 0, tiles_, [&](std::size_t /*worker*/, std::uint64_t part) -> Status {
    const std::size_t first = part * kTile;
    steps.transpose(x + first, stride, rows, size_of(part), transposed + first * kStride, kStride);
    return {};
  });
  if (!done.ok()) return done;
  return base::for_each_part(stream, 0, strips_.size(), [&](std::size_t worker, std::uint64_t part) -> Status {
    const base::DefaultFloatEnvironment environment;
    const Strip& strip = strips_[part];
    const std::size_t first = strip.row * kTile, width = size_of(strip.column);
    std::vector<float>& products = buffers.products[worker];
    products.resize(kTilesOfStrip * kTile * kTile);
    steps.chain_products(transposed + first * kStride, kStride, x + strip.column * kTile, stride,
                         std::min(strip.count * kTile, in_ - first), rows, width, products.data(), width);
    for (std::size_t i = 0; i < strip.count; ++i) {
      const float* const tile = products.data() + i * kTile * width;
      double* const sums = sums_.data() + offset_of(strip.row + i, strip.column);
      const std::size_t count = size_of(strip.row + i) * width;
      for (std::size_t j = 0; j < count; ++j) sums[j] += static_cast<double>(tile[j]);
    }
    return {};
  });
}

void HessianSum::read(std::size_t first, std::size_t rows, float* to) const {
  const base::DefaultFloatEnvironment environment;
  for (std::size_t r = first; r < first + rows; ++r, to += in_) {
    const std::size_t own = r / kTile;
    for (std::size_t tile = 0; tile < tiles_; ++tile) {
      const std::size_t width = size_of(tile);
      // Right of the diagonal's tile stands what is below it, turned around.
      const bool is_below = tile <= own;
      const std::size_t step = is_below ? 1 : size_of(own);
      const double* from = is_below ? sums_.data() + offset_of(own, tile) + r % kTile * width
                                    : sums_.data() + offset_of(tile, own) + r % kTile;
      for (std::size_t c = 0; c < width; ++c) to[tile * kTile + c] = static_cast<float>(from[c * step]);
    }
  }
}

}  // namespace kvant::measure
