// Numbers that every operator must be asked about.
#pragma once

#include <limits>

namespace kvant::tests {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

}  // namespace kvant::tests
