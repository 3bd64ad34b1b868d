#include "core/runs.h"

#include <algorithm>

#include "base/divide_up.h"

namespace kvant::core {
namespace {

struct Split {
  std::int64_t outer = 1;  // product of the sizes before the axis
  std::int64_t axis = 1;
  std::int64_t inner = 1;  // product of the sizes after it
};

Split split_at(const Shape& shape, int axis) {
  Split split;
  for (int i = 0; i < shape.rank(); ++i) {
    std::int64_t& part = i < axis ? split.outer : i == axis ? split.axis : split.inner;
    part *= shape[i];
  }
  return split;
}

int positive_axis(const Shape& shape, int axis) { return axis < 0 ? axis + shape.rank() : axis; }

}  // namespace

Runs dense_runs(const Shape& shape, const Granularity& granularity) {
  const std::int64_t elements = shape.element_count().value_or(0);
  if (elements == 0) return {};
  Runs runs{.lines = 1, .length = elements, .run = elements};
  const Split split = split_at(shape, positive_axis(shape, granularity.axis()));
  switch (granularity.kind()) {
    case GranularityKind::tensor: break;
    case GranularityKind::token: runs.run = shape.row_length(); break;
    case GranularityKind::channel:
      if (split.axis == 1) break;  // one channel is per tensor
      runs.lines = split.outer;
      runs.length = split.axis * split.inner;
      runs.run = split.inner;
      break;
    case GranularityKind::group: {
      const std::int64_t size = std::min(granularity.group_size(), split.axis);
      if (split.inner == 1 && split.axis % size == 0) {
        runs.run = size;
      } else if (split.inner == 1) {
        runs.lines = split.outer;
        runs.length = split.axis;
        runs.run = size;
        runs.outer_step = base::divide_up(split.axis, size);
      } else {
        runs.lines = split.outer * split.axis;
        runs.length = split.inner;
        runs.run = 1;
        runs.middle_count = split.axis;
        runs.group = size;
        runs.middle_step = split.inner;
        runs.outer_step = base::divide_up(split.axis, size) * split.inner;
      }
      break;
    }
  }
  return runs;
}

Runs row_runs(const Shape& shape, const Granularity& granularity) {
  const std::int64_t elements = shape.element_count().value_or(0);
  if (elements == 0) return {};
  const std::int64_t row = shape.row_length();
  Runs runs{.lines = elements / row, .length = row, .run = row};
  const int axis = positive_axis(shape, granularity.axis());
  const bool last = axis == shape.rank() - 1;
  const Split split = split_at(shape, axis);
  switch (granularity.kind()) {
    case GranularityKind::tensor: break;
    case GranularityKind::token: runs.outer_step = 1; break;
    case GranularityKind::channel:
      if (last) {
        runs.run = 1;
      } else {
        runs.middle_count = split.axis;
        runs.middle_step = 1;
        runs.inner_count = split.inner / row;
      }
      break;
    case GranularityKind::group: {
      const std::int64_t size = std::min(granularity.group_size(), split.axis);
      if (last) {
        runs.run = size;
        runs.outer_step = base::divide_up(row, size);
      } else {
        runs.run = 1;
        runs.middle_count = split.axis;
        runs.group = size;
        runs.inner_count = split.inner / row;
        runs.inner_step = row;
        runs.middle_step = split.inner;
        runs.outer_step = base::divide_up(split.axis, size) * split.inner;
      }
      break;
    }
  }
  return runs;
}

}  // namespace kvant::core
