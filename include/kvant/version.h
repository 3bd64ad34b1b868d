// The version of these headers, and of the library that is linked.
#pragma once

#include <string_view>

#include "kvant/export.h"

#define KVANT_VERSION "0.1.0"

namespace kvant {

// The library's own KVANT_VERSION.
KVANT_API std::string_view version();

}  // namespace kvant
