// Granularity: which elements share a scale and a zero point.
//
//   per tensor             one for all elements                       parameters []
//   per channel(axis)      one for each index of `axis`               parameters [shape[axis]]
//   per token              one for each row (the last dimension)      parameters shape without its last size
//   per group(axis, size)  one for each `size` consecutive elements   parameters shape, with shape[axis]
//                          along `axis`; the last group may be        replaced by ceil(shape[axis] / size)
//                          shorter (ONNX's blocked quantization)
//   per block(rows,        one for each tile of `rows` × `columns`    parameters shape, with the last two sizes
//     columns)             of the last two dimensions; tiles at the   replaced by ceil(size / rows) and
//                          edges may be smaller                       ceil(size / columns)
//
// Axes count from 0, or from the end if negative. Parameters may also be flat (one dimension with the same elements in
// the same order) and, per token, have a last dimension of 1.
#pragma once

#include <cstdint>
#include <string_view>

#include "kvant/export.h"
#include "kvant/status.h"
#include "kvant/tensor.h"

namespace kvant {

enum class GranularityKind : std::uint8_t { tensor, channel, token, group, block };

struct PerTensor {};
struct PerChannel {
  int axis = 0;
};
struct PerToken {};
struct PerGroup {
  int axis = -1;
  std::int64_t group_size = 0;
};
struct PerBlock {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

// Any of the five, chosen at run time.
class Granularity {
 public:
  constexpr Granularity() = default;
  constexpr Granularity(PerTensor) {}                                                      // NOLINT
  constexpr Granularity(PerChannel g) : kind_(GranularityKind::channel), axis_(g.axis) {}  // NOLINT
  constexpr Granularity(PerToken) : kind_(GranularityKind::token), axis_(-1) {}            // NOLINT
  constexpr Granularity(PerGroup g)                                                        // NOLINT
      : kind_(GranularityKind::group), axis_(g.axis), group_size_(g.group_size) {}
  constexpr Granularity(PerBlock g)  // NOLINT
      : kind_(GranularityKind::block), axis_(-2), block_rows_(g.rows), block_columns_(g.columns) {}

  static constexpr Granularity per_tensor() { return PerTensor{}; }
  static constexpr Granularity per_channel(int axis) { return PerChannel{axis}; }
  static constexpr Granularity per_token() { return PerToken{}; }
  static constexpr Granularity per_group(int axis, std::int64_t group_size) { return PerGroup{axis, group_size}; }
  static constexpr Granularity per_block(std::int64_t rows, std::int64_t columns) { return PerBlock{rows, columns}; }

  constexpr GranularityKind kind() const { return kind_; }
  constexpr int axis() const { return axis_; }
  constexpr std::int64_t group_size() const { return group_size_; }
  constexpr std::int64_t block_rows() const { return block_rows_; }
  constexpr std::int64_t block_columns() const { return block_columns_; }

 private:
  GranularityKind kind_ = GranularityKind::tensor;
  int axis_ = 0;
  std::int64_t group_size_ = 0;
  std::int64_t block_rows_ = 0;
  std::int64_t block_columns_ = 0;
};

// "tensor", "channel", "token", "group", "block"
KVANT_API std::string_view name(GranularityKind kind);

// The shape of the scale and zero-point tensors for a tensor of `shape`. Refuses a bad shape, an axis that
// the shape does not have, a group size below 1, and blocks of a shape without rows or with a side below 1.
KVANT_API Result<Shape> parameter_shape(const Shape& shape, const Granularity& granularity);

}  // namespace kvant
