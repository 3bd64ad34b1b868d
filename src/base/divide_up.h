// Division of sizes, rounded up.
#pragma once

#include <cstdint>

#include "base/inline.h"

namespace kvant::base {

// a / b, rounded up, for a >= 0 and b > 0.
KVANT_INLINE constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

// The same for sizes of files and of what is in them, which have no sign: how many parts cover the whole.
constexpr std::uint64_t parts_of(std::uint64_t whole, std::uint64_t part) { return whole / part + (whole % part != 0); }

}  // namespace kvant::base
