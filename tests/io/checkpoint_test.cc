// Checkpoints: one file, a folder with one file, shards with their index, and every rule that holds them together.
#include "io/checkpoint.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.h"
#include "io/json.h"
#include "tests/fuzz/corpus.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using io::Checkpoint;
using io::DType;
using io::TensorInfo;

constexpr auto kBad = StatusCode::InvalidProblem;
constexpr std::string_view kFirst = "model-00001-of-00002.safetensors";
constexpr std::string_view kSecond = "model-00002-of-00002.safetensors";

// A safetensors file of U8 [4] tensors, each filled with a byte of its own.
void put_shard(const fs::path& path, const std::vector<std::pair<std::string, char>>& tensors) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, fill] : tensors) infos.push_back({name, DType::u8, {4}, 0, 0});
  const auto layout = io::lay_out_safetensors(infos, {{"format", "pt"}});
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  std::string bytes = layout->header;
  for (const auto& [name, fill] : tensors) bytes += std::string(4, fill);
  put_text(path, bytes);
}

// An index, the values of its map as JSON.
std::string index_of(std::initializer_list<std::pair<std::string_view, std::string>> map) {
  std::vector<std::string> entries;
  for (const auto& [tensor, shard] : map) entries.push_back(fmt::format("\"{}\": {}", tensor, shard));
  return fmt::format(R"({{"metadata": {{"total_size": 12}}, "weight_map": {{{}}}}})", base::joined(entries, ", "));
}
std::string in_quotes(std::string_view text) { return fmt::format("\"{}\"", text); }

Status refusal_of(const fs::path& path) { return Checkpoint::open(path).status(); }

std::string read_all(const Checkpoint& checkpoint, std::string_view tensor) {
  const auto place = checkpoint.tensors().find(tensor);
  if (place == checkpoint.tensors().end()) return "there is none";
  std::string bytes(4, '?');
  const Status status = checkpoint.read(place->second, 0, std::as_writable_bytes(std::span(bytes)));
  return status.ok() ? bytes : std::string(status.message());
}

// Two shards with a and c, and b, and their index.
class Sharded : public testing::Test {
 protected:
  void SetUp() override {
    put_shard(folder_ / kFirst, {{"a", 'A'}, {"c", 'C'}});
    put_shard(folder_ / kSecond, {{"b", 'B'}});
    put_index({{"a", in_quotes(kFirst)}, {"b", in_quotes(kSecond)}, {"c", in_quotes(kFirst)}});
  }
  void put_index(std::initializer_list<std::pair<std::string_view, std::string>> map) const {
    put_text(folder_ / io::kIndexName, index_of(map));
  }
  // What is refused when b's shard is called that, in JSON.
  Status refusal_of_shard(const std::string& json) const {
    put_index({{"a", in_quotes(kFirst)}, {"b", json}, {"c", in_quotes(kFirst)}});
    return refusal_of(folder_.path());
  }
  std::string index_path() const { return (folder_ / io::kIndexName).string(); }

  ScratchFolder folder_;
};

TEST(Checkpoint, OfOneFile) {
  const ScratchFolder folder;
  put_shard(folder / "weights.bin", {{"a", 'A'}, {"b", 'B'}});
  put_text(folder / "config.json", "no JSON, and nobody's business");
  const auto checkpoint = Checkpoint::open(folder / "weights.bin");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_FALSE(checkpoint->is_folder());
  EXPECT_EQ(checkpoint->path(), folder / "weights.bin");
  ASSERT_EQ(checkpoint->shards().size(), 1u);
  EXPECT_EQ(checkpoint->shard_name(0), "weights.bin");
  EXPECT_EQ(checkpoint->tensors().size(), 2u);
  EXPECT_EQ(read_all(*checkpoint, "a"), "AAAA");
  EXPECT_EQ(read_all(*checkpoint, "b"), "BBBB");
  EXPECT_EQ(checkpoint->config(), nullptr);
  EXPECT_EQ(checkpoint->index(), nullptr);
  EXPECT_TRUE(checkpoint->other_files().empty());
}

