// The ranges that an observer's histogram leads to: by percentile, or with the smallest squared error.
#pragma once

#include "ops/observer_histogram.h"
#include "semantics/dynamic_range.h"
#include "semantics/one_number.h"
#include "semantics/squared_error.h"

namespace kvant::ops {

// Of the observed range from min to max.
double largest_magnitude(double min, double max);

// Ends are edges of bins, cut to the observed range. C is the scale type of the input, float or double.
template <class C>
semantics::Range<semantics::OneNumber<C>> percentile_range(const Histogram& h, double min, double max, bool symmetric,
                                                           double percentile);

// `squared_error` is scratch, so that its memory serves all segments.
template <class C>
semantics::Range<semantics::OneNumber<C>> min_error_range(
    const Histogram& h, double min, double max, const semantics::RangeRules& rules,
    semantics::SquaredError<semantics::OneNumber<double>>& squared_error);

}  // namespace kvant::ops
