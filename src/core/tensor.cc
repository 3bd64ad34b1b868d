#include "kvant/tensor.h"

#include "base/text.h"

#include "base/divide_up.h"
#include "base/refuse.h"
#include "kvant/granularity.h"

namespace kvant {

std::optional<std::int64_t> Shape::element_count() const {
  if (rank_ > kMaxRank) return std::nullopt;
  std::int64_t product = 1;
  bool empty = false;
  for (int i = 0; i < rank_; ++i) {
    if (sizes_[i] < 0) return std::nullopt;
    if (sizes_[i] == 0)
      empty = true;
    else if (__builtin_mul_overflow(product, sizes_[i], &product))
      return std::nullopt;
  }
  return empty ? 0 : product;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int i = 0; i < rank_ && i < kMaxRank; ++i) text += base::text("{}{}", i == 0 ? "" : ", ", sizes_[i]);
  if (rank_ > kMaxRank) text += ", ...";
  return text + "]";
}

namespace {

Result<Shape> block_parameters(const Shape& shape, const Granularity& granularity) {
  const int rank = shape.rank();
  const std::int64_t rows = granularity.block_rows(), columns = granularity.block_columns();
  if (rank < 2)
    return base::invalid_problem("per_block: shape {} has no rows and columns; its rank must be at least 2",
                                 shape.to_string());
  if (rows < 1) return base::invalid_problem("per_block: rows {} of a block must be positive", rows);
  if (columns < 1) return base::invalid_problem("per_block: columns {} of a block must be positive", columns);
  Shape blocks = shape;
  blocks[rank - 2] = base::divide_up(shape[rank - 2], rows);
  blocks[rank - 1] = base::divide_up(shape[rank - 1], columns);
  return blocks;
}

}  // namespace

Result<Shape> parameter_shape(const Shape& shape, const Granularity& granularity) {
  const std::string_view kind = name(granularity.kind());
  if (shape.rank() > kMaxRank)
    return base::invalid_problem("per_{}: rank {} is above {}", kind, shape.rank(), kMaxRank);
  for (int i = 0; i < shape.rank(); ++i)
    if (shape[i] < 0)
      return base::invalid_problem("per_{}: size {} of dimension {} in shape {} is negative", kind, shape[i], i,
                                   shape.to_string());
  if (!shape.element_count())
    return base::invalid_problem("per_{}: shape {} has more elements than 63 bits can count", kind, shape.to_string());
  if (granularity.kind() == GranularityKind::tensor) return Shape();

  if (granularity.kind() == GranularityKind::token && shape.rank() == 0)
    return base::invalid_problem("per_token: shape [] has no rows; its rank must be at least 1");
  if (granularity.kind() == GranularityKind::block) return block_parameters(shape, granularity);
  const int axis = granularity.axis() < 0 ? granularity.axis() + shape.rank() : granularity.axis();
  if (axis < 0 || axis >= shape.rank())
    return base::invalid_problem("per_{}: axis {} is not in shape {} of rank {}", kind, granularity.axis(),
                                 shape.to_string(), shape.rank());
  if (granularity.kind() == GranularityKind::channel) return Shape({shape[axis]});
  if (granularity.kind() == GranularityKind::token) {
    std::int64_t sizes[kMaxRank];
    for (int i = 0; i < axis; ++i) sizes[i] = shape[i];
    return Shape(std::span<const std::int64_t>(sizes, static_cast<std::size_t>(axis)));
  }
  if (granularity.group_size() < 1)
    return base::invalid_problem("per_group: group_size {} must be positive", granularity.group_size());
  Shape groups = shape;
  groups[axis] = base::divide_up(shape[axis], granularity.group_size());
  return groups;
}

}  // namespace kvant
