#include "io/checkpoint.h"

#include <algorithm>
#include <array>
#include <set>
#include <span>
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

constexpr std::string_view kFromTheHub =
    "; a model of the Hugging Face hub must be downloaded first, for example with 'hf download NAME --local-dir "
    "FOLDER'";

// "org/name", as models are called there.
bool is_like_a_hub_name(std::string_view text) {
  const auto is_part = [](std::string_view part) {
    return !part.empty() && part[0] != '.' && std::ranges::all_of(part, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
             c == '.';
    });
  };
  const std::size_t slash = text.find('/');
  return slash != std::string_view::npos && is_part(text.substr(0, slash)) && is_part(text.substr(slash + 1));
}

// Named like one, and no safetensors by another name: that begins with eight bytes that are a small number.
bool is_pytorch(const fs::path& path) {
  const std::string name = path.filename().string();
  if (std::ranges::none_of(std::array{".bin", ".pt", ".pth", ".ckpt"},
                           [&](std::string_view suffix) { return name.ends_with(suffix); }))
    return false;
  const auto file = InputFile::open(path);
  std::array<char, 8> begin{};
  if (!file.ok() || !file->read(0, std::as_writable_bytes(std::span(begin))).ok()) return false;
  const std::string_view bytes(begin.data(), begin.size());
  return bytes.starts_with("PK\x03\x04") || (bytes.starts_with("\x80\x02") && bytes[2] != '\0');  // zip, or pickle
}

// Weights in a format that others read.
Status refuse_other_format(const fs::path& file) {
  if (is_gguf(file))
    return base::unsupported(
        "{0}: is a GGUF file, a checkpoint is safetensors; 'kvant convert {0} -o FOLDER' makes one",
        printable_path(file));
  if (is_pytorch(file))
    return base::unsupported(
        "{}: is a PyTorch file, a checkpoint is safetensors; load the model in Python with transformers and save it "
        "with "
        "model.save_pretrained(FOLDER, safe_serialization=True)",
        printable_path(file));
  return {};
}

// Of a folder that has no safetensors.
Status refuse_other_weights(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    files.push_back(it->path());
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files)
    if (Status s = refuse_other_format(file); !s.ok()) return s;
  return {};
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
  if (!fs::exists(status))
    return invalid_problem("{}: no such file or folder{}", printable_path(path),
                           is_like_a_hub_name(path.native()) ? kFromTheHub : "");
  checkpoint.is_folder_ = fs::is_directory(status);
  if (!checkpoint.is_folder_)
    if (Status s = refuse_other_format(path); !s.ok()) return s;
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
    if (!is_there(path_ / kSingleName)) {
      if (Status s = refuse_other_weights(path_); !s.ok()) return s;
      return invalid_problem("{}: has neither {} nor {}", printable_path(path_), kIndexName, kSingleName);
    }
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
