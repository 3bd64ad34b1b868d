// Granularity as data: for every shape and granularity, the parameter that Runs gives an element is the one that the
// definition gives.
#include "core/runs.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/granularity_text.h"

namespace kvant::core {
namespace {

// The definition, from the element's own coordinates.
std::int64_t parameter_by_definition(const Shape& shape, const Granularity& g, std::int64_t element) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(shape.rank()));
  for (int i = shape.rank() - 1; i >= 0; --i) {
    index[static_cast<std::size_t>(i)] = element % shape[i];
    element /= shape[i];
  }
  const int axis = g.axis() < 0 ? g.axis() + shape.rank() : g.axis();
  switch (g.kind()) {
    case GranularityKind::tensor: return 0;
    case GranularityKind::channel: return index[static_cast<std::size_t>(axis)];
    default: break;
  }
  const Shape parameters = *parameter_shape(shape, g);
  std::int64_t flat = 0;
  for (int i = 0; i < parameters.rank(); ++i) {
    const std::int64_t at = index[static_cast<std::size_t>(i)];
    const bool grouped = g.kind() == GranularityKind::group && i == axis, block = g.kind() == GranularityKind::block;
    const std::int64_t side = grouped                          ? g.group_size()
                              : block && i == shape.rank() - 1 ? g.block_columns()
                              : block && i == shape.rank() - 2 ? g.block_rows()
                                                               : 1;
    flat = flat * parameters[i] + at / side;
  }
  return flat;
}

void check(const Runs& runs, const Shape& shape, const Granularity& g) {
  const std::int64_t elements = *shape.element_count();
  ASSERT_EQ(runs.lines * runs.length, elements);
  for (std::int64_t line = 0; line < runs.lines; ++line) {
    const std::int64_t shared = lines_sharing_parameters(runs, line);
    ASSERT_GE(shared, 1);
    for (std::int64_t i = line; i < line + shared; ++i)
      ASSERT_EQ(first_parameter(runs, i), first_parameter(runs, line));
    for (std::int64_t j = 0; j < runs.length; ++j)
      ASSERT_EQ(first_parameter(runs, line) + j / runs.run, parameter_by_definition(shape, g, line * runs.length + j))
          << tests::granularity_text(g) << " of " << shape.to_string() << ", line " << line << " element " << j;
  }
}

TEST(Runs, GiveEachElementItsParameter) {
  for (const Shape& shape : {Shape{7}, Shape{1}, Shape{3, 5}, Shape{5, 1}, Shape{1, 5}, Shape{2, 3, 4}, Shape{4, 1, 3},
                             Shape{2, 6, 1}, Shape{3, 2, 5, 2}, Shape{2, 1, 1, 7}, Shape{2, 2, 2, 2, 2, 2, 2, 3}}) {
    std::vector<Granularity> all = {Granularity::per_tensor(), Granularity::per_token()};
    for (int axis = -shape.rank(); axis < shape.rank(); ++axis) {
      all.push_back(Granularity::per_channel(axis));
      for (const std::int64_t size : {1, 2, 3, 4, 100}) all.push_back(Granularity::per_group(axis, size));
    }
    if (shape.rank() >= 2)
      for (const std::int64_t rows : {1, 2, 3, 4, 100})
        for (const std::int64_t columns : {1, 2, 3, 4, 100}) all.push_back(Granularity::per_block(rows, columns));
    for (const Granularity& g : all) {
      check(dense_runs(shape, g), shape, g);
      const Runs rows = row_runs(shape, g);
      ASSERT_EQ(rows.length, shape.row_length());
      check(rows, shape, g);
      if (HasFatalFailure()) return;
    }
  }
}

// What is contiguous is walked as one line, which is faster than row by row.
TEST(Runs, JoinTheRowsOfBlocksThatAreContiguous) {
  const Runs by_row = dense_runs({6, 8}, Granularity::per_block(1, 4));
  EXPECT_EQ(by_row.lines, 1);
  EXPECT_EQ(by_row.run, 4);
  const Runs whole_rows = dense_runs({5, 6, 8}, Granularity::per_block(3, 100));
  EXPECT_EQ(whole_rows.lines, 1);
  EXPECT_EQ(whole_rows.run, 24);
  const Runs ragged = dense_runs({5, 6, 8}, Granularity::per_block(4, 8));
  EXPECT_EQ(ragged.lines, 5);
  EXPECT_EQ(ragged.run, 32);
}

TEST(Runs, HaveNoLinesWithoutElements) {
  for (const Granularity& g : {Granularity::per_tensor(), Granularity::per_token(), Granularity::per_channel(0),
                               Granularity::per_group(1, 4), Granularity::per_block(2, 2)}) {
    EXPECT_EQ(dense_runs({3, 0}, g).lines, 0);
    EXPECT_EQ(row_runs({0, 3}, g).lines, 0);
  }
}

TEST(ParameterShape, FollowsTheGranularity) {
  const Shape shape = {4, 10, 6};
  EXPECT_EQ(*parameter_shape(shape, Granularity::per_tensor()), Shape());
  EXPECT_EQ(*parameter_shape(shape, Granularity::per_channel(-2)), Shape({10}));
  EXPECT_EQ(*parameter_shape(shape, Granularity::per_token()), Shape({4, 10}));
  EXPECT_EQ(*parameter_shape(shape, Granularity::per_group(1, 4)), Shape({4, 3, 6}));
  EXPECT_EQ(*parameter_shape(shape, Granularity::per_group(-1, 6)), Shape({4, 10, 1}));
  EXPECT_EQ(*parameter_shape(shape, Granularity::per_block(4, 4)), Shape({4, 3, 2}));
  EXPECT_EQ(*parameter_shape(shape, Granularity::per_block(100, 1)), Shape({4, 1, 6}));
}

}  // namespace
}  // namespace kvant::core
