// Tests write down which kernels they ran, so that the summary of ./dev test claims nothing else.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "kvant/sku.h"

namespace kvant::tests {

// Notes a kernel that has run in this process. One line for each goes to the file $KVANT_KERNEL_LOG at exit.
inline void note_kernel(const KernelSku& sku) {
  struct Log {
    std::set<std::string> names;
    ~Log() {
      const char* path = std::getenv("KVANT_KERNEL_LOG");
      if (path == nullptr) return;
      std::filesystem::create_directories(std::filesystem::path(path).parent_path());
      std::ofstream file(path);
      for (const std::string& name : names) file << name << '\n';
    }
  };
  static Log log;
  log.names.insert(sku.name());
}

}  // namespace kvant::tests
