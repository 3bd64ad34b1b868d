// The reader of checkpoint folders on an arbitrary index: up to the first zero byte model.safetensors.index.json, then
// config.json, beside two shards. What is accepted names every tensor once, in the shard that has it, inside the
// folder. checkpoint_test runs it over the corpus; with -DKVANT_FUZZ=ON and Clang it is a libFuzzer program:
// build/.../tests/index_fuzz tests/fuzz/corpus/index
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"
#include "io/json.h"
#include "tests/fuzz/fuzz_folder.h"

namespace {

using kvant::io::Checkpoint;

void require(bool good, const std::string& sentence) {
  if (good) return;
  std::fprintf(stderr, "index_fuzz: %s\n", sentence.c_str());
  std::abort();
}

// "one" has a and b, "two" has c, of four bytes each.
const kvant::tests::FuzzFolder& folder() {
  static const kvant::tests::FuzzFolder made;
  static const bool has_shards = [] {
    const auto put = [](const char* name, const std::vector<std::string>& tensors) {
      std::vector<kvant::io::TensorInfo> infos;
      for (const std::string& tensor : tensors) infos.push_back({tensor, kvant::io::DType::f32, {1}, 0, 0});
      const auto layout = kvant::io::lay_out_safetensors(infos, {});
      made.put(name, layout->header + std::string(4 * tensors.size(), '\1'));
    };
    put("one.safetensors", {"a", "b"});
    put("two.safetensors", {"c"});
    return true;
  }();
  require(has_shards, "no shards");
  return made;
}

void check(const Checkpoint& checkpoint) {
  const auto& map = checkpoint.index()->at("weight_map");
  require(map.size() == checkpoint.tensors().size(), "the map has other tensors");
  for (const auto& [name, place] : checkpoint.tensors()) {
    require(checkpoint.at(place).name == name, name + " is not where it should be");
    require(map.at(name) == checkpoint.shard_name(place.shard), name + " is in another shard");
    std::vector<std::byte> bytes(static_cast<std::size_t>(checkpoint.at(place).bytes()));
    require(checkpoint.read(place, 0, bytes).ok(), name + " cannot be read");
  }
  for (const kvant::io::SafetensorsFile& shard : checkpoint.shards())
    require(shard.file().path().parent_path() == checkpoint.path(), "a shard outside the folder");
  const auto& config = checkpoint.config();
  require(config == nullptr || config->is_object(), "config.json is no object");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(input), size);
  const std::size_t end = std::min(all.find('\0'), all.size());
  folder().put(kvant::io::kIndexName, all.substr(0, end));
  std::error_code ignored;
  std::filesystem::remove(folder() / kvant::io::kConfigName, ignored);
  if (end < all.size()) folder().put(kvant::io::kConfigName, all.substr(end + 1));

  const auto checkpoint = Checkpoint::open(folder().path());
  if (checkpoint.ok())
    check(*checkpoint);
  else
    require(!checkpoint.status().message().empty(), "refused without a sentence");
  return 0;
}
