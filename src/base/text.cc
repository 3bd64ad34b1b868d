#define FMT_HEADER_ONLY
#include "base/text.h"

#include <fmt/format.h>

namespace kvant::base {

std::string formatted(fmt::string_view format, fmt::format_args args) { return fmt::vformat(format, args); }

}  // namespace kvant::base