TEST(Checkpoint, OfAFolderWithOneFile) {
  const ScratchFolder folder;
  put_shard(folder / "model.safetensors", {{"a", 'A'}});
  put_text(folder / "config.json", R"({"model_type": "llama", "a": 1})");
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_TRUE(checkpoint->is_folder());
  EXPECT_EQ(checkpoint->shard_name(0), "model.safetensors");
  EXPECT_EQ(read_all(*checkpoint, "a"), "AAAA");
  ASSERT_NE(checkpoint->config(), nullptr);
  EXPECT_EQ(checkpoint->config()->dump(), R"({"model_type":"llama","a":1})");
  EXPECT_EQ(checkpoint->index(), nullptr);
  // As one types it.
  EXPECT_TRUE(Checkpoint::open(folder.path().string() + "/").ok());
}

TEST_F(Sharded, ShardsAndIndex) {
  const auto checkpoint = Checkpoint::open(folder_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  ASSERT_EQ(checkpoint->shards().size(), 2u);
  EXPECT_EQ(checkpoint->shard_name(0), kFirst);
  EXPECT_EQ(checkpoint->shard_name(1), kSecond);
  EXPECT_EQ(checkpoint->tensors().size(), 3u);
  EXPECT_EQ(checkpoint->tensors().find("b")->second.shard, 1u);
  for (const auto& [tensor, bytes] : std::map<std::string, std::string>{{"a", "AAAA"}, {"b", "BBBB"}, {"c", "CCCC"}})
    EXPECT_EQ(read_all(*checkpoint, tensor), bytes);
  ASSERT_NE(checkpoint->index(), nullptr);
  EXPECT_EQ(checkpoint->index()->at("metadata").at("total_size"), 12);
  EXPECT_EQ(checkpoint->config(), nullptr);
}

TEST_F(Sharded, TensorsAreFoundByName) {
  const auto checkpoint = Checkpoint::open(folder_.path());
  ASSERT_TRUE(checkpoint.ok());
  const TensorInfo* b = checkpoint->find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->name, "b");
  EXPECT_EQ(b->bytes(), 4u);
  EXPECT_EQ(checkpoint->find("B"), nullptr);
  EXPECT_EQ(checkpoint->find(""), nullptr);
}

TEST_F(Sharded, PartsOfATensorAreRead) {
  const auto checkpoint = Checkpoint::open(folder_.path());
  ASSERT_TRUE(checkpoint.ok());
  std::byte two[2] = {};
  const auto place = checkpoint->tensors().find("c")->second;
  ASSERT_TRUE(checkpoint->read(place, 2, two).ok());
  EXPECT_EQ(two[0], std::byte{'C'});
  EXPECT_EQ(two[1], std::byte{'C'});
  EXPECT_FALSE(checkpoint->read(place, 3, two).ok());
}

TEST_F(Sharded, TheIndexGoesBeforeASingleFile) {
  put_shard(folder_ / "model.safetensors", {{"other", 'O'}});
  const auto checkpoint = Checkpoint::open(folder_.path());
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ(checkpoint->shards().size(), 2u);
  EXPECT_EQ(checkpoint->find("other"), nullptr);
}

TEST_F(Sharded, AShardsNameMustBePlain) {
  fs::create_directory(folder_ / "sub");
  fs::copy(folder_ / kSecond, folder_ / "sub" / kSecond);
  const std::string outside = folder_.path().parent_path() / "kvant_no_such_shard.safetensors";
  for (const std::string& json :
       {in_quotes(fmt::format("../{}/{}", folder_.path().filename().string(), kSecond)), in_quotes(".."),
        in_quotes("."), in_quotes(""), in_quotes(fmt::format("sub/{}", kSecond)),
        in_quotes(fmt::format("./{}", kSecond)), in_quotes((folder_ / kSecond).string()), in_quotes(outside),
        in_quotes(fmt::format("{}/", kSecond)), in_quotes(fmt::format("sub\\\\{}", kSecond)), in_quotes("..\\\\x"),
        in_quotes("C:\\\\x"), in_quotes(fmt::format("{}\\u0000", kSecond)),
        in_quotes(fmt::format("{}\\u0000.safetensors", kSecond)), in_quotes(fmt::format("sub\\u002f{}", kSecond))})
    EXPECT_TRUE(refused(refusal_of_shard(json), kBad, {index_path(), "'b'", "must be a plain file name"})) << json;
}

TEST_F(Sharded, AShardsNameMustBeText) {
  for (const std::string json : {"1", "null", "true", "[]", R"(["x"])", "{}", R"({"a": "b"})"})
    EXPECT_TRUE(refused(refusal_of_shard(json), kBad, {index_path(), "'b'", "must be a plain file name"})) << json;
}

