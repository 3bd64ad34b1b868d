// safetensors: every rule of the reader with the sentence that refuses, what is odd and legal, headers laid out and
// read again, and headers with random damage.
#include "io/safetensors.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "tests/fuzz/corpus.h"
#include "tests/fuzz/safetensors_invariants.h"
#include "tests/support/refusals.h"
#include "tests/support/sanitized.h"

namespace kvant::tests {
namespace {

using io::DType;
using io::lay_out_safetensors;
using io::SafetensorsFile;
using io::SafetensorsHeader;
using io::TensorInfo;

constexpr std::uint64_t kMax = (std::uint64_t{1} << 63) - 1;
constexpr auto kBad = StatusCode::InvalidProblem;

Result<SafetensorsHeader> parse(std::string_view json, std::uint64_t data_bytes = 0) {
  return io::parse_safetensors_header(json, data_bytes, "m.safetensors");
}

// Refused as the content of that file, with these parts in the sentence.
testing::AssertionResult bad(std::string_view json, std::uint64_t data_bytes, Parts parts) {
  const Status status = parse(json, data_bytes).status();
  if (!status.ok() && status.message().substr(0, 15) != "m.safetensors: ")
    return testing::AssertionFailure() << "no file in front: " << status.message();
  return refused(status, kBad, parts);
}

// One entry, its parts as JSON.
std::string entry(std::string_view name, std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}})", name, dtype, shape, offsets);
}

std::string header_of(std::initializer_list<std::string> entries) {
  return fmt::format("{{{}}}", base::joined(entries, ","));
}

std::vector<std::string> names_of(const SafetensorsHeader& header) {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : header.tensors) names.push_back(tensor.name);
  return names;
}

class ScopedFolder {
 public:
  ScopedFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvant_safetensors_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~ScopedFolder() { std::filesystem::remove_all(path_); }
  ScopedFolder(const ScopedFolder&) = delete;
  ScopedFolder& operator=(const ScopedFolder&) = delete;

  std::filesystem::path file(std::string_view name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

std::string length_bytes(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xFF);
  return bytes;
}

// ---- Types and sizes ------------------------------------------------------------------------------------------

TEST(SafetensorsDType, NamesAndBits) {
  const std::map<std::string_view, int> all = {
      {"BOOL", 8}, {"U8", 8},      {"I8", 8},      {"I16", 16},    {"U16", 16},        {"I32", 32},
      {"U32", 32}, {"I64", 64},    {"U64", 64},    {"F16", 16},    {"BF16", 16},       {"F32", 32},
      {"F64", 64}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
      {"C64", 64}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}};
  EXPECT_EQ(all.size(), static_cast<std::size_t>(DType::f6_e3m2) + 1);
  for (const auto& [text, width] : all) {
    const auto dtype = io::dtype_named(text);
    ASSERT_TRUE(dtype) << text;
    EXPECT_EQ(name(*dtype), text);
    EXPECT_EQ(bits(*dtype), width) << text;
  }
  for (const std::string_view text : {"", "f32", "F32 ", "F", "FP32", "BF161"}) EXPECT_FALSE(io::dtype_named(text));
}

TEST(SafetensorsDType, OrderOfTheEnumeration) {
  EXPECT_EQ(io::dtype_named("BOOL"), DType::boolean);
  EXPECT_EQ(io::dtype_named("BF16"), DType::bf16);
  EXPECT_EQ(io::dtype_named("F32"), DType::f32);
  EXPECT_EQ(io::dtype_named("F8_E8M0"), DType::f8_e8m0);
  EXPECT_EQ(io::dtype_named("C64"), DType::c64);
  EXPECT_EQ(io::dtype_named("F6_E3M2"), DType::f6_e3m2);
}

std::optional<std::uint64_t> bytes_of(DType dtype, std::initializer_list<std::uint64_t> shape) {
  return io::tensor_bytes(dtype, std::vector<std::uint64_t>(shape));
}

TEST(SafetensorsSize, Products) {
  EXPECT_EQ(bytes_of(DType::f32, {}), 4u);
  EXPECT_EQ(bytes_of(DType::bf16, {3, 5}), 30u);
  EXPECT_EQ(bytes_of(DType::f64, {0, 7}), 0u);
  EXPECT_EQ(bytes_of(DType::f4, {3, 2}), 3u);
  EXPECT_EQ(bytes_of(DType::f6_e2m3, {4}), 3u);
  EXPECT_EQ(bytes_of(DType::f6_e3m2, {12}), 9u);
}

TEST(SafetensorsSize, BitsThatAreNoBytes) {
  EXPECT_EQ(bytes_of(DType::f4, {}), std::nullopt);
  EXPECT_EQ(bytes_of(DType::f4, {3}), std::nullopt);
  EXPECT_EQ(bytes_of(DType::f6_e2m3, {2}), std::nullopt);
  EXPECT_EQ(bytes_of(DType::f4, {3, 0}), 0u);
}

