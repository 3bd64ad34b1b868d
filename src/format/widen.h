// Weights of 16 bits as f32, many at a time.
#pragma once

#include <cstddef>

#include "kvant/element.h"

namespace kvant::format {

// f32, f16 or bf16 to f32, exactly.
void widen(ElementKind kind, const std::byte* from, std::size_t count, float* to);

}  // namespace kvant::format
