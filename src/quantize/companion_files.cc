#include "quantize/companion_files.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/refuse.h"
#include "format/dialects.h"
#include "io/atomic_file.h"
#include "quantize/output_folder.h"

namespace kvant::quantize {
namespace {

namespace fs = std::filesystem;

// Models in other formats.
constexpr std::array<std::string_view, 7> kOtherFormats = {".ckpt", ".gguf",    ".ggml", ".onnx",
                                                           ".h5",   ".msgpack", ".pth"};
// Weights that a loader could take instead of the quantized ones, and their indices. In a folder below they are those
// of another module.
constexpr std::array<std::string_view, 4> kOtherWeights = {".bin", ".pt", ".bin.index.json", ".safetensors.index.json"};

bool ends_in(std::string_view name, std::span<const std::string_view> suffixes) {
  return std::ranges::any_of(suffixes, [&](std::string_view suffix) { return name.ends_with(suffix); });
}

// What is below one folder.
void look_below(const fs::path& folder, const std::string& name, CompanionFiles& found) {
  CompanionFiles below;
  std::error_code error, ignored;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string inside = (fs::path(name) / it->path().lexically_relative(folder)).string();
    if (it->path().filename().native().starts_with('.') || (it->is_directory(ignored) && it->is_symlink(ignored))) {
      below.left_out.push_back(inside);
      it.disable_recursion_pending();
    } else if (it->is_directory(ignored)) {
      continue;
    } else if (!it->is_regular_file(ignored) || it->file_size(ignored) > kMaxFileBelow ||
               ends_in(inside, kOtherFormats) || inside.ends_with(io::kPartialSuffix)) {
      below.left_out.push_back(inside);
    } else {
      below.copied.push_back({it->path(), inside});
    }
    if (below.copied.size() > kMaxFilesBelow) break;
  }
  if (error || below.copied.empty() || below.copied.size() > kMaxFilesBelow) below = {{}, {name}};
  std::ranges::move(below.copied, std::back_inserter(found.copied));
  std::ranges::move(below.left_out, std::back_inserter(found.left_out));
}

}  // namespace

Result<CompanionFiles> find_companion_files(const io::Checkpoint& checkpoint) {
  CompanionFiles found;
  for (const fs::path& path : checkpoint.other_files()) {
    std::string name = path.filename().string();
    if (name == kOwnFolder)
      return base::invalid_problem("{}: has the name of the folder that kvant creates in its output; rename it",
                                   io::printable_path(path));
    if (ends_in(name, kOtherFormats) || ends_in(name, kOtherWeights) || name.ends_with(io::kPartialSuffix) ||
        format::is_quantization_file(name))  // loaders would believe it
      found.left_out.push_back(std::move(name));
    else
      found.copied.push_back({path, std::move(name)});
  }
  for (const std::string& name : checkpoint.left_out()) {
    if (name == kOwnFolder) continue;
    const fs::path path = checkpoint.path() / name;
    std::error_code error;
    if (!name.starts_with('.') && fs::is_directory(fs::symlink_status(path, error)))
      look_below(path, name, found);
    else
      found.left_out.push_back(name);
  }
  std::ranges::sort(found.copied, {}, &CompanionFile::name);
  std::ranges::sort(found.left_out);
  return found;
}

}  // namespace kvant::quantize