TEST(SafetensorsSize, Overflow) {
  EXPECT_EQ(bytes_of(DType::u8, {kMax}), kMax);
  EXPECT_EQ(bytes_of(DType::u8, {kMax + 1}), std::nullopt);
  EXPECT_EQ(bytes_of(DType::u8, {~std::uint64_t{0}}), std::nullopt);
  EXPECT_EQ(bytes_of(DType::u8, {std::uint64_t{1} << 32, std::uint64_t{1} << 32}), std::nullopt);
  EXPECT_EQ(bytes_of(DType::f64, {std::uint64_t{1} << 60}), std::nullopt);
  EXPECT_EQ(bytes_of(DType::f64, {kMax / 8}), kMax / 8 * 8);
  EXPECT_EQ(bytes_of(DType::f64, {kMax / 8 + 1}), std::nullopt);
  EXPECT_EQ(bytes_of(DType::f4, {kMax - 1}), (kMax - 1) / 2);
  EXPECT_EQ(bytes_of(DType::f4, {std::uint64_t{1} << 62, 2}), std::nullopt);  // the bytes would fit, the product not
  for (const std::initializer_list<std::uint64_t> shape :
       {std::initializer_list<std::uint64_t>{0, kMax, kMax}, {kMax, kMax, 0}, {kMax, 0, kMax}, {0, kMax + 1}})
    EXPECT_EQ(bytes_of(DType::u8, shape), std::nullopt);
  EXPECT_EQ(bytes_of(DType::u8, {0, kMax}), 0u);
}

// ---- What is legal --------------------------------------------------------------------------------------------

TEST(SafetensorsHeader, ReadsTensors) {
  const auto header = parse(header_of({entry("a.weight", "F32", "2,3", "0,24"), entry("b", "BF16", "5", "24,34")}), 34);
  ASSERT_TRUE(header.ok()) << header.status().message();
  ASSERT_EQ(header->tensors.size(), 2u);
  const TensorInfo& a = header->tensors[0];
  EXPECT_EQ(a.name, "a.weight");
  EXPECT_EQ(a.dtype, DType::f32);
  EXPECT_EQ(a.shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(a.begin, 0u);
  EXPECT_EQ(a.end, 24u);
  EXPECT_EQ(header->tensors[1].bytes(), 10u);
  EXPECT_TRUE(header->metadata.empty());
}

TEST(SafetensorsHeader, AcceptsNoTensors) {
  for (const std::string_view json : {"{}", "{ }", "{}     ", "{\n\t\r }", R"({"__metadata__":{}})"})
    EXPECT_TRUE(parse(json).ok()) << json << ": " << parse(json).status().message();
}

TEST(SafetensorsHeader, AcceptsFieldsAndTensorsInAnyOrderAndWhiteSpace) {
  const auto header = parse(
      "{\"z\" : {\r\n\"data_offsets\":[ 4 , 8 ],\"shape\":[1],\t\"dtype\":\"F32\"},"
      "\"y\":{\"shape\":[],\"dtype\":\"I32\",\"data_offsets\":[0,4]}\n}  ",
      8);
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(names_of(*header), (std::vector<std::string>{"y", "z"}));
  EXPECT_TRUE(header->tensors[0].shape.empty());
}

TEST(SafetensorsHeader, AcceptsEmptyTensorsAndOrdersThemByName) {
  const auto header = parse(
      header_of({entry("z", "F32", "0", "4,4"), entry("c", "F32", "0,9", "4,4"), entry("full", "U8", "4", "0,4"),
                 entry("b", "F4", "3,0", "0,0"), entry("a", "F32", "2,0", "0,0"), entry("last", "U8", "1", "4,5")}),
      5);
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(names_of(*header), (std::vector<std::string>{"a", "b", "full", "c", "z", "last"}));
}

TEST(SafetensorsHeader, AcceptsNamesOfAnyCharacters) {
  const auto header =
      parse(header_of({entry("", "U8", "1", "0,1"), entry("жß中😀", "U8", "1", "1,2"),
                       entry(R"(\u0000\"\\\n\ud83d\ude01)", "U8", "1", "2,3"), entry("__metadata", "U8", "1", "3,4")}),
            4);
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(names_of(*header), (std::vector<std::string>{"", "жß中😀", std::string("\0\"\\\n😁", 8), "__metadata"}));
}

TEST(SafetensorsHeader, KeepsSpacesInStrings) {
  const auto header = parse(R"({"__metadata__":{"  \"  \\":"\\\"  "  ,  "  ":"   "}})");
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->metadata, (std::map<std::string, std::string>{{"  \"  \\", "\\\"  "}, {"  ", "   "}}));
}

TEST(SafetensorsHeader, ReadsMetadata) {
  const auto header =
      parse(R"({"__metadata__":{"format":"pt","a\u0062":"ж\n","":""},)" + entry("a", "U8", "1", "0,1") + "}", 1);
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->metadata, (std::map<std::string, std::string>{{"", ""}, {"ab", "ж\n"}, {"format", "pt"}}));
  EXPECT_EQ(header->tensors.size(), 1u);
}

TEST(SafetensorsHeader, Accepts64DimensionsAndTheLargestSize) {
  std::string ones = "1";
  for (int i = 1; i < 64; ++i) ones += ",1";
  EXPECT_TRUE(parse(header_of({entry("a", "U8", ones, "0,1")}), 1).ok());
  const auto most = parse(header_of({entry("a", "U8", "9223372036854775807", "0,9223372036854775807")}), kMax);
  EXPECT_TRUE(most.ok()) << most.status().message();
}

// ---- What is refused ------------------------------------------------------------------------------------------

