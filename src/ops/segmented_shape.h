// A tensor whose segments have a parameter each, as the plans of ranges and dynamic ranges see it.
#pragma once

#include <cstdint>
#include <optional>

#include "core/range_kernel.h"
#include "kvant/element.h"
#include "kvant/granularity.h"
#include "kvant/tensor.h"

namespace kvant::ops {

struct SegmentedShape {
  Shape shape;
  Granularity scope;
  Shape parameter_shape;
  ElementKind input;
  std::int64_t parameters;
  std::int64_t rows;

  // They have passed checked_parameter_shape().
  SegmentedShape(const Shape& sizes, const Granularity& granularity, const Shape& of_parameters, ElementKind element)
      : shape(sizes),
        scope(granularity),
        parameter_shape(of_parameters),
        input(element),
        parameters(*of_parameters.element_count()),
        rows(*sizes.element_count() == 0 ? 0 : *sizes.element_count() / sizes.row_length()) {}

  detail::SegmentProblem problem(std::optional<ElementKind> output) const {
    return {shape, scope, parameter_shape, input, output};
  }
};

}  // namespace kvant::ops
