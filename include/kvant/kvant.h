// All of kvant.
#pragma once

#include "kvant/build_info.h"         // IWYU pragma: export
#include "kvant/dequantize.h"         // IWYU pragma: export
#include "kvant/dynamic_range.h"      // IWYU pragma: export
#include "kvant/elementwise.h"        // IWYU pragma: export
#include "kvant/error_sums.h"         // IWYU pragma: export
#include "kvant/f32_linear.h"         // IWYU pragma: export
#include "kvant/fake_quantize.h"      // IWYU pragma: export
#include "kvant/granularity.h"        // IWYU pragma: export
#include "kvant/linear.h"             // IWYU pragma: export
#include "kvant/network_steps.h"      // IWYU pragma: export
#include "kvant/observer.h"           // IWYU pragma: export
#include "kvant/packed_f32_weight.h"  // IWYU pragma: export
#include "kvant/packed_weight.h"      // IWYU pragma: export
#include "kvant/plan.h"               // IWYU pragma: export
#include "kvant/quantize.h"           // IWYU pragma: export
#include "kvant/range.h"              // IWYU pragma: export
#include "kvant/sku.h"                // IWYU pragma: export
#include "kvant/smoothing.h"          // IWYU pragma: export
#include "kvant/status.h"             // IWYU pragma: export
#include "kvant/stream.h"             // IWYU pragma: export
#include "kvant/tensor.h"             // IWYU pragma: export
#include "kvant/version.h"            // IWYU pragma: export
#include "kvant/weight_rounding.h"    // IWYU pragma: export