TEST(SafetensorsRefusal, NotAnObject) {
  EXPECT_TRUE(bad("", 0, {"header is empty", "'{'"}));
  EXPECT_TRUE(bad(" {}", 0, {"begins with byte 0x20", "'{'"}));
  EXPECT_TRUE(bad("\xEF\xBB\xBF{}", 0, {"begins with byte 0xef"}));
  EXPECT_TRUE(bad("[]", 0, {"begins with byte 0x5b"}));
  EXPECT_TRUE(bad("null", 0, {"begins with byte 0x6e"}));
}

TEST(SafetensorsRefusal, WhatFollowsTheObject) {
  EXPECT_TRUE(bad("{}x", 0, {"ends with byte 0x78 at 2", "'}' and spaces"}));
  EXPECT_TRUE(bad("{}\n", 0, {"ends with byte 0x0a at 2"}));
  EXPECT_TRUE(bad("{}  \t ", 0, {"ends with byte 0x09 at 4"}));
  EXPECT_TRUE(bad("{} {}", 0, {"not JSON", "at byte 3", "expected end of input"}));
  EXPECT_TRUE(bad("{}}", 0, {"not JSON", "at byte 2"}));
  EXPECT_TRUE(bad("{", 0, {"ends with byte 0x7b"}));
}

TEST(SafetensorsRefusal, ZeroBytes) {
  // The parser takes them for the end of the text.
  EXPECT_TRUE(bad(std::string_view("{}\0}", 4), 0, {"byte 0x00 at 2"}));
  EXPECT_TRUE(bad(std::string_view("{}\0", 3), 0, {"ends with byte 0x00 at 2"}));
  EXPECT_TRUE(bad(std::string_view("{\"a\0\":{}}", 9), 0, {"byte 0x00 at 3"}));
}

TEST(SafetensorsRefusal, NotJson) {
  EXPECT_TRUE(bad("{,}", 0, {"not JSON", "at byte 1", "unexpected ','"}));
  EXPECT_TRUE(bad("{\"a\"}", 0, {"not JSON", "at byte 4", "expected ':'"}));
  EXPECT_TRUE(bad("{a:1}", 0, {"not JSON", "at byte 1", "invalid literal"}));
  EXPECT_TRUE(bad("{\n\n\n/**/}", 0, {"not JSON", "at byte 4"}));
  EXPECT_TRUE(bad("{\"a\nb\":1}", 0, {"not JSON", "at byte 3", "U+000A"}));
  EXPECT_TRUE(bad(R"({"a\x":1})", 0, {"not JSON", "backslash"}));
  EXPECT_TRUE(bad(header_of({entry("a", "U8", "01", "0,1")}), 1, {"not JSON", "unexpected number literal"}));
  EXPECT_TRUE(bad(header_of({entry("a", "U8", "1,", "0,1")}), 1, {"not JSON", "unexpected ']'"}));
  EXPECT_TRUE(bad("{" + entry("a", "U8", "1", "0,1") + ",}", 1, {"not JSON", "expected string literal"}));
}

TEST(SafetensorsRefusal, NotUtf8) {
  for (const std::string_view text : {"\xFF", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE4\xB8", "\x80"})
    EXPECT_TRUE(bad(fmt::format("{{\"{}\":1}}", text), 0, {"not JSON in UTF-8", "ill-formed UTF-8"}));
  EXPECT_TRUE(bad(R"({"__metadata__":{"a":"\ud800"}})", 0, {"not JSON in UTF-8", "surrogate"}));
}

TEST(SafetensorsRefusal, HeaderTooLong) {
  const std::string json = "{}" + std::string(io::kMaxHeaderBytes, ' ');
  EXPECT_TRUE(bad(json, 0, {"header has 100000002 bytes", "at most 100000000"}));
  EXPECT_TRUE(parse(std::string_view(json).substr(0, io::kMaxHeaderBytes)).ok());
}

TEST(SafetensorsRefusal, EntriesThatAreNoObjects) {
  EXPECT_TRUE(bad(R"({"a":null})", 0, {"tensor \"a\"", "is null, must be an object"}));
  EXPECT_TRUE(bad(R"({"a":[]})", 0, {"tensor \"a\"", "is an array"}));
  EXPECT_TRUE(bad(R"({"a":true})", 0, {"tensor \"a\"", "is true"}));
  EXPECT_TRUE(bad(R"({"a":"F32"})", 0, {"tensor \"a\"", "is the string \"F32\""}));
  EXPECT_TRUE(bad(R"({"a":7})", 0, {"tensor \"a\"", "is 7"}));
}

TEST(SafetensorsRefusal, NamesInSentencesAreEscapedAndCut) {
  EXPECT_TRUE(bad(R"({"\u001b[0m":7})", 0, {"tensor \"\\x1b[0m\""}));
  const auto status = parse("{\"" + std::string(1'000'000, 'n') + "\":7}").status();
  EXPECT_TRUE(refused(status, kBad, {"tensor \"nnn", "nnn", "is 7"}));
  EXPECT_LT(status.message().size(), 2000u);
  EXPECT_TRUE(refused(io::parse_safetensors_header("", 0, "a\nb").status(), kBad, {"a\\nb: header"}));
}

TEST(SafetensorsRefusal, FieldsMissingUnknownOrTwice) {
  EXPECT_TRUE(bad(R"({"a":{}})", 0, {"tensor \"a\"", "dtype is missing"}));
  EXPECT_TRUE(bad(R"({"a":{"dtype":"U8","data_offsets":[0,0]}})", 0, {"tensor \"a\"", "shape is missing"}));
  EXPECT_TRUE(bad(R"({"a":{"dtype":"U8","shape":[0]}})", 0, {"tensor \"a\"", "data_offsets is missing"}));
  EXPECT_TRUE(bad(R"({"a":{"dtype":"U8","Shape":[0]}})", 0, {"tensor \"a\"", "field \"Shape\" is unknown"}));
  EXPECT_TRUE(bad(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}})", 0, {"field \"x\" is unknown"}));
  EXPECT_TRUE(bad(R"({"a":{"dtype":"U8","dtype":"U8"}})", 0, {"tensor \"a\"", "dtype is there twice"}));
  EXPECT_TRUE(bad(R"({"a":{"shape":[],"sh\u0061pe":[]}})", 0, {"tensor \"a\"", "shape is there twice"}));
  EXPECT_TRUE(bad(R"({"a":{"data_offsets":[0,0],"data_offsets":[0,0]}})", 0, {"data_offsets is there twice"}));
}

