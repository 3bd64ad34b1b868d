// The tensors of a quantized Linear: what is written is what is read, and words hold what was packed.
#include "format/compressed_tensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/checkpoint_fixture.h"

namespace kvant::tests {
namespace {

using format::Scheme;
using format::TensorKind;
using io::DType;

TEST(CompressedTensors, AreThoseThatTheFixtureWrites) {
  std::vector<Scheme> schemes = all_schemes(16);
  for (const Scheme& scheme : foreign_schemes()) schemes.push_back(scheme);
  for (const Scheme& scheme : schemes)
    for (const std::uint64_t rows : {1u, 8u, 19u, 130u}) {
      const FixtureLayer layer = make_layer("m.l", rows, 96, DType::bf16, scheme);
      const std::vector<FixtureTensor> wanted = quantized_tensors(layer, scheme);
      const auto outputs = format::layer_outputs(scheme, "m.l", DType::bf16, rows, 96);
      ASSERT_EQ(outputs.size(), wanted.size()) << format::describe(scheme);
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const io::TensorInfo& info = outputs[i].info;
        EXPECT_EQ(info.name, wanted[i].name);
        EXPECT_EQ(info.shape, wanted[i].shape) << info.name;
        if (outputs[i].kind != TensorKind::input_scale) {
          EXPECT_EQ(info.dtype, wanted[i].dtype) << info.name;
        }
        EXPECT_EQ(io::tensor_bytes(info.dtype, info.shape), io::tensor_bytes(info.dtype, wanted[i].shape));
        EXPECT_EQ(format::module_of_quantized(info), "m.l") << info.name;
        EXPECT_EQ(format::why_absent(outputs[i].kind, scheme), "");
        const auto dtypes = format::dtypes_of(outputs[i].kind, scheme);
        EXPECT_NE(std::find(dtypes.begin(), dtypes.end(), info.dtype), dtypes.end()) << info.name;
        const bool holds_codes = outputs[i].kind == TensorKind::codes || outputs[i].kind == TensorKind::packed_codes;
        EXPECT_EQ(format::module_of_codes(info).has_value(), holds_codes) << info.name;
        if (holds_codes) {
          EXPECT_EQ(rows * format::bytes_of_codes(scheme.weights, 96), wanted[i].bytes.size()) << info.name;
        }
      }
      // What is not there has its reason.
      for (const format::TensorSpec& spec : format::tensor_specs()) {
        const bool there =
            std::any_of(outputs.begin(), outputs.end(), [&](const auto& o) { return o.kind == spec.kind; });
        EXPECT_EQ(format::why_absent(spec.kind, scheme).empty(), there) << spec.suffix;
      }
    }
}

TEST(CompressedTensors, ScalesHaveTheDtypeThatWasAskedFor) {
  Scheme scheme = w8a8_static();
  EXPECT_EQ(format::layer_outputs(scheme, "a", DType::f64, 2, 8)[1].info.dtype, DType::f32);
  scheme.scale_dtype = DType::f16;
  for (const std::size_t i : {1u, 2u})
    EXPECT_EQ(format::layer_outputs(scheme, "a", DType::f32, 2, 8)[i].info.dtype, DType::f16);
  // Scales that are codes, and what they are meant under, are what the format says, whatever the weight is.
  const auto nvfp4 = format::layer_outputs(scheme_of("nvfp4"), "a", DType::bf16, 2, 32);
  ASSERT_EQ(nvfp4.size(), 4u);
  EXPECT_EQ(nvfp4[1].info.dtype, DType::f8_e4m3);
  EXPECT_EQ(nvfp4[2].info.dtype, DType::f32);
  EXPECT_EQ(nvfp4[3].info.dtype, DType::f32);
  EXPECT_EQ(format::layer_outputs(scheme_of("mxfp8"), "a", DType::bf16, 2, 32)[1].info.dtype, DType::u8);
}

TEST(CompressedTensors, NamesOfOthersAreNone) {
  for (const char* name : {"a.weight", "a.bias", "weight", "a.weight_scales", "a.weight_packed.x"}) {
    EXPECT_FALSE(format::module_of_quantized({name, DType::bf16, {2, 2}, 0, 0})) << name;
    EXPECT_FALSE(format::module_of_codes({name, DType::bf16, {2, 2}, 0, 0})) << name;
  }
  EXPECT_EQ(format::module_of_codes({"a.weight", DType::i8, {2, 2}, 0, 0}), "a");
  EXPECT_EQ(format::module_of_codes({"a.weight", DType::f8_e4m3, {2, 2}, 0, 0}), "a");
  EXPECT_EQ(format::module_of_codes({"a.weight_packed", DType::u8, {2, 2}, 0, 0}), "a");
  EXPECT_FALSE(format::module_of_codes({".weight", DType::i8, {2, 2}, 0, 0}));
}

TEST(CompressedTensors, WordsHoldWhatWasPacked) {
  for (const ElementKind code : {ElementKind::s4, ElementKind::s8}) {
    const auto [least, most] = code_range(code);
    const std::uint64_t per_word = code == ElementKind::s4 ? 8 : 4;
    EXPECT_EQ(format::codes_per_word(code), per_word);
    std::vector<std::int32_t> zero_points;
    for (int i = 0; i < 11 * 3; ++i) zero_points.push_back(least + i * 37 % (most - least + 1));
    std::vector<std::uint32_t> words = {7};  // of a call before
    format::pack_zero_points(code, zero_points, 3, words);
    ASSERT_EQ(words.size(), (11 + per_word - 1) / per_word * 3);
    EXPECT_EQ(words, in_words({zero_points.begin(), zero_points.end()}, 3, code, true));
    for (std::uint64_t r = 0; r < 11; ++r)
      for (std::uint64_t g = 0; g < 3; ++g)
        EXPECT_EQ(format::unpack_zero_point(code, words[r / per_word * 3 + g], r), zero_points[r * 3 + g])
            << r << " " << g;
    // Rows that are missing: 3 of 8, 3 of 4 are there.
    for (std::uint64_t g = 0; g < 3; ++g)
      EXPECT_EQ(words[words.size() - 3 + g] >> (code == ElementKind::s4 ? 12 : 24), 0u);
    format::pack_zero_points(code, {}, 3, words);
    EXPECT_TRUE(words.empty());
  }
}

TEST(CompressedTensors, CodesComeOutOfTheirStorage) {
  const auto expect = [](const Scheme& scheme, const std::vector<std::uint8_t>& stored,
                         const std::vector<int>& wanted) {
    for (std::size_t count = 0; count <= wanted.size(); ++count) {
      std::vector<std::int8_t> codes(wanted.size() + 1, 99);
      format::unpack_codes(scheme.weights, reinterpret_cast<const std::byte*>(stored.data()), count, codes.data());
      for (std::size_t i = 0; i < codes.size(); ++i)
        EXPECT_EQ(codes[i], i < count ? wanted[i] : 99) << format::describe(scheme) << " " << count;
    }
  };
  // Words are little-endian, and the first code is in the lowest bits.
  expect(w4a16(8), {0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE},
         {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7});
  expect(scheme_of("w8a16"), {0, 1, 127, 128, 129, 254, 255, 0x80}, {-128, -127, -1, 0, 1, 126, 127, 0});
  expect(scheme_of("mxfp4"), {0x10, 0xF8, 0x7A}, {0, 1, 8, 15, 10, 7});
  expect(w8a8(), {0, 1, 127, 128, 255}, {0, 1, 127, -128, -1});
  expect(scheme_of("fp8"), {0, 0x7E, 0x80, 0xFE}, {0, 126, -128, -2});
}

}  // namespace
}  // namespace kvant::tests
