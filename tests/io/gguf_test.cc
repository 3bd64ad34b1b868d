// GGUF: what is written is read again, every rule of the reader with the sentence that refuses, and headers with random
// damage.
#include "io/gguf.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"
#include "tests/fuzz/corpus.h"
#include "tests/fuzz/gguf_invariants.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/refusals.h"
#include "tests/support/sanitized.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using io::GgufArray;
using io::GgufEntry;
using io::GgufFile;
using io::GgufHeader;
using io::GgufNumber;
using io::GgufTensor;
using io::GgufType;
using io::GgufValueType;

constexpr auto kBad = StatusCode::InvalidProblem;
constexpr auto kUnsupported = StatusCode::Unsupported;

Result<GgufHeader> parse(std::string_view file, std::uint64_t file_bytes) {
  std::uint64_t wanted = 0;
  return io::parse_gguf_header(file, file_bytes, "m.gguf", wanted);
}
Result<GgufHeader> parse(std::string_view file) { return parse(file, file.size()); }

testing::AssertionResult bad(std::string_view file, Parts parts, StatusCode code = kBad) {
  const Status status = parse(file).status();
  if (!status.ok() && status.message().substr(0, 8) != "m.gguf: ")
    return testing::AssertionFailure() << "no file in front: " << status.message();
  return refused(status, code, parts);
}

// Two tensors and some metadata.
GgufWriter small_file() {
  GgufWriter writer;
  writer.set("general.architecture", gguf_value("llama"));
  writer.set("n", gguf_value(std::uint32_t{7}));
  writer.set("tokens", gguf_value(std::vector<std::string>{"a", "", "\xFF"}));
  writer.set("scores", gguf_value(std::vector<float>{0.5f, -1.0f}));
  writer.add("w", GgufType::q4_0, {3, 64}, patterned(3 * 2 * 18));
  writer.add("norm", GgufType::f32, {5}, patterned(20));
  return writer;
}

// ---- What is read -----------------------------------------------------------------------------------------------

TEST(GgufRead, TensorsAndTheirBytes) {
  const ScratchFolder folder;
  const GgufWriter writer = small_file();
  put_text(folder / "m.gguf", writer.file());
  const auto file = GgufFile::open(folder / "m.gguf");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->version(), 3u);
  ASSERT_EQ(file->tensors().size(), 2u);
  const GgufTensor* const w = file->find_tensor("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->type, GgufType::q4_0);
  EXPECT_EQ(w->shape, (std::vector<std::uint64_t>{3, 64}));
  EXPECT_EQ(w->bytes(), 108u);
  const GgufTensor* const norm = file->find_tensor("norm");
  ASSERT_NE(norm, nullptr);
  EXPECT_EQ(norm->begin, 128u);
  EXPECT_EQ(norm->shape, (std::vector<std::uint64_t>{5}));
  EXPECT_EQ(file->find_tensor("other"), nullptr);

  std::string bytes(10, '\0');
  ASSERT_TRUE(file->read(*w, 98, std::as_writable_bytes(std::span(bytes))).ok());
  EXPECT_EQ(bytes, patterned(108).substr(98));
  std::string all(20, '\0');
  ASSERT_TRUE(file->read(*norm, 0, std::as_writable_bytes(std::span(all))).ok());
  EXPECT_EQ(all, patterned(20));
  EXPECT_TRUE(refused(file->read(*w, 99, std::as_writable_bytes(std::span(bytes))), kBad,
                      {"tensor \"w\"", "has 108 bytes, wanted 10 from 99"}));
  EXPECT_TRUE(refused(file->read(*w, ~std::uint64_t{0}, {}), kBad, {"wanted 0 from 18446744073709551615"}));
}