TEST(SafetensorsRefusal, FieldsOfAnEarlierTensorDoNotCount) {
  EXPECT_TRUE(bad("{" + entry("a", "U8", "1", "0,1") + R"(,"b":{"dtype":"U8","data_offsets":[1,2]}})", 2,
                  {"tensor \"b\"", "shape is missing"}));
}

TEST(SafetensorsRefusal, NamesTwice) {
  EXPECT_TRUE(
      bad(header_of({entry("ab", "U8", "1", "0,1"), entry("c", "U8", "1", "1,2"), entry("ab", "U8", "1", "2,3")}), 3,
          {"tensor \"ab\" is there twice"}));
  EXPECT_TRUE(bad(header_of({entry("ab", "U8", "1", "0,1"), entry(R"(\u0061b)", "U8", "1", "1,2")}), 2,
                  {"tensor \"ab\" is there twice"}));
  EXPECT_TRUE(
      bad(header_of({entry("e", "U8", "0", "0,0"), entry("e", "U8", "0", "0,0")}), 0, {"\"e\" is there twice"}));
}

TEST(SafetensorsRefusal, Metadata) {
  EXPECT_TRUE(bad(R"({"__metadata__":null})", 0, {"\"__metadata__\" is null", "object of strings"}));
  EXPECT_TRUE(bad(R"({"__metadata__":[]})", 0, {"\"__metadata__\" is an array"}));
  EXPECT_TRUE(bad(R"({"__metadata__":"x"})", 0, {"\"__metadata__\" is the string \"x\""}));
  EXPECT_TRUE(bad(R"({"__metadata__":{"k":null}})", 0, {"\"__metadata__\": \"k\" is null, must be a string"}));
  EXPECT_TRUE(bad(R"({"__metadata__":{"k":1}})", 0, {"\"k\" is 1"}));
  EXPECT_TRUE(bad(R"({"__metadata__":{"k":false}})", 0, {"\"k\" is false"}));
  EXPECT_TRUE(bad(R"({"__metadata__":{"k":{}}})", 0, {"\"k\" is an object"}));
  EXPECT_TRUE(bad(R"({"__metadata__":{"k":["v"]}})", 0, {"\"k\" is an array"}));
  EXPECT_TRUE(bad(R"({"__metadata__":{"k":"v","\u006b":"w"}})", 0, {"\"__metadata__\": \"k\" is there twice"}));
  EXPECT_TRUE(bad(R"({"__metadata__":{},"\u005f_metadata__":{}})", 0, {"\"__metadata__\" is there twice"}));
  // It is the metadata, not a tensor of that name.
  EXPECT_TRUE(bad(header_of({entry(R"(\u005f_metadata__)", "U8", "0", "0,0")}), 0,
                  {"\"__metadata__\": \"shape\" is an array, must be a string"}));
}

TEST(SafetensorsRefusal, DTypes) {
  EXPECT_TRUE(bad(header_of({entry("a", "F31", "1", "0,4")}), 4, {"tensor \"a\"", "dtype \"F31\" is unknown"}));
  EXPECT_TRUE(bad(header_of({entry("a", "f32", "1", "0,4")}), 4, {"dtype \"f32\" is unknown"}));
  EXPECT_TRUE(bad(R"({"a":{"dtype":8}})", 0, {"tensor \"a\"", "dtype is 8, must be a string"}));
  EXPECT_TRUE(bad(R"({"a":{"dtype":null}})", 0, {"dtype is null"}));
  EXPECT_TRUE(bad(R"({"a":{"dtype":["U8"]}})", 0, {"dtype is an array"}));
}

TEST(SafetensorsRefusal, ShapesAndOffsetsThatAreNoArrays) {
  EXPECT_TRUE(bad(R"({"a":{"shape":3}})", 0, {"tensor \"a\"", "shape is 3, must be an array of integers"}));
  EXPECT_TRUE(bad(R"({"a":{"shape":null}})", 0, {"shape is null"}));
  EXPECT_TRUE(bad(R"({"a":{"shape":{}}})", 0, {"shape is an object"}));
  EXPECT_TRUE(bad(R"({"a":{"data_offsets":"0"}})", 0, {"data_offsets is the string \"0\"", "array of 2 integers"}));
  EXPECT_TRUE(bad(R"({"a":{"data_offsets":{}}})", 0, {"data_offsets is an object"}));
}

