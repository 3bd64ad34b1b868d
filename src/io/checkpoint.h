// A checkpoint: one safetensors file, or a folder with one or with shards and their index, and the files beside them.
//
// The index is `model.safetensors.index.json`: {"metadata": {"total_size": BYTES}, "weight_map": {TENSOR: SHARD}}. A
// shard's name must be a plain file name (a path that leaves the folder is an attack; the file itself may be a symbolic
// link, as in the Hugging Face cache). Every tensor of the map must be in its shard and every tensor of a shard in the
// map.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"
#include "io/safetensors.h"
#include "kvant/status.h"

namespace kvant::io {

// Where a tensor of a checkpoint is.
struct TensorPlace {
  std::size_t shard;
  std::size_t tensor;  // in the shard's list
};

class Checkpoint {
 public:
  static Result<Checkpoint> open(const std::filesystem::path& path);

  bool is_folder() const { return is_folder_; }
  const std::filesystem::path& path() const { return path_; }
  const std::vector<SafetensorsFile>& shards() const { return shards_; }
  // "model-00001-of-00002.safetensors"
  std::string shard_name(std::size_t shard) const { return shards_[shard].file().path().filename().string(); }
  const std::map<std::string, TensorPlace, std::less<>>& tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;  // null: none
  const TensorInfo& at(const TensorPlace& place) const { return shards_[place.shard].tensors()[place.tensor]; }
  std::uint64_t tensor_bytes() const;  // of all tensors, without the headers of the files
  Status read(const TensorPlace& place, std::uint64_t offset, std::span<std::byte> to) const;

  const Json* config() const { return config_.get(); }  // config.json of a folder, or nullptr
  const Json* index() const { return index_.get(); }    // or nullptr
  // Regular files of the folder (also through symbolic links) that are neither index, config.json nor safetensors, by
  // name: a safetensors file that the index does not name is no part of the checkpoint.
  const std::vector<std::filesystem::path>& other_files() const { return other_files_; }
  // What else is in the folder, by name: *.safetensors that the index does not name, sub-folders.
  const std::vector<std::string>& left_out() const { return left_out_; }

 private:
  Checkpoint() = default;
  Status open_folder();
  Status open_shards_of_index(const Json& index);
  Status open_shard(const std::filesystem::path& path);
  Status check_index(const Json& index) const;
  Status find_other_files();

  std::filesystem::path path_;
  bool is_folder_ = false;
  std::vector<SafetensorsFile> shards_;
  std::map<std::string, TensorPlace, std::less<>> tensors_;
  std::shared_ptr<const Json> config_;
  std::shared_ptr<const Json> index_;
  std::vector<std::filesystem::path> other_files_;
  std::vector<std::string> left_out_;
};

inline constexpr std::string_view kIndexName = "model.safetensors.index.json";
inline constexpr std::string_view kConfigName = "config.json";
// Of a folder without an index.
inline constexpr std::string_view kSingleName = "model.safetensors";

// The text of a small file. Refuses more than `most` bytes.
Result<std::string> read_text(const std::filesystem::path& path, std::uint64_t most);

}  // namespace kvant::io
