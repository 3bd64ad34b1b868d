// A folder for readers that take a path: of memory, where the system has such a place, so that nothing waits for a
// disk.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace kvant::tests {

class FuzzFolder {
 public:
  FuzzFolder() {
    const std::filesystem::path memory = "/dev/shm";
    std::string name =
        (access(memory.c_str(), W_OK) == 0 ? memory : std::filesystem::temp_directory_path()) / "kvant_fuzz_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
      std::fprintf(stderr, "no folder %s\n", name.c_str());
      std::abort();
    }
    path_ = name;
  }
  ~FuzzFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  FuzzFolder(const FuzzFolder&) = delete;
  FuzzFolder& operator=(const FuzzFolder&) = delete;

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

  void put(std::string_view name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::filesystem::path path_;
};

}  // namespace kvant::tests