TEST(SafetensorsRefusal, NumbersThatAreNoIntegers) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"-1", "-1"},
      {"-0", "-0"},
      {"1.0", "1.0"},
      {"1e2", "1e2"},
      {"1e999", "1e999"},
      {"-1e999", "-1e999"},
      {"9223372036854775808", "9223372036854775808"},
      {"18446744073709551615", "18446744073709551615"},
      {"18446744073709551616", "18446744073709551616"},
      {"-9223372036854775809", "-9223372036854775809"},
      {"null", "null"},
      {"true", "true"},
      {R"("1")", "the string \"1\""},
      {"[1]", "an array"},
      {"{}", "an object"},
  };
  for (const auto& [text, found] : cases) {
    EXPECT_TRUE(bad(header_of({entry("a", "U8", text, "0,1")}), 1,
                    {"tensor \"a\"", fmt::format("shape has {}, must have", found), "0 to 9223372036854775807"}));
    EXPECT_TRUE(
        bad(header_of({entry("a", "U8", "1", fmt::format("0,{}", text))}), 1,
            {"tensor \"a\"", fmt::format("data_offsets has {}, must have", found), "0 to 9223372036854775807"}));
  }
}

TEST(SafetensorsRefusal, CountsOfSizesAndOffsets) {
  std::string ones = "1";
  for (int i = 1; i < 65; ++i) ones += ",1";
  EXPECT_TRUE(bad(header_of({entry("a", "U8", ones, "0,1")}), 1, {"tensor \"a\"", "more than 64 dimensions"}));
  EXPECT_TRUE(
      bad(header_of({entry("a", "U8", "0", "")}), 0, {"tensor \"a\"", "data_offsets has 0 integers", "have 2"}));
  EXPECT_TRUE(bad(header_of({entry("a", "U8", "0", "0")}), 0, {"data_offsets has 1 integers"}));
  EXPECT_TRUE(bad(header_of({entry("a", "U8", "0", "0,0,0")}), 0, {"data_offsets has more than 2 integers"}));
}

TEST(SafetensorsRefusal, Nesting) {
  const std::string deep(1'000'000, '[');
  EXPECT_TRUE(bad(R"({"a":{"shape":)" + deep + "}", 0, {"shape has an array"}));
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += R"({"a":)";
  EXPECT_TRUE(bad(objects + "}", 0, {"field \"a\" is unknown"}));
}

TEST(SafetensorsRefusal, Sizes) {
  EXPECT_TRUE(bad(header_of({entry("a", "F32", "2,3", "0,20")}), 20,
                  {"tensor \"a\"", "[0, 20] are 20 bytes", "shape [2, 3] of F32 needs 24"}));
  EXPECT_TRUE(bad(header_of({entry("a", "F32", "0", "0,4")}), 4, {"are 4 bytes", "needs 0"}));
  EXPECT_TRUE(bad(header_of({entry("a", "F32", "", "0,0")}), 0, {"are 0 bytes", "shape [] of F32 needs 4"}));
  EXPECT_TRUE(bad(header_of({entry("a", "U8", "2", "2,0")}), 2, {"tensor \"a\"", "[2, 0] end before they begin"}));
  EXPECT_TRUE(bad(header_of({entry("a", "F4", "3", "0,1")}), 1,
                  {"tensor \"a\"", "shape [3] of F4 has 1 bytes and 4 bits", "whole bytes"}));
  EXPECT_TRUE(bad(header_of({entry("a", "F6_E3M2", "1", "0,1")}), 1, {"0 bytes and 6 bits"}));
}

TEST(SafetensorsRefusal, Overflow) {
  EXPECT_TRUE(bad(header_of({entry("a", "U8", "4294967296,4294967296", "0,0")}), 0,
                  {"tensor \"a\"", "shape [4294967296, 4294967296] of U8 overflows", "9223372036854775807"}));
  EXPECT_TRUE(bad(header_of({entry("a", "U8", "4294967296,0,4294967296", "0,0")}), 0, {"overflows"}));
  EXPECT_TRUE(bad(header_of({entry("a", "F64", "1152921504606846976", "0,0")}), 0, {"of F64 overflows"}));
}

TEST(SafetensorsRefusal, Places) {
  EXPECT_TRUE(
      bad(header_of({entry("a", "U8", "2", "1,3")}), 3, {"tensor \"a\"", "begin at 1", "first must begin at 0"}));
  EXPECT_TRUE(bad(header_of({entry("a", "U8", "2", "0,2"), entry("b", "U8", "2", "1,3")}), 3,
                  {"tensor \"b\"", "begin at 1", "an overlap with \"a\"", "ends at 2"}));
  EXPECT_TRUE(bad(header_of({entry("a", "U8", "2", "0,2"), entry("b", "U8", "2", "0,2")}), 2,
                  {"tensor \"b\"", "begin at 0", "an overlap with \"a\""}));
  EXPECT_TRUE(bad(header_of({entry("b", "U8", "2", "3,5"), entry("a", "U8", "2", "0,2")}), 5,
                  {"tensor \"b\"", "begin at 3", "a hole with \"a\"", "ends at 2"}));
  EXPECT_TRUE(bad(header_of({entry("a", "U8", "4", "0,4"), entry("e", "U8", "0", "2,2")}), 4,
                  {"tensor \"e\"", "begin at 2", "an overlap"}));
  EXPECT_TRUE(
      bad(header_of({entry("a", "U8", "4", "0,4"), entry("e", "U8", "0", "5,5")}), 5, {"tensor \"e\"", "a hole"}));
}

