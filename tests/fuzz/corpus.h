// A fuzzer's corpus as a test: every file goes through the fuzzer that is linked into the test.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "tests/support/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size);

namespace kvant::tests {

// `also` is given the path of each file, and what it holds. Returns how many there are.
inline int run_corpus(std::string_view reader,
                      const std::function<void(const fs::path&, const std::string&)>& also = {}) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(KVANT_SOURCE_DIR) / "tests/fuzz/corpus" / reader)) {
    SCOPED_TRACE(entry.path().string());
    const std::string bytes = text_of(entry.path());
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    if (also) also(entry.path(), bytes);
    ++files;
  }
  return files;
}

// Files of a corpus are named for what must become of them.
inline bool is_legal(const fs::path& file) { return file.filename().string().starts_with("legal"); }

}  // namespace kvant::tests