TEST_F(Sharded, DotsInAPlainNameAreNoPath) {
  fs::rename(folder_ / kSecond, folder_ / "..b..safetensors");
  put_index({{"a", in_quotes(kFirst)}, {"b", in_quotes("..b..safetensors")}, {"c", in_quotes(kFirst)}});
  EXPECT_TRUE(Checkpoint::open(folder_.path()).ok());
}

TEST_F(Sharded, ANameOfControlCharactersIsPrintedEscaped) {
  const Status status = refusal_of_shard(R"("\u001b[31m/x")");
  EXPECT_TRUE(refused(status, kBad, {"must be a plain file name"}));
  EXPECT_EQ(status.message().find('\x1b'), std::string_view::npos);
  EXPECT_EQ(refusal_of_shard(R"("\u001b[31m")").message().find('\x1b'), std::string_view::npos);
}

TEST_F(Sharded, ShardsMayBeSymbolicLinks) {
  // The Hugging Face cache: snapshots/REVISION/NAME -> ../../blobs/HASH.
  const ScratchFolder cache;
  fs::create_directories(cache / "blobs");
  fs::create_directories(cache / "snapshots/main");
  int blob = 0;
  for (const std::string_view name : {kFirst, kSecond, io::kIndexName}) {
    const std::string hash = fmt::format("{:064x}", ++blob);
    fs::rename(folder_ / name, cache / "blobs" / hash);
    fs::create_symlink(fs::path("../../blobs") / hash, cache / "snapshots/main" / name);
  }
  put_text(cache / "blobs/config", R"({"model_type": "opt"})");
  put_text(cache / "blobs/tokenizer", "{}");
  fs::create_symlink("../../blobs/config", cache / "snapshots/main/config.json");
  fs::create_symlink("../../blobs/tokenizer", cache / "snapshots/main/tokenizer.json");
  const auto checkpoint = Checkpoint::open(cache / "snapshots/main");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->shard_name(0), kFirst);
  EXPECT_EQ(checkpoint->shard_name(1), kSecond);
  EXPECT_EQ(read_all(*checkpoint, "b"), "BBBB");
  ASSERT_NE(checkpoint->config(), nullptr);
  EXPECT_EQ(checkpoint->config()->at("model_type"), "opt");
  ASSERT_EQ(checkpoint->other_files().size(), 1u);
  EXPECT_EQ(checkpoint->other_files()[0], cache / "snapshots/main/tokenizer.json");
}

TEST_F(Sharded, ATensorOfTheMapMustBeInItsShard) {
  put_index({{"a", in_quotes(kFirst)}, {"b", in_quotes(kSecond)}, {"c", in_quotes(kFirst)}, {"d", in_quotes(kSecond)}});
  EXPECT_TRUE(refused(refusal_of(folder_.path()), kBad, {index_path(), "tensor 'd' is not in", kSecond}));
  // It is in the other one.
  put_index({{"a", in_quotes(kFirst)}, {"b", in_quotes(kSecond)}, {"c", in_quotes(kSecond)}});
  EXPECT_TRUE(refused(refusal_of(folder_.path()), kBad, {index_path(), "tensor 'c' is not in", kSecond}));
}

TEST_F(Sharded, ATensorOfAShardMustBeInTheMap) {
  put_index({{"a", in_quotes(kFirst)}, {"b", in_quotes(kSecond)}});
  EXPECT_TRUE(
      refused(refusal_of(folder_.path()), kBad, {index_path(), "tensor 'c' of", kFirst, "is not in the weight_map"}));
}

TEST_F(Sharded, ATensorMustBeInOneShard) {
  put_shard(folder_ / kSecond, {{"b", 'B'}, {"c", 'C'}});
  EXPECT_TRUE(
      refused(refusal_of(folder_.path()), kBad, {(folder_ / kSecond).string(), "tensor 'c' is also in", kFirst}));
}

TEST_F(Sharded, OneFileUnderTwoNamesIsTwoShards) {
  fs::remove(folder_ / kSecond);
  fs::create_symlink(kFirst, folder_ / kSecond);
  EXPECT_TRUE(refused(refusal_of(folder_.path()), kBad, {kSecond, "'a' is also in", kFirst}));
}

TEST_F(Sharded, AMissingShardIsNamed) {
  fs::remove(folder_ / kSecond);
  EXPECT_TRUE(refused(refusal_of(folder_.path()), kBad, {(folder_ / kSecond).string(), "no such file"}));
  fs::create_symlink("nowhere", folder_ / kSecond);
  EXPECT_TRUE(refused(refusal_of(folder_.path()), kBad, {(folder_ / kSecond).string(), "no such file"}));
  fs::remove(folder_ / kSecond);
  fs::create_directory(folder_ / kSecond);
  EXPECT_TRUE(refused(refusal_of(folder_.path()), kBad, {(folder_ / kSecond).string(), "is a directory"}));
}

TEST_F(Sharded, ADamagedShardIsNamed) {
  put_text(folder_ / kSecond, "short");
  EXPECT_TRUE(refused(refusal_of(folder_.path()), kBad, {(folder_ / kSecond).string()}));
}

TEST_F(Sharded, AnIndexMustBeAnIndex) {
  const auto bad = [&](std::string_view text, Parts parts) {
    put_text(folder_ / io::kIndexName, text);
    const Status status = refusal_of(folder_.path());
    if (!status.ok() && !status.message().starts_with(index_path() + ": "))
      return testing::AssertionFailure() << "no file in front: " << status.message();
    return refused(status, kBad, parts);
  };
  EXPECT_TRUE(bad("", {"is not JSON"}));
  EXPECT_TRUE(bad("[]", {"is not a JSON object"}));
  EXPECT_TRUE(bad("{}", {"has no object \"weight_map\""}));
  EXPECT_TRUE(bad(R"({"weight_map": []})", {"has no object \"weight_map\""}));
  EXPECT_TRUE(bad(R"({"weight_map": null})", {"has no object \"weight_map\""}));
  EXPECT_TRUE(bad(R"({"weight_map": {"a": "x", "\u0061": "y"}})", {"has the key 'a' twice"}));
}

TEST_F(Sharded, AnIndexThatLinksToNothingIsNotForgotten) {
  fs::remove(folder_ / io::kIndexName);
  fs::create_symlink("nowhere", folder_ / io::kIndexName);
  put_shard(folder_ / "model.safetensors", {{"other", 'O'}});
  EXPECT_TRUE(refused(refusal_of(folder_.path()), kBad, {index_path(), "no such file"}));
}

TEST(Checkpoint, AConfigMustBeAnObject) {
  const ScratchFolder folder;
  put_shard(folder / "model.safetensors", {{"a", 'A'}});
  const std::string path = folder / "config.json";
  for (const std::string_view text : {"[]", "1", "null", R"("llama")"}) {
    put_text(path, text);
    EXPECT_TRUE(refused(refusal_of(folder.path()), kBad, {path, "is not a JSON object"})) << text;
  }
  put_text(path, R"({"a": 1, "a": 2})");
  EXPECT_TRUE(refused(refusal_of(folder.path()), kBad, {path, "has the key 'a' twice"}));
  put_text(path, "");
  EXPECT_TRUE(refused(refusal_of(folder.path()), kBad, {path, "is not JSON"}));
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_TRUE(refused(refusal_of(folder.path()), kBad, {path, "is a directory"}));
  fs::remove(path);
  fs::create_symlink("nowhere", path);
  EXPECT_TRUE(refused(refusal_of(folder.path()), kBad, {path, "no such file"}));
  fs::remove(path);
  EXPECT_TRUE(Checkpoint::open(folder.path()).ok());
}

TEST(Checkpoint, AConfigOfMoreThan100MBIsRefusedUnread) {
  const ScratchFolder folder;
  put_shard(folder / "model.safetensors", {{"a", 'A'}});
  put_text(folder / "config.json", "{}");
  fs::resize_file(folder / "config.json", std::uintmax_t{1} << 40);
  EXPECT_TRUE(refused(refusal_of(folder.path()), kBad, {"config.json", "1099511627776", "100000000"}));
}

TEST(Checkpoint, OfNothing) {
  const ScratchFolder folder;
  EXPECT_TRUE(refused(refusal_of(folder / "missing"), kBad, {(folder / "missing").string(), "no such file or folder"}));
  EXPECT_TRUE(refused(refusal_of(""), kBad, {"no such file or folder"}));
  EXPECT_TRUE(refused(refusal_of(folder.path()), kBad,
                      {folder.path().string(), "neither model.safetensors.index.json nor model.safetensors"}));
  put_text(folder / "file", "");
  EXPECT_FALSE(refusal_of(folder / "file").ok());
  EXPECT_TRUE(refused(refusal_of(folder / "file/model.safetensors"), kBad, {"file/model.safetensors"}));
  fs::create_symlink("loop", folder / "loop");
  EXPECT_TRUE(refused(refusal_of(folder / "loop"), kBad, {"loop"}));
  EXPECT_TRUE(refused(refusal_of(folder / std::string(300, 'x')), kBad, {"xxx"}));
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_TRUE(refused(refusal_of(folder / "fifo"), kBad, {"is a fifo"}));
  using namespace std::string_view_literals;
  EXPECT_TRUE(refused(refusal_of(folder / "a\0b"sv), kBad, {"NUL"}));
}

TEST(Checkpoint, AFolderThatMayNotBeReadSaysSo) {
  const ScratchFolder folder;
  fs::create_directory(folder / "closed");
  put_shard(folder / "closed/model.safetensors", {{"a", 'A'}});
  fs::permissions(folder / "closed", fs::perms::none);
  Status status;
  bool lowered = false;
  std::thread([&] {
    lowered = lower_privileges();
    status = refusal_of(folder / "closed");
  }).join();
  fs::permissions(folder / "closed", fs::perms::owner_all);
  if (!lowered) GTEST_SKIP() << "still privileged";
  EXPECT_TRUE(refused(status, kBad, {"closed", "permission denied"}));
}

TEST_F(Sharded, OtherFilesAreTheRegularOnesThatAreNoPartOfIt) {
  put_text(folder_ / "config.json", "{}");
  for (const std::string_view name : {"tokenizer.json", "README.md", ".gitattributes", "generation_config.json"})
    put_text(folder_ / name, "x");
  put_shard(folder_ / "consolidated.safetensors", {{"a", 'A'}});
  fs::create_directory(folder_ / "original");
  put_text(folder_ / "original/params.json", "{}");
  fs::create_symlink("original", folder_ / "linked_folder");
  fs::create_symlink("README.md", folder_ / "linked.md");
  fs::create_symlink("nowhere", folder_ / "nothing.md");
  ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  const auto checkpoint = Checkpoint::open(folder_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  std::vector<std::string> names;
  for (const fs::path& path : checkpoint->other_files()) {
    names.push_back(path.filename());
    EXPECT_EQ(path.parent_path(), folder_.path());
  }
  EXPECT_EQ(names, (std::vector<std::string>{".gitattributes", "README.md", "generation_config.json", "linked.md",
                                             "tokenizer.json"}));
}

TEST(Checkpoint, FilesAreClosedWithIt) {
  const ScratchFolder folder;
  put_shard(folder / "model.safetensors", {{"a", 'A'}});
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Checkpoint::open(folder.path()).ok());
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Checkpoint, ManyTensorsBesideTheirMapAreQuick) {
  // The last by name is missing in the map: the search for it goes through all.
  constexpr int kTensors = 100'000;
  std::vector<TensorInfo> tensors;
  std::string map;
  for (int i = 0; i < kTensors; ++i) {
    tensors.push_back({fmt::format("t{:06}", i), DType::u8, {0}, 0, 0});
    if (i + 1 < kTensors) map += fmt::format("{}\"t{:06}\":\"s\"", i == 0 ? "" : ",", i);
  }
  const ScratchFolder folder;
  const auto layout = io::lay_out_safetensors(std::move(tensors), {});
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  put_text(folder / "s", layout->header);
  put_text(folder / io::kIndexName, fmt::format(R"({{"weight_map":{{{}}}}})", map));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(refused(refusal_of(folder.path()), kBad, {"tensor 't099999' of s is not in the weight_map"}));
  // 0.3 s here, half a minute where each tensor is looked for from the map's beginning.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(ReadText, HasALimit) {
  const ScratchFolder folder;
  put_text(folder / "t", "12345");
  EXPECT_EQ(*io::read_text(folder / "t", 5), "12345");
  EXPECT_TRUE(refused(io::read_text(folder / "t", 4).status(), kBad, {"t: has 5 bytes", "4"}));
  put_text(folder / "t", "");
  EXPECT_EQ(*io::read_text(folder / "t", 0), "");
  EXPECT_TRUE(refused(io::read_text(folder / "u", 4).status(), kBad, {"u: no such file"}));
}

TEST(CheckpointDamage, CorpusOfIndices) { EXPECT_GE(run_corpus("index"), 15); }

}  // namespace
}  // namespace kvant::tests
