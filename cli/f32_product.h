// A product of f32 matrices to time W8A8 beside: y = x W^T.
//
// Register-blocked (4 rows of x by 3 of W, sums along K in vectors) and blocked for the caches, on AVX2 with FMA where
// the machine has it. A fair loop, not a tuned BLAS: its label says so.
#pragma once

#include <cstdint>

#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant::cli {

// x [m, k], w [n, k], y [m, n], all dense.
Status f32_product(const Stream& stream, const float* x, const float* w, float* y, std::int64_t m, std::int64_t n,
                   std::int64_t k);

}  // namespace kvant::cli
