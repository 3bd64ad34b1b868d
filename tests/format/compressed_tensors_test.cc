// The tensors of a quantized Linear: what is written is what is read, and words hold what was packed.
#include "format/compressed_tensors.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/checkpoint_fixture.h"

namespace kvant::tests {
namespace {

using format::Scheme;
using format::TensorKind;
using io::DType;

TEST(CompressedTensors, AreThoseThatTheFixtureWrites) {
  for (const Scheme& scheme : all_schemes(16))
    for (const std::uint64_t rows : {1u, 8u, 19u}) {
      const FixtureLayer layer = make_layer("m.l", rows, 48, DType::bf16, scheme);
      const std::vector<FixtureTensor> wanted = quantized_tensors(layer, scheme);
      const auto outputs = format::layer_outputs(scheme, "m.l", DType::bf16, rows, 48);
      ASSERT_EQ(outputs.size(), wanted.size()) << format::describe(scheme);
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const io::TensorInfo& info = outputs[i].info;
        EXPECT_EQ(info.name, wanted[i].name);
        EXPECT_EQ(info.shape, wanted[i].shape) << info.name;
        if (outputs[i].kind != TensorKind::input_scale) {
          EXPECT_EQ(info.dtype, wanted[i].dtype) << info.name;
        }
        EXPECT_EQ(format::module_of_quantized(info), "m.l") << info.name;
        EXPECT_EQ(format::why_absent(outputs[i].kind, scheme), "");
        const bool holds_codes = outputs[i].kind == TensorKind::codes || outputs[i].kind == TensorKind::packed_codes;
        EXPECT_EQ(format::module_of_codes(info).has_value(), holds_codes) << info.name;
      }
    }
}

TEST(CompressedTensors, ScalesHaveTheDtypeThatWasAskedFor) {
  Scheme scheme = w8a8_static();
  EXPECT_EQ(format::layer_outputs(scheme, "a", DType::f64, 2, 8)[1].info.dtype, DType::f32);
  scheme.scale_dtype = DType::f16;
  for (const std::size_t i : {1u, 2u})
    EXPECT_EQ(format::layer_outputs(scheme, "a", DType::f32, 2, 8)[i].info.dtype, DType::f16);
}

TEST(CompressedTensors, NamesOfOthersAreNone) {
  for (const char* name : {"a.weight", "a.bias", "weight", "a.weight_scales", "a.weight_packed.x"}) {
    EXPECT_FALSE(format::module_of_quantized({name, DType::bf16, {2, 2}, 0, 0})) << name;
    EXPECT_FALSE(format::module_of_codes({name, DType::bf16, {2, 2}, 0, 0})) << name;
  }
  EXPECT_EQ(format::module_of_codes({"a.weight", DType::i8, {2, 2}, 0, 0}), "a");
  EXPECT_FALSE(format::module_of_codes({".weight", DType::i8, {2, 2}, 0, 0}));
}

TEST(CompressedTensors, WordsHoldWhatWasPacked) {
  std::vector<std::int32_t> zero_points;
  for (int i = 0; i < 11 * 3; ++i) zero_points.push_back(i % 16 - 8);
  std::vector<std::uint32_t> words = {7};  // of a call before
  format::pack_zero_points(zero_points, 3, words);
  ASSERT_EQ(words.size(), 2u * 3u);
  for (std::uint64_t r = 0; r < 11; ++r)
    for (std::uint64_t g = 0; g < 3; ++g)
      EXPECT_EQ(format::unpack_zero_point(words[r / 8 * 3 + g], r), zero_points[r * 3 + g]) << r << " " << g;
  for (std::uint64_t g = 0; g < 3; ++g) EXPECT_EQ(words[3 + g] >> 12, 0u);  // rows that are missing
  format::pack_zero_points({}, 3, words);
  EXPECT_TRUE(words.empty());

  const std::uint32_t codes[2] = {0x76543210, 0xFEDCBA98};
  std::byte bytes[8];
  std::memcpy(bytes, codes, sizeof codes);
  for (std::uint64_t count = 0; count <= 16; ++count) {
    std::vector<std::int8_t> unpacked(17, 99);
    format::unpack_codes(bytes, count, unpacked.data());
    for (std::uint64_t i = 0; i < 17; ++i) EXPECT_EQ(unpacked[i], i < count ? static_cast<int>(i) - 8 : 99);
  }
}

}  // namespace
}  // namespace kvant::tests
