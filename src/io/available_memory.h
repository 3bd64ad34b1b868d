// How much memory this process may still take.
#pragma once

#include <cstdint>

namespace kvant::io {

// MemAvailable of /proc/meminfo, or less where a control group (of a container) allows less. 0: not known.
std::uint64_t available_memory();

}  // namespace kvant::io
