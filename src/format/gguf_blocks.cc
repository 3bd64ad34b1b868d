#include "format/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/float_environment.h"
#include "base/text.h"
#include "semantics/gguf_blocks.h"

namespace kvant::format {
namespace {

template <class Block>
void decode_all(std::span<const std::byte> blocks, float* to) {
  const auto* from = reinterpret_cast<const std::uint8_t*>(blocks.data());
  for (std::size_t left = blocks.size(); left >= Block::kBytes; left -= Block::kBytes) {
    Block::decode(from, to);
    from += Block::kBytes;
    to += Block::kElements;
  }
}

struct Decoder {
  io::GgufType type;
  void (*decode)(std::span<const std::byte> blocks, float* to);
};

template <class Block>
constexpr Decoder decoder(io::GgufType type) {
  return {type, decode_all<Block>};
}

constexpr std::array kDecoders = {
    decoder<semantics::BlockF32>(io::GgufType::f32),   decoder<semantics::BlockF16>(io::GgufType::f16),
    decoder<semantics::BlockBF16>(io::GgufType::bf16), decoder<semantics::BlockQ8_0>(io::GgufType::q8_0),
    decoder<semantics::BlockQ4_0>(io::GgufType::q4_0), decoder<semantics::BlockQ4_1>(io::GgufType::q4_1),
    decoder<semantics::BlockQ5_0>(io::GgufType::q5_0), decoder<semantics::BlockQ5_1>(io::GgufType::q5_1),
    decoder<semantics::BlockQ4_K>(io::GgufType::q4_k), decoder<semantics::BlockQ6_K>(io::GgufType::q6_k),
};

const Decoder* find_decoder(io::GgufType type) {
  const auto* const found =
      std::find_if(kDecoders.begin(), kDecoders.end(), [&](const Decoder& d) { return d.type == type; });
  return found == kDecoders.end() ? nullptr : found;
}

}  // namespace

bool can_decode(io::GgufType type) { return find_decoder(type) != nullptr; }

std::string names_of_decoded_types() {
  std::vector<std::string_view> names;
  names.reserve(kDecoders.size());
  for (const Decoder& d : kDecoders) names.push_back(info(d.type).name);
  return base::joined(names, ", ");
}

void decode_gguf_blocks(io::GgufType type, std::span<const std::byte> blocks, float* to) {
  const base::DefaultFloatEnvironment environment;
  find_decoder(type)->decode(blocks, to);
}

}  // namespace kvant::format
