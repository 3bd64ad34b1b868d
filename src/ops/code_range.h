// The range of codes that a descriptor asks for.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/refuse.h"
#include "base/who.h"
#include "kvant/element.h"
#include "kvant/status.h"

namespace kvant::ops {

// q_min and q_max or their defaults, inside `limits`, which are the min and max `of_what`.
inline Result<CodeRange> checked_code_range(const base::Who& who, std::optional<std::int32_t> q_min,
                                            std::optional<std::int32_t> q_max, const CodeRange& defaults,
                                            const CodeRange& limits, std::string_view of_what) {
  const CodeRange range{q_min.value_or(defaults.min), q_max.value_or(defaults.max)};
  if (range.min < limits.min)
    return base::invalid_problem("{}: q_min {} is below {}, the min {}", who(), range.min, limits.min, of_what);
  if (range.max > limits.max)
    return base::invalid_problem("{}: q_max {} is above {}, the max {}", who(), range.max, limits.max, of_what);
  if (range.min > range.max)
    return base::invalid_problem("{}: q_min {} is above q_max {}", who(), range.min, range.max);
  return range;
}

// The same for the codes of an element kind. On a floating-point grid they are numbers from -max to max, and nothing
// can be asked of them.
inline Result<CodeRange> checked_grid_range(const base::Who& who, std::optional<std::int32_t> q_min,
                                            std::optional<std::int32_t> q_max, ElementKind code) {
  if (has_float_grid(code)) {
    const auto max = static_cast<std::int32_t>(info(code).format.max());
    if (q_min || q_max)
      return base::invalid_problem("{}: q_min and q_max are for integer codes; {} has the numbers from {} to {}", who(),
                                   name(code), -max, max);
    return CodeRange{-max, max};
  }
  const CodeRange limits = code_range(code);
  return checked_code_range(who, q_min, q_max, limits, limits, base::text("of {}", name(code)));
}

}  // namespace kvant::ops