TEST(SafetensorsRefusal, TheEndOfTheFile) {
  const std::string json = header_of({entry("a", "U8", "2", "0,2"), entry("b", "U8", "2", "2,4")});
  EXPECT_TRUE(bad(json, 3, {"tensor \"b\"", "end at 4", "3 bytes of data"}));
  EXPECT_TRUE(bad(json, 5, {"tensor \"b\"", "end at 4", "5 bytes of data"}));
  EXPECT_TRUE(bad("{}", 9, {"no tensors", "9 bytes of data"}));
}

// ---- Large headers --------------------------------------------------------------------------------------------

[[maybe_unused]] long peak_megabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

// Nothing here asserts a time: what took more than a few steps for each byte or tensor would run into ctest's limit. A
// sanitizer, which makes all of it thirty times slower, sees smaller headers.
constexpr int kFewer = kSanitized ? 10 : 1;

TEST(SafetensorsStress, AMillionTensors) {
  constexpr int kTensors = 1'000'000 / kFewer;
  std::string json = "{";
  for (int i = 0; i < kTensors; ++i) {
    // In an order that is neither that of the names nor that of the places.
    const int place = static_cast<int>(std::int64_t{i} * 7919 % kTensors);
    json += fmt::format(R"("t{}":{{"dtype":"U8","shape":[],"data_offsets":[{},{}]}},)", i, place, place + 1);
  }
  json.back() = '}';
  const auto header = parse(json, kTensors);
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->tensors.size(), static_cast<std::size_t>(kTensors));
}

// `fill` between the two until it has that many bytes.
std::string filled(std::string_view before, char fill, std::string_view after, std::size_t bytes) {
  std::string json(before);
  json.append(bytes - before.size() - after.size(), fill);
  return json += after;
}

// In memory that is a small multiple of the header, whether it is accepted or not.
TEST(SafetensorsStress, LongHeaders) {
  constexpr std::size_t kLongest = io::kMaxHeaderBytes / kFewer, kLong = kLongest / 10;
  struct Case {
    std::size_t bytes;
    std::string_view before;
    char fill;
    std::string_view after;
    bool good;
  };
  const Case cases[] = {
      {kLongest, "{}", ' ', "", true},
      {kLongest, "{", '\n', "}", true},
      {kLongest, "{", '\n', "x}", false},  // the parser shows what it has read, each line feed as <U+000A>
      {kLongest, "{", ' ', "", false},
      {kLongest, "{\"__metadata__\":{\"k\":\"", 'v', "\"}}", true},
      {kLongest, "{\"__metadata__\":{\"k\":\"", 'v', "\\x\"}}", false},
      {kLong, "{\"__metadata__\":{\"", 'k', "\":\"\"}}", true},
      {kLong, "{\"", 'n', "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", true},
      {kLong, "{\"", 'n', "\":7}", false},
      {kLong, "{\"", 'n', "}", false},
      {kLong, "{\"a\":{\"dtype\":\"", 'F', "\"}}", false},
      {kLong, "{\"a\":{\"shape\":[", '9', "]}}", false},
      {kLong, "{\"a\":{\"shape\":[1.", '9', "]}}", false},
      {kLong, "{\"a\":{\"shape\":[1e", '9', "]}}", false},
      {kLongest, "{", '{', "}", false},
      {kLongest, "{\"a\":{\"shape\":", '[', "}}", false},
  };
  for (const Case& one : cases) {
    const std::string json = filled(one.before, one.fill, one.after, one.bytes);
    const Status status = parse(json).status();
    EXPECT_EQ(status.ok(), one.good) << one.before << ": " << status.message();
    EXPECT_LT(status.message().size(), 5000u);
  }
  if (!kSanitized) {
    EXPECT_LT(peak_megabytes(), 1500);
  }
}

// ---- Damage ---------------------------------------------------------------------------------------------------

std::string valid_header() {
  return R"({"__metadata__":{"format":"pt"},)" + entry("a", "F32", "2,3", "0,24") + "," +
         entry("b", "BF16", "5", "24,34") + "," + entry("e", "I8", "0", "34,34") + "," +
         entry("c", "U8", "1,2,3", "34,40") + "}  ";
}

TEST(SafetensorsDamage, RandomBytes) {
  const std::string valid = valid_header();
  ASSERT_TRUE(parse(valid, 40).ok());
  // Half of the new bytes are ones that mean something in a header.
  constexpr std::string_view kTelling = "{}[]\",:0123456789-.eE\\u aUFIB_8\n";
  std::mt19937 random(20240607);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string json = valid;
    for (std::size_t changes = 1 + below(3); changes > 0; --changes) {
      const char byte = below(2) == 0 ? kTelling[below(kTelling.size())] : static_cast<char>(below(256));
      const std::size_t at = below(json.size());
      switch (below(4)) {
        case 0: json.erase(at, 1); break;
        case 1: json.insert(at, 1, byte); break;
        default: json[at] = byte; break;
      }
    }
    const auto header = parse(json, 40);
    if (!header.ok()) {
      EXPECT_TRUE(refused(header.status(), kBad, {"m.safetensors: "}));
      continue;
    }
    ++accepted;
    EXPECT_EQ(broken_invariant(*header, 40), "") << json;
  }
  EXPECT_GT(accepted, 100);  // names and metadata may change
  EXPECT_LT(accepted, 15000);
}

