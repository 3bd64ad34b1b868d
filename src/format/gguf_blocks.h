// Tensors of GGUF files as f32. The formulas are in semantics/gguf_blocks.h, the sizes of blocks in io/gguf.h.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "io/gguf.h"

namespace kvant::format {

bool can_decode(io::GgufType type);
// "F32, F16, …": for a sentence that refuses another one.
std::string names_of_decoded_types();

// Whole blocks to f32, as many elements as they have, with the bits of ggml. The type is one that can be decoded.
void decode_gguf_blocks(io::GgufType type, std::span<const std::byte> blocks, float* to);

}  // namespace kvant::format
