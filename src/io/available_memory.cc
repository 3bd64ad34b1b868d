#include "io/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace kvant::io {
namespace {

// The number in a file that holds nothing else; the control group's "max", or no file, is no limit.
std::uint64_t number_in(const char* path, std::uint64_t otherwise) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : otherwise;
}

}  // namespace

std::uint64_t available_memory() {
  constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t available = kNone;
  std::ifstream facts("/proc/meminfo");
  for (std::string name; facts >> name;) {
    std::uint64_t kilobytes = 0;
    if (name == "MemAvailable:" && facts >> kilobytes) {
      available = kilobytes * 1024;
      break;
    }
    facts.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  const std::uint64_t limit = number_in("/sys/fs/cgroup/memory.max", kNone);
  if (limit != kNone) {
    const std::uint64_t used = number_in("/sys/fs/cgroup/memory.current", 0);
    available = std::min(available, limit - std::min(limit, used));
  }
  return available == kNone ? 0 : available;
}

}  // namespace kvant::io