TEST(SafetensorsDamage, EveryPrefix) {
  const std::string valid = valid_header();
  const std::size_t whole = valid.find_last_of('}') + 1;
  for (std::size_t size = 0; size < whole; ++size) EXPECT_FALSE(parse(valid.substr(0, size), 40).ok()) << size;
}

TEST(SafetensorsDamage, Corpus) { EXPECT_GE(run_corpus("safetensors"), 10); }

// ---- New headers ----------------------------------------------------------------------------------------------

TEST(SafetensorsLayout, ReadsBackTheSame) {
  const std::vector<TensorInfo> tensors = {{"z", DType::bf16, {3, 5}, 77, 1},
                                           {"a \"quoted\" \\ ж\n", DType::f32, {}, 0, 0},
                                           {"empty", DType::i64, {4, 0}, 0, 0},
                                           {"f4", DType::f4, {2, 3}, 0, 0}};
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"\"", std::string("\0😀", 5)}};
  const auto layout = lay_out_safetensors(tensors, metadata);
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  EXPECT_EQ(layout->header.size() % 8, 0u);
  EXPECT_EQ(layout->file_bytes, layout->header.size() + 37);
  EXPECT_EQ(layout->header.substr(0, 8), length_bytes(layout->header.size() - 8));
  const auto header = parse(layout->header.substr(8), 37);
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->metadata, metadata);
  ASSERT_EQ(header->tensors.size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(header->tensors[i].name, tensors[i].name);
    EXPECT_EQ(header->tensors[i].dtype, tensors[i].dtype);
    EXPECT_EQ(header->tensors[i].shape, tensors[i].shape);
    EXPECT_EQ(header->tensors[i].begin, layout->tensors[i].begin);
    EXPECT_EQ(header->tensors[i].end, layout->tensors[i].end);
  }
}

TEST(SafetensorsLayout, ExactText) {
  const auto layout = lay_out_safetensors({{"a", DType::u8, {2}, 0, 0}, {"b", DType::f16, {1, 1}, 0, 0}}, {{"k", "v"}});
  ASSERT_TRUE(layout.ok());
  std::string json = R"({"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                     R"("b":{"dtype":"F16","shape":[1,1],"data_offsets":[2,4]}})";
  json.append((8 - json.size() % 8) % 8, ' ');
  EXPECT_EQ(layout->header, length_bytes(json.size()) + json);
}

TEST(SafetensorsLayout, NoTensors) {
  const auto layout = lay_out_safetensors({}, {});
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->header, length_bytes(8) + "{}      ");
  EXPECT_EQ(layout->file_bytes, 16u);
}

TEST(SafetensorsLayout, RandomTensors) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<TensorInfo> tensors(random() % 20);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i] = {fmt::format("layer.{}.{}", random() % 1000, i), static_cast<DType>(random() % 22), {}, 0, 0};
      // A multiple of 4 elements: 4 and 6 bits make whole bytes of them.
      tensors[i].shape = {random() % 5 + 1, 4 * (random() % 4 + 1)};
    }
    const auto layout = lay_out_safetensors(tensors, {});
    ASSERT_TRUE(layout.ok()) << layout.status().message();
    const std::uint64_t data_bytes = layout->file_bytes - layout->header.size();
    const auto header = parse(std::string_view(layout->header).substr(8), data_bytes);
    ASSERT_TRUE(header.ok()) << header.status().message();
    EXPECT_EQ(broken_invariant(*header, data_bytes), "");
    for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(header->tensors[i].name, tensors[i].name);
  }
}

TEST(SafetensorsLayout, Refuses) {
  const auto refusal = [](std::vector<TensorInfo> tensors, std::map<std::string, std::string> metadata = {}) {
    return lay_out_safetensors(std::move(tensors), metadata).status();
  };
  const TensorInfo a{"a", DType::u8, {1}, 0, 0};
  EXPECT_TRUE(refused(refusal({a, {"b", DType::u8, {1}, 0, 0}, a}), kBad, {"tensor \"a\" is there twice"}));
  EXPECT_TRUE(refused(refusal({{"a", DType::f32, {kMax, 2}, 0, 0}}), kBad, {"tensor \"a\"", "of F32 overflows"}));
  EXPECT_TRUE(refused(refusal({{"a", DType::f32, {kMax, 2, 0}, 0, 0}}), kBad, {"overflows"}));
  EXPECT_TRUE(refused(refusal({{"a", DType::f4, {3}, 0, 0}}), kBad, {"tensor \"a\"", "1 bytes and 4 bits"}));
  EXPECT_TRUE(refused(refusal({{"a", DType::u8, {kMax - 5}, 0, 0}, {"b", DType::u8, {6}, 0, 0}}), kBad,
                      {"tensor \"b\"", "6 bytes after 9223372036854775802 overflow"}));
  EXPECT_TRUE(refused(refusal({{"a", DType::u8, {kMax}, 0, 0}}), kBad,
                      {"bytes of header and 9223372036854775807 of data overflow"}));
  EXPECT_TRUE(refused(refusal({{"a", DType::u8, std::vector<std::uint64_t>(65, 1), 0, 0}}), kBad,
                      {"tensor \"a\"", "65 dimensions", "at most 64"}));
  EXPECT_TRUE(refused(refusal({{"__metadata__", DType::u8, {1}, 0, 0}}), kBad, {"__metadata__", "metadata"}));
  EXPECT_TRUE(refused(refusal({{"a\xFF", DType::u8, {1}, 0, 0}}), kBad, {"tensor \"a\\xff\"", "not UTF-8"}));
  EXPECT_TRUE(refused(refusal({a}, {{"k", "\xFF"}}), kBad, {"__metadata__", "\"k\"", "not UTF-8"}));
  EXPECT_TRUE(refused(refusal({{std::string(io::kMaxHeaderBytes, 'n'), DType::u8, {1}, 0, 0}}), kBad,
                      {"header of 1 tensors has 1000000", "at most 100000000"}));
}

