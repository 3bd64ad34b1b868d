// What is stored of the activations of a linear, from the statistics of its channels.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "format/activation_stats.h"
#include "format/scheme.h"
#include "format/stored_scale.h"
#include "kvant/status.h"

namespace kvant::quantize {

// Over all channels j, of what the linear will read: divided by s[j] where the norm before it is smoothed (`s` is empty
// where it is not). Symmetric: from absmax. Asymmetric: from min and max. `scale` is the type it is stored in.
Result<format::SavedScale> static_activation(const format::ActivationStats& stats, std::string_view module,
                                             std::uint64_t in_features, std::span<const float> s,
                                             const format::ActivationScheme& activations, ElementKind scale);

// The global scale that the scales of activations are found under at run time: 448 * max / absmax.
Result<float> activation_global_scale(const format::ActivationStats& stats, std::string_view module,
                                      std::uint64_t in_features, std::span<const float> s,
                                      const format::ActivationScheme& activations);

}  // namespace kvant::quantize