TEST(GgufRead, EveryKindOfValue) {
  GgufWriter writer;
  const auto set = [&](const char* key, GgufValueType type, const auto& value) {
    writer.set(key, gguf_value(type, little_endian(value)));
  };
  set("u8", GgufValueType::u8, std::uint8_t{200});
  set("i8", GgufValueType::i8, std::int8_t{-100});
  set("u16", GgufValueType::u16, std::uint16_t{60000});
  set("i16", GgufValueType::i16, std::int16_t{-30000});
  set("u32", GgufValueType::u32, std::uint32_t{4000000000});
  set("i32", GgufValueType::i32, std::int32_t{-2000000000});
  set("f32", GgufValueType::f32, 0.1f);
  set("u64", GgufValueType::u64, ~std::uint64_t{0});
  set("i64", GgufValueType::i64, std::int64_t{-1} << 63);
  set("f64", GgufValueType::f64, 0.1);
  writer.set("bool", gguf_value(true));
  writer.set("string", gguf_value("caf\xC3\xA9"));
  writer.set("strings", gguf_value(std::vector<std::string>{"x", ""}));
  writer.set("numbers", gguf_array(GgufValueType::i16, 3, std::string_view("\1\0\xFF\xFF\0\x80", 6)));
  writer.set("none", gguf_array(GgufValueType::f64, 0, ""));
  const auto header = parse(writer.file());
  ASSERT_TRUE(header.ok()) << header.status().message();
  const auto value = [&](std::string_view key) -> const GgufEntry& {
    for (const GgufEntry& entry : header->metadata)
      if (entry.key == key) return entry;
    throw std::runtime_error(std::string(key));
  };
  const auto number = [&](std::string_view key) { return std::get<GgufNumber>(value(key).value); };
  EXPECT_EQ(number("u8"), GgufNumber(std::uint64_t{200}));
  EXPECT_EQ(number("i8"), GgufNumber(std::int64_t{-100}));
  EXPECT_EQ(number("u16"), GgufNumber(std::uint64_t{60000}));
  EXPECT_EQ(number("i16"), GgufNumber(std::int64_t{-30000}));
  EXPECT_EQ(number("u32"), GgufNumber(std::uint64_t{4000000000}));
  EXPECT_EQ(number("i32"), GgufNumber(std::int64_t{-2000000000}));
  EXPECT_EQ(number("f32"), GgufNumber(static_cast<double>(0.1f)));
  EXPECT_EQ(number("u64"), GgufNumber(~std::uint64_t{0}));
  EXPECT_EQ(number("i64"), GgufNumber(std::int64_t{-1} << 63));
  EXPECT_EQ(number("f64"), GgufNumber(0.1));
  EXPECT_EQ(number("bool"), GgufNumber(true));
  EXPECT_EQ(std::get<std::string>(value("string").value), "caf\xC3\xA9");
  EXPECT_EQ(std::get<GgufArray>(value("strings").value).strings, (std::vector<std::string>{"x", ""}));
  const auto& numbers = std::get<GgufArray>(value("numbers").value);
  ASSERT_EQ(numbers.size(), 3u);
  for (const auto& [i, wanted] : {std::pair{0, 1}, {1, -1}, {2, -32768}})
    EXPECT_EQ(numbers.number(static_cast<std::size_t>(i)), GgufNumber(std::int64_t{wanted}));
  EXPECT_EQ(std::get<GgufArray>(value("none").value).size(), 0u);
}

TEST(GgufRead, Version2AndAnotherAlignment) {
  GgufWriter writer = small_file();
  writer.version = 2;
  EXPECT_TRUE(parse(writer.file()).ok());
  GgufWriter wide;
  wide.alignment = 64;
  wide.set("general.alignment", gguf_value(std::uint32_t{64}));
  wide.add("a", GgufType::f32, {1}, "abcd");
  wide.add("b", GgufType::f32, {1}, "efgh");
  const auto header = parse(wide.file());
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->data_offset % 64, 0u);
  EXPECT_EQ(header->tensors[1].begin, 64u);
}

TEST(GgufRead, EmptyAndScalarTensors) {
  GgufWriter writer;
  writer.add("none", GgufType::f32, {3, 0}, "");
  writer.add("scalar", GgufType::f32, {}, "abcd");
  const auto header = parse(writer.file());
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->tensors[0].bytes(), 0u);
  EXPECT_EQ(header->tensors[1].bytes(), 4u);
}