// ---- Files ----------------------------------------------------------------------------------------------------

std::string file_of(std::string_view json, std::string_view data) {
  return fmt::format("{}{}{}", length_bytes(json.size()), json, data);
}

TEST(SafetensorsFile, OpensFindsAndReads) {
  const ScopedFolder folder;
  const auto file = SafetensorsFile::open(folder.file(
      "m",
      file_of(header_of({entry("b", "U8", "3", "0,3"), entry("a", "I16", "2", "3,7"), entry("e", "U8", "0", "7,7")}),
              "xyz1234")));
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(file->tensors().size(), 3u);
  EXPECT_TRUE(file->metadata().empty());
  for (const TensorInfo& tensor : file->tensors()) EXPECT_EQ(file->find(tensor.name), &tensor);
  for (const std::string_view none : {"", "aa", "0", "z", "c"}) EXPECT_EQ(file->find(none), nullptr);

  std::string bytes(4, '\0');
  const auto read = [&](const char* name, std::uint64_t offset, std::size_t count) {
    return file->read(*file->find(name), offset, std::as_writable_bytes(std::span(bytes).first(count)));
  };
  EXPECT_TRUE(read("a", 0, 4).ok());
  EXPECT_EQ(bytes, "1234");
  EXPECT_TRUE(read("b", 1, 2).ok());
  EXPECT_EQ(bytes, "yz34");
  EXPECT_TRUE(read("b", 3, 0).ok());
  EXPECT_TRUE(read("e", 0, 0).ok());
  EXPECT_TRUE(refused(read("b", 1, 3), kBad, {"tensor \"b\"", "has 3 bytes, wanted 3 from 1"}));
  EXPECT_TRUE(refused(read("b", 4, 0), kBad, {"wanted 0 from 4"}));
  EXPECT_TRUE(refused(read("b", ~std::uint64_t{0}, 2), kBad, {"wanted 2 from 18446744073709551615"}));
  const TensorInfo foreign{"f", DType::u8, {8}, 0, 8};
  EXPECT_TRUE(refused(file->read(foreign, 0, {}), kBad, {"tensor \"f\"", "[0, 8]", "7 bytes of data"}));
}

TEST(SafetensorsFile, RefusesLengths) {
  const ScopedFolder folder;
  const auto refusal = [&](std::string_view bytes) { return SafetensorsFile::open(folder.file("m", bytes)).status(); };
  EXPECT_TRUE(refused(refusal(""), kBad, {"m: has 0 bytes"}));
  EXPECT_TRUE(refused(refusal("1234567"), kBad, {"m: has 7 bytes"}));
  EXPECT_TRUE(refused(refusal(length_bytes(0)), kBad, {"m: header is empty"}));
  EXPECT_TRUE(refused(refusal(length_bytes(3) + "{}"), kBad, {"header has 3 bytes", "the file has 2 after"}));
  EXPECT_TRUE(refused(refusal(length_bytes(100'000'001) + "{}"), kBad, {"has 100000001 bytes", "at most 100000000"}));
  EXPECT_TRUE(refused(refusal(length_bytes(~std::uint64_t{0}) + "{}"), kBad, {"has 18446744073709551615 bytes"}));
  EXPECT_TRUE(refused(refusal(length_bytes(2) + "{}x"), kBad, {"no tensors", "1 bytes of data"}));
  EXPECT_TRUE(refused(refusal(length_bytes(2) + "[]"), kBad, {"begins with byte 0x5b"}));
  EXPECT_TRUE(SafetensorsFile::open(folder.file("m", length_bytes(2) + "{}")).ok());
}

TEST(SafetensorsFile, OpensWhatWasLaidOut) {
  const ScopedFolder folder;
  const auto layout = lay_out_safetensors({{"a", DType::u8, {3}, 0, 0}}, {{"format", "pt"}});
  ASSERT_TRUE(layout.ok());
  const auto file = SafetensorsFile::open(folder.file("m", layout->header + "xyz"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->file().size(), layout->file_bytes);
  EXPECT_EQ(file->metadata().at("format"), "pt");
}

}  // namespace
}  // namespace kvant::tests
