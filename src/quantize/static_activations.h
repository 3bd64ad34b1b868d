// The one scale of a linear's input that w8a8-static stores, from the statistics of its channels.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "format/activation_stats.h"
#include "format/stored_scale.h"
#include "kvant/status.h"

namespace kvant::quantize {

// Over all channels j, of what the linear will read: divided by s[j] where the norm before it is smoothed (`s` is empty
// where it is not). Symmetric: from absmax, with 127. Asymmetric: from min and max, with [-128, 127].
Result<format::StoredScale> static_activation(const format::ActivationStats& stats, std::string_view module,
                                              std::uint64_t in_features, std::span<const float> s, bool asymmetric,
                                              ElementKind scale);

}  // namespace kvant::quantize