// More of it than is loaded at first.
TEST(GgufRead, LongHeader) {
  const ScratchFolder folder;
  GgufWriter writer = small_file();
  writer.set("long", gguf_value(std::vector<std::string>(300'000, "sixteen letters.")));
  put_text(folder / "m.gguf", writer.file());
  const auto file = GgufFile::open(folder / "m.gguf");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const GgufEntry* const entry = file->find_entry("long");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(std::get<GgufArray>(entry->value).size(), 300'000u);
  EXPECT_NE(file->find_tensor("w"), nullptr);
}

TEST(GgufRead, WhatIsWanted) {
  const std::string file = small_file().file();
  std::uint64_t wanted = 0;
  EXPECT_FALSE(io::parse_gguf_header(std::string_view(file).substr(0, 30), file.size(), "m", wanted).ok());
  EXPECT_GT(wanted, 30u);
  EXPECT_LE(wanted, file.size());
  EXPECT_FALSE(io::parse_gguf_header("GGUX", 4, "m", wanted).ok());
  EXPECT_EQ(wanted, 0u);
}

TEST(GgufRead, IsGguf) {
  const ScratchFolder folder;
  put_text(folder / "a", "GGUF");
  put_text(folder / "b", "GGU");
  EXPECT_TRUE(io::is_gguf(folder / "a"));
  EXPECT_FALSE(io::is_gguf(folder / "b"));
  EXPECT_FALSE(io::is_gguf(folder / "none"));
  EXPECT_FALSE(io::is_gguf(folder.path()));
  EXPECT_TRUE(refused(io::Checkpoint::open(folder / "a").status(), kUnsupported, {"is a GGUF file", "kvant convert"}));
}

TEST(GgufTypes, NumbersAndBlocks) {
  for (const io::GgufTypeInfo& type : io::gguf_types()) {
    EXPECT_EQ(io::find_gguf_type(static_cast<std::uint32_t>(type.type)), &type);
    EXPECT_EQ(&info(type.type), &type);
    GgufWriter writer;
    writer.add("a", type.type, {2, type.block_elements}, patterned(2 * type.block_bytes));
    const auto header = parse(writer.file());
    ASSERT_TRUE(header.ok()) << type.name << header.status().message();
    EXPECT_EQ(header->tensors[0].bytes(), 2 * type.block_bytes) << type.name;
  }
  for (const std::uint32_t number : {4u, 5u, 9u, 31u, 38u, 41u, 0xFFFFFFFFu})
    EXPECT_EQ(io::find_gguf_type(number), nullptr) << number;
}

// ---- What is refused --------------------------------------------------------------------------------------------

TEST(GgufRefusal, Front) {
  GgufWriter writer;
  EXPECT_TRUE(bad("", {"the magic at byte 0 needs 4 bytes, the file ends at 0"}));
  writer.magic = "GGJT";
  EXPECT_TRUE(bad(writer.file(), {"begins with \"GGJT\"", "\"GGUF\""}));
  writer.magic = "GGUF";
  for (const std::uint32_t version : {0u, 1u, 4u}) {
    writer.version = version;
    EXPECT_TRUE(bad(writer.file(), {"version " + std::to_string(version), "only 2 and 3"}, kUnsupported));
  }
  writer.version = 3u << 24;
  EXPECT_TRUE(bad(writer.file(), {"big-endian"}, kUnsupported));
  writer.version = 3;
  EXPECT_TRUE(bad(writer.header(1, 0), {"1 tensors", "room for 0"}));
  EXPECT_TRUE(bad(writer.header(0, 5), {"5 metadata entries", "room for 0"}));
  EXPECT_TRUE(bad(writer.header(~std::uint64_t{0}, 0), {"18446744073709551615 tensors"}));
  EXPECT_TRUE(refused(parse(writer.header(0, 65537), std::uint64_t{1} << 40).status(), kBad,
                      {"65537 metadata entries", "at most 65536"}));
  EXPECT_TRUE(refused(parse(writer.header(1'000'001, 0), std::uint64_t{1} << 40).status(), kBad,
                      {"1000001 tensors", "at most 1000000"}));
}

TEST(GgufRefusal, Metadata) {
  const auto with = [](std::string key, std::string value) {
    GgufWriter writer;
    writer.metadata.emplace_back(std::move(key), std::move(value));
    writer.add("a", GgufType::f32, {1}, "abcd");
    return writer.file();
  };
  EXPECT_TRUE(bad(with("k", gguf_value(static_cast<GgufValueType>(13), "")), {"\"k\"", "value type 13 is unknown"}));
  EXPECT_TRUE(bad(with("k", gguf_array(GgufValueType::array, 1, "")), {"\"k\"", "array of arrays"}));
  EXPECT_TRUE(bad(with("k", gguf_array(static_cast<GgufValueType>(99), 1, "")), {"value type 99 is unknown"}));
  EXPECT_TRUE(bad(with("k", gguf_value(GgufValueType::boolean, "\2")), {"\"k\"", "boolean is 2"}));
  EXPECT_TRUE(bad(with("k", gguf_array(GgufValueType::boolean, 2, std::string_view("\1\3", 2))), {"boolean is 3"}));
  EXPECT_TRUE(bad(with("k", gguf_array(GgufValueType::f64, std::uint64_t{1} << 61, "")), {"\"k\"", "f64 overflows"}));
  EXPECT_TRUE(bad(with("k", gguf_array(GgufValueType::f64, 1000, "")), {"needs 8000 bytes, the file ends at"}));
  EXPECT_TRUE(bad(with("k", gguf_array(GgufValueType::string, 1000, "")), {"\"k\"", "1000 strings", "bytes left"}));
  EXPECT_TRUE(bad(with("k", gguf_value(GgufValueType::string, little_endian(std::uint64_t{1000}))),
                  {"needs 1000 bytes, the file ends at"}));
  EXPECT_TRUE(bad(with("k", gguf_value(GgufValueType::string, little_endian(~std::uint64_t{0}))), {"a string"}));
  EXPECT_TRUE(bad(with("k\xFF", gguf_value(true)), {"the key \"k\\xff\" is not UTF-8"}));
  EXPECT_TRUE(bad(with(std::string(65536, 'k'), gguf_value(true)), {"the key", "65536 bytes", "at most 65535"}));
  GgufWriter twice;
  for (int i = 0; i < 2; ++i) twice.metadata.emplace_back("k", gguf_value(true));
  EXPECT_TRUE(bad(twice.file(), {"key \"k\" is there twice"}));
  for (const std::uint32_t alignment : {0u, 24u, 1u << 31})
    EXPECT_TRUE(bad(with("general.alignment", gguf_value(alignment)),
                    {"general.alignment " + std::to_string(alignment), "power of two"}));
  EXPECT_TRUE(bad(with("general.alignment", gguf_value("32")), {"general.alignment is of type string"}));
  EXPECT_TRUE(bad(with("split.count", gguf_value(GgufValueType::i32, little_endian(std::int32_t{-1}))),
                  {"split.count is of type i32 or negative"}));
  EXPECT_TRUE(bad(with("split.count", gguf_value(GgufValueType::u16, little_endian(std::uint16_t{3}))),
                  {"one of 3 parts", "llama-gguf-split"}, kUnsupported));
  EXPECT_TRUE(parse(with("split.count", gguf_value(GgufValueType::u16, little_endian(std::uint16_t{1})))).ok());
}

TEST(GgufRefusal, Tensors) {
  const auto with = [](const auto& change) {
    GgufWriter writer = small_file();
    change(writer, *writer.find("w"));
    return writer.file();
  };
  using Tensor = GgufWriter::Tensor;
  EXPECT_TRUE(bad(with([](auto&, Tensor& t) { t.name = "norm"; }), {"tensor \"norm\" is there twice"}));
  EXPECT_TRUE(bad(with([](auto&, Tensor& t) { t.name = "\xC0"; }), {"name of tensor 0 \"\\xc0\" is not UTF-8"}));
  EXPECT_TRUE(bad(with([](auto&, Tensor& t) { t.name = std::string(65, 'n'); }), {"65 bytes", "at most 64"}));
  EXPECT_TRUE(bad(with([](auto&, Tensor& t) { t.type = 4; }), {"tensor \"w\"", "type 4 is unknown"}));
  EXPECT_TRUE(bad(with([](auto&, Tensor& t) { t.shape = {1, 1, 1, 1, 32}; }), {"\"w\"", "5 dimensions", "at most 4"}));
  EXPECT_TRUE(bad(with([](auto&, Tensor& t) { t.shape = {64, 3}; }), {"row of 3 elements", "Q4_0", "32"}));
  EXPECT_TRUE(bad(with([](auto&, Tensor& t) { t.shape = {1ull << 32, 1ull << 32}; }), {"\"w\"", "overflows"}));
  EXPECT_TRUE(bad(with([](auto&, Tensor& t) { t.shape = {0, 1ull << 32, 1ull << 32}; }), {"\"w\"", "overflows"}));
  EXPECT_TRUE(bad(with([](auto&, Tensor& t) {
                    t.type = 28;
                    t.shape = {1ull << 61};
                  }),
                  {"of F64 at offset 0 overflows"}));
  EXPECT_TRUE(bad(with([](auto&, Tensor& t) { t.offset = 8; }), {"\"w\"", "offset 8", "alignment 32"}));
  EXPECT_TRUE(bad(with([](auto&, Tensor& t) { t.offset = ~std::uint64_t{0} << 5; }), {"\"w\"", "offset"}));
  EXPECT_TRUE(bad(with([](auto& w, Tensor&) { w.find("norm")->offset = 96; }),
                  {"\"norm\"", "begins at 96, an overlap with \"w\", which ends at 108"}));
  std::string cut = small_file().file();
  cut.pop_back();
  EXPECT_TRUE(bad(cut, {"\"norm\"", "[128, 148] end beyond the 147 bytes"}));
}

TEST(GgufRefusal, HeaderThatNeverEnds) {
  GgufWriter writer;
  writer.metadata.emplace_back("k", gguf_array(GgufValueType::u8, 200'000'000, ""));
  EXPECT_TRUE(refused(parse(writer.file(), std::uint64_t{1} << 40).status(), kBad,
                      {"needs 200000000 bytes", "header must have at most 100000000"}));
}

TEST(GgufDamage, EveryPrefix) {
  const std::string file = small_file().file();
  for (std::size_t size = 0; size < file.size(); ++size)
    EXPECT_FALSE(parse(std::string_view(file).substr(0, size)).ok()) << size;
}

TEST(GgufDamage, RandomBytes) {
  const std::string good = small_file().file();
  const std::size_t header = small_file().header().size();
  std::mt19937 random(1);
  const int rounds = kSanitized ? 2000 : 20000;
  int accepted = 0;
  for (int round = 0; round < rounds; ++round) {
    std::string file = good;
    for (std::size_t i = 0; i <= random() % 3; ++i) file[random() % header] = static_cast<char>(random());
    const auto parsed = parse(file);
    if (!parsed.ok()) continue;
    ++accepted;
    ASSERT_EQ(broken_invariant(*parsed, file.size()), "") << round;
  }
  EXPECT_GT(accepted, rounds / 100);
  EXPECT_LT(accepted, rounds);
}

TEST(GgufDamage, Corpus) {
  const auto check = [](const fs::path& path, const std::string& bytes) {
    EXPECT_EQ(parse(bytes).ok(), is_legal(path));
  };
  EXPECT_GE(run_corpus("gguf", check), 20);
}

}  // namespace
}  // namespace kvant::tests
