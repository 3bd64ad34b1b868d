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

// A block that reaches beyond its matrix ends there.
struct Blocks {
  std::int64_t matrices, rows, columns;  // of the tensor
  std::int64_t block_rows, block_columns;
  std::int64_t down, across;  // blocks of a matrix

  Blocks(const Shape& shape, const Granularity& granularity)
      : matrices(split_at(shape, shape.rank() - 2).outer),
        rows(shape[shape.rank() - 2]),
        columns(shape.row_length()),
        block_rows(std::min(granularity.block_rows(), rows)),
        block_columns(std::min(granularity.block_columns(), columns)),
        down(base::divide_up(rows, block_rows)),
        across(base::divide_up(columns, block_columns)) {}
};

// `count` contiguous stretches of `length` elements in runs, the last of which may be shorter.
Runs runs_along(std::int64_t count, std::int64_t length, std::int64_t run) {
  if (length % run == 0) return {.lines = 1, .length = count * length, .run = run};
  return {.lines = count, .length = length, .run = run, .outer_step = base::divide_up(length, run)};
}

// Blocks with rows as lines.
Runs rows_of_blocks(const Blocks& b) {
  Runs runs{.lines = b.matrices * b.rows, .length = b.columns, .run = b.block_columns};
  if (b.block_rows == 1) {
    runs.outer_step = b.across;
  } else {
    runs.middle_count = b.rows;
    runs.group = b.block_rows;
    runs.middle_step = b.across;
    runs.outer_step = b.down * b.across;
  }
  return runs;
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
      if (split.inner == 1) {
        runs = runs_along(split.outer, split.axis, size);
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
    case GranularityKind::block: {
      const Blocks b(shape, granularity);
      if (b.block_rows == 1) return runs_along(b.matrices * b.rows, b.columns, b.block_columns);
      if (b.across == 1) return runs_along(b.matrices, b.rows * b.columns, b.block_rows * b.columns);
      return rows_of_blocks(b);
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
    case GranularityKind::block: return rows_of_blocks(Blocks(shape, granularity));
  }
  return runs;
}

}  // namespace kvant::core
