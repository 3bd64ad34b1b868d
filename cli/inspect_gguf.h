// kvant inspect of a GGUF file.
#pragma once

#include <filesystem>

namespace kvant::cli {

// Prints its tensors with types, shapes and sizes, and its metadata. An exit code.
int inspect_gguf(const std::filesystem::path& path, bool json);

}  // namespace kvant::cli
