#include "measure/file_contents.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/refuse.h"
#include "io/atomic_file.h"
#include "io/checksum.h"
#include "io/file.h"
#include "io/json.h"
#include "quantize/checksums.h"
#include "quantize/output_folder.h"

namespace kvant::measure {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAgain = "quantize the checkpoint again, or copy the file again";

// Every file below the folder by its name as checksums.json has it. Links to folders are not followed: none of ours is
// one.
std::map<std::string, fs::path> files_below(const fs::path& folder) {
  std::map<std::string, fs::path> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, fs::directory_options::skip_permission_denied, error), end;
       !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored)) continue;
    const fs::path name = it->path().lexically_relative(folder);
    files.emplace(io::json_name(name.string()).get<std::string>(), it->path());
  }
  return files;
}

// Empty: the file is what it was.
Result<std::string> difference(const fs::path& path, const io::Checksum& written, const Stream& stream,
                               base::Progress& progress) {
  const auto file = io::InputFile::open(path);
  if (!file.ok()) return std::string(file.status().message());
  if (file->size() != written.bytes)
    return base::text("{}: has {} bytes, kvant wrote {}; {}", io::printable_path(path), file->size(), written.bytes,
                      kAgain);
  const auto now = io::checksum(*file, stream, progress);
  if (!now.ok()) {
    if (now.status().code() == StatusCode::Internal) return now.status();
    return std::string(now.status().message());
  }
  if (*now == written) return std::string();
  return base::text("{}: has changed since kvant wrote it: its checksum is {}, was {}; {}", io::printable_path(path),
                    now->hash, io::printable(written.hash), kAgain);
}

}  // namespace

Status check_file_contents(const fs::path& path, const Stream& stream, Verification& verification,
                           base::Progress& progress) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    verification.not_checked.emplace_back("contents of the file: only a folder that kvant wrote has checksums");
    return {};
  }
  const auto read = quantize::read_checksums(path);
  if (!read.ok()) {
    verification.problems.emplace_back(read.status().message());
    return {};
  }
  if (!*read) {
    verification.not_checked.push_back(base::text("contents of the files: the folder has no {} to compare with",
                                                  quantize::own_name(quantize::kChecksumsName)));
    return {};
  }
  const quantize::Checksums& checksums = **read;
  const std::map<std::string, fs::path> files = files_below(path);
  std::uint64_t bytes = 0;
  for (const auto& [name, checksum] : checksums)
    if (files.contains(name)) bytes += checksum.bytes;
  progress.begin("reading files", bytes);
  for (const auto& [name, checksum] : checksums) {
    const auto found = files.find(name);
    if (found == files.end()) {
      verification.problems.push_back(
          base::text("{}: is missing, kvant wrote it; {}", io::printable_path(path / name), kAgain));
      continue;
    }
    auto different = difference(found->second, checksum, stream, progress);
    if (!different.ok()) return different.status();
    if (!different->empty()) verification.problems.push_back(std::move(different).value());
  }
  verification.checks.push_back(base::text("every byte of {} files", checksums.size()));
  for (const auto& [name, found] : files) {
    if (checksums.contains(name) || name == quantize::own_name(quantize::kChecksumsName) ||
        name.ends_with(io::kPartialSuffix))
      continue;
    if (name.ends_with(".safetensors"))
      verification.problems.push_back(base::text(
          "{}: was not written by kvant, and some loaders read every .safetensors file of a folder; remove it",
          io::printable_path(found)));
    else if (name == quantize::own_name(quantize::kManifestName))
      verification.not_checked.push_back(base::text("{}: it has no checksum; only --resume reads it", name));
    else
      verification.not_checked.push_back(base::text("{}: kvant did not write it", io::printable(name)));
  }
  return {};
}

}  // namespace kvant::measure
