// Dtypes of a checkpoint as the library's element kinds, and single numbers in them.
#pragma once

#include <cstddef>
#include <optional>

#include "io/safetensors.h"
#include "kvant/element.h"

namespace kvant::format {

// The element kind of a dtype that weights come in: f32, f64, f16, bf16. Nothing for others.
std::optional<ElementKind> element_of(io::DType dtype);

// A dtype that scales are stored in: F32, F16 or BF16.
bool is_scale_dtype(io::DType dtype);

// Writes `value`, rounded to f32, f16 or bf16.
void store(float value, ElementKind kind, std::byte* to);
// The number that is stored there, in f32, f16 or bf16.
float load(ElementKind kind, const std::byte* from);

}  // namespace kvant::format
