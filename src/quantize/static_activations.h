// What is stored of the activations of a linear, and of keys and values, from the statistics of their channels.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "format/activation_stats.h"
#include "format/kv_cache.h"
#include "format/scheme.h"
#include "format/stored_scale.h"
#include "kvant/status.h"
#include "quantize/checkpoint_plan.h"

namespace kvant::quantize {

// Over all channels j, of what the linear will read: divided by s[j] where the norm before it is smoothed (`s` is empty
// where it is not). Symmetric: from absmax. Asymmetric: from min and max. `scale` is the type it is stored in.
//
// With ActivationRange::mse that of the part of the range with the least squared error over the histogram, as an
// Observer (kvant/observer.h) finds it; where a norm is smoothed, whose histogram is of something else, and for codes
// of a floating-point grid, of the whole range.
Result<format::SavedScale> static_activation(const format::ActivationStats& stats, std::string_view module,
                                             std::uint64_t in_features, std::span<const float> s,
                                             const format::ActivationScheme& activations, ActivationRange range,
                                             ElementKind scale);

// What a stored scale makes of the usual inputs: those without the thousandth that is largest, which a few tokens may
// have to themselves.
struct UsualInputs {
  double sqnr_db = 0;  // of them, over the histogram; infinite: nothing is lost
  double largest = 0;  // of them; an edge of a bin
};
Result<UsualInputs> usual_inputs(const format::ActivationStats& stats, std::string_view module, ElementKind code,
                                 const format::SavedScale& saved);

// The global scale that the scales of activations are found under at run time: 448 * max / absmax.
Result<float> activation_global_scale(const format::ActivationStats& stats, std::string_view module,
                                      std::uint64_t in_features, std::span<const float> s,
                                      const format::ActivationScheme& activations);

// The scale of an attention layer's keys or values, over all their channels. Smoothing has no say: what it divides the
// norm by, it multiplies the columns of the linears with that read the norm, and so keys and values stay what they
// were.
Result<float> cache_scale(const format::ActivationStats& stats, const format::OfCache& of, ElementKind scale);

}  // namespace kvant::quantize
