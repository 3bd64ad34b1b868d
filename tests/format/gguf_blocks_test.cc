// Blocks of GGUF tensors: bit for bit what PyPI's gguf package makes of them (gguf_blocks_vectors.txt, which
// tests/interop/gguf_blocks.py writes), and the sizes of blocks as the formulas have them.
#include "format/gguf_blocks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "semantics/gguf_blocks.h"

namespace kvant::tests {
namespace {

using io::GgufType;

std::vector<std::byte> from_hex(std::string_view text) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
  return bytes;
}

const io::GgufTypeInfo* type_named(std::string_view name) {
  for (const io::GgufTypeInfo& type : io::gguf_types())
    if (type.name == name) return &type;
  return nullptr;
}

// A line is a type, a block and the bits of its values, in hexadecimal.
TEST(GgufBlocks, AsThePackageDecodesThem) {
  std::ifstream file(KVANT_SOURCE_DIR "/tests/format/gguf_blocks_vectors.txt");
  std::map<std::string, int> seen;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string name, block, values;
    words >> name >> block >> values;
    const io::GgufTypeInfo* const type = type_named(name);
    ASSERT_NE(type, nullptr) << name;
    const std::vector<std::byte> bytes = from_hex(block);
    ASSERT_EQ(bytes.size() % type->block_bytes, 0u) << name;
    const std::size_t elements = bytes.size() / type->block_bytes * type->block_elements;
    ASSERT_EQ(values.size(), 8 * elements) << name;
    // One more, which must not be touched.
    std::vector<float> got(elements + 1, -77.0f);
    format::decode_gguf_blocks(type->type, bytes, got.data());
    for (std::size_t i = 0; i < elements; ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::stoul(values.substr(8 * i, 8), nullptr, 16))
          << name << " element " << i << " is " << got[i];
    EXPECT_EQ(got[elements], -77.0f) << name;
    ++seen[name];
  }
  for (const io::GgufTypeInfo& type : io::gguf_types())
    EXPECT_EQ(seen[std::string(type.name)] >= 3, format::can_decode(type.type)) << type.name;
}

TEST(GgufBlocks, SizesAreThoseOfTheFormat) {
  const auto check = [](GgufType type, std::size_t elements, std::size_t bytes) {
    EXPECT_EQ(info(type).block_elements, elements) << info(type).name;
    EXPECT_EQ(info(type).block_bytes, bytes) << info(type).name;
  };
  using namespace semantics;
  check(GgufType::f32, BlockF32::kElements, BlockF32::kBytes);
  check(GgufType::f16, BlockF16::kElements, BlockF16::kBytes);
  check(GgufType::bf16, BlockBF16::kElements, BlockBF16::kBytes);
  check(GgufType::q8_0, BlockQ8_0::kElements, BlockQ8_0::kBytes);
  check(GgufType::q4_0, BlockQ4_0::kElements, BlockQ4_0::kBytes);
  check(GgufType::q4_1, BlockQ4_1::kElements, BlockQ4_1::kBytes);
  check(GgufType::q5_0, BlockQ5_0::kElements, BlockQ5_0::kBytes);
  check(GgufType::q5_1, BlockQ5_1::kElements, BlockQ5_1::kBytes);
  check(GgufType::q4_k, BlockQ4_K::kElements, BlockQ4_K::kBytes);
  check(GgufType::q6_k, BlockQ6_K::kElements, BlockQ6_K::kBytes);
}

TEST(GgufBlocks, WhatIsDecoded) {
  EXPECT_EQ(format::names_of_decoded_types(), "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q6_K");
  for (const GgufType type : {GgufType::q2_k, GgufType::q5_k, GgufType::i8, GgufType::f64, GgufType::mxfp4})
    EXPECT_FALSE(format::can_decode(type)) << info(type).name;
}

// By hand: d = 0.5, m = -1; byte i of the codes is i and 15 - i.
TEST(GgufBlocks, FourBitsByHand) {
  std::vector<std::byte> block = from_hex("003800bc");
  for (int i = 0; i < 16; ++i) block.push_back(static_cast<std::byte>((15 - i) << 4 | i));
  float values[32];
  format::decode_gguf_blocks(GgufType::q4_1, block, values);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values[i], 0.5f * static_cast<float>(i) - 1);
    EXPECT_EQ(values[i + 16], 0.5f * static_cast<float>(15 - i) - 1);
  }
}

// A scale that is infinite makes what IEEE makes of it, whatever stands beside it.
TEST(GgufBlocks, InfiniteScale) {
  std::vector<std::byte> block = from_hex("007c");
  for (int i = 0; i < 32; ++i) block.push_back(static_cast<std::byte>(i == 0 ? 0 : i));
  float values[32];
  format::decode_gguf_blocks(GgufType::q8_0, block, values);
  EXPECT_NE(values[0], values[0]);
  EXPECT_EQ(values[1], std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace kvant::tests
