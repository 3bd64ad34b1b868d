#include "io/checkpoint.h"

#include <algorithm>
#include <set>
#include <system_error>

#include "base/refuse.h"
#include "io/gguf.h"
#include "io/json.h"
#include "io/posix.h"

namespace kvant::io {
namespace {

namespace fs = std::filesystem;
using base::invalid_problem;

constexpr std::uint64_t kMaxJsonBytes = 100'000'000;
constexpr std::string_view kSuffix = ".safetensors";

// A name of a file in this very folder.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\\') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

// Also where it is a link to nothing or cannot be looked at: opening it then says so.
bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() != fs::file_type::not_found;
}

}  // namespace

Result<std::string> read_text(const fs::path& path, std::uint64_t most) {
  auto file = InputFile::open(path);
  if (!file.ok()) return file.status();
  if (file->size() > most)
    return invalid_problem("{}: has {} bytes, the max is {}", printable_path(path), file->size(), most);
  std::string text(static_cast<std::size_t>(file->size()), '\0');
  if (Status s = file->read(0, std::as_writable_bytes(std::span(text))); !s.ok()) return s;
  return text;
}

Result<Checkpoint> Checkpoint::open(const fs::path& path) {
  if (Status s = check_path(path); !s.ok()) return s;
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error && status.type() != fs::file_type::not_found)
    return invalid_problem("{}: {}", printable_path(path), error.message());
  if (!fs::exists(status)) return invalid_problem("{}: no such file or folder", printable_path(path));
  checkpoint.is_folder_ = fs::is_directory(status);
  if (!checkpoint.is_folder_ && is_gguf(path))
    return base::unsupported("{}: is a GGUF file, a checkpoint is safetensors; 'kvant convert' makes one of it",
                             printable_path(path));
  if (Status s = checkpoint.is_folder_ ? checkpoint.open_folder() : checkpoint.open_shard(path); !s.ok()) return s;
  return checkpoint;
}

Status Checkpoint::open_folder() {
  const auto document = [&](std::string_view name, std::shared_ptr<const Json>& to) -> Status {
    const fs::path path = path_ / name;
    if (!is_there(path)) return {};
    const auto text = read_text(path, kMaxJsonBytes);
    if (!text.ok()) return text.status();
    auto parsed = parse_json(*text, path.string());
    if (!parsed.ok()) return parsed.status();
    if (!parsed->is_object()) return invalid_problem("{}: is not a JSON object", printable_path(path));
    to = std::make_shared<const Json>(std::move(parsed).value());
    return {};
  };
  if (Status s = document(kConfigName, config_); !s.ok()) return s;
  if (Status s = document(kIndexName, index_); !s.ok()) return s;
  if (index_) {
    if (Status s = open_shards_of_index(*index_); !s.ok()) return s;
    if (Status s = check_index(*index_); !s.ok()) return s;
  } else {
    if (!is_there(path_ / kSingleName))
      return invalid_problem("{}: has neither {} nor {}", printable_path(path_), kIndexName, kSingleName);
    if (Status s = open_shard(path_ / kSingleName); !s.ok()) return s;
  }
  return find_other_files();
}

Status Checkpoint::open_shards_of_index(const Json& index) {
  const fs::path path = path_ / kIndexName;
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object())
    return invalid_problem("{}: has no object \"weight_map\"", printable_path(path));
  std::set<std::string> names;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string() || !is_plain_name(shard.get_ref<const std::string&>()))
      return invalid_problem("{}: the shard of tensor '{}' is {}, must be a plain file name", printable_path(path),
                             printable(tensor), printable(shard.dump(-1, ' ', true)));
    names.insert(shard.get<std::string>());
  }
  for (const std::string& name : names)
    if (Status s = open_shard(path_ / name); !s.ok()) return s;
  return {};
}

Status Checkpoint::open_shard(const fs::path& path) {
  auto file = SafetensorsFile::open(path);
  if (!file.ok()) return file.status();
  const std::size_t shard = shards_.size();
  for (std::size_t i = 0; i < file->tensors().size(); ++i) {
    const std::string& name = file->tensors()[i].name;
    const auto [place, fresh] = tensors_.try_emplace(name, TensorPlace{shard, i});
    if (!fresh)
      return invalid_problem("{}: tensor '{}' is also in {}", printable_path(path), printable(name),
                             printable(shard_name(place->second.shard)));
  }
  shards_.push_back(std::move(file).value());
  return {};
}

Status Checkpoint::check_index(const Json& index) const {
  const fs::path path = path_ / kIndexName;
  const Json& map = index["weight_map"];
  std::set<std::string_view> mapped;  // a Json object would look through all its keys
  for (const auto& [tensor, shard] : map.items()) {
    const auto place = tensors_.find(tensor);
    const auto& wanted = shard.get_ref<const std::string&>();
    if (place == tensors_.end() || shard_name(place->second.shard) != wanted)
      return invalid_problem("{}: tensor '{}' is not in {}", printable_path(path), printable(tensor),
                             printable(wanted));
    mapped.insert(place->first);
  }
  for (const auto& [tensor, place] : tensors_)
    if (!mapped.contains(tensor))
      return invalid_problem("{}: tensor '{}' of {} is not in the weight_map", printable_path(path), printable(tensor),
                             printable(shard_name(place.shard)));
  return {};
}

Status Checkpoint::find_other_files() {
  std::set<std::string> known = {std::string(kIndexName), std::string(kConfigName)};
  for (std::size_t i = 0; i < shards_.size(); ++i) known.insert(shard_name(i));
  std::error_code error;
  for (fs::directory_iterator it(path_, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const std::string name = it->path().filename().string();
    if (known.contains(name)) continue;
    if (!name.ends_with(kSuffix) && it->is_regular_file(ignored))
      other_files_.push_back(it->path());
    else
      left_out_.push_back(name);
  }
  if (error) return invalid_problem("{}: {}", printable_path(path_), error.message());
  std::sort(other_files_.begin(), other_files_.end());
  std::sort(left_out_.begin(), left_out_.end());
  return {};
}

std::uint64_t Checkpoint::tensor_bytes() const {
  std::uint64_t bytes = 0;
  for (const SafetensorsFile& shard : shards_)
    for (const TensorInfo& tensor : shard.tensors()) bytes += tensor.bytes();
  return bytes;
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto place = tensors_.find(name);
  return place == tensors_.end() ? nullptr : &shards_[place->second.shard].tensors()[place->second.tensor];
}

Status Checkpoint::read(const TensorPlace& place, std::uint64_t offset, std::span<std::byte> to) const {
  const SafetensorsFile& file = shards_[place.shard];
  return file.read(file.tensors()[place.tensor], offset, to);
}

}  // namespace kvant::io
