#include "format/element_dtype.h"

#include <cstring>

namespace kvant::format {

std::optional<ElementKind> element_of(io::DType dtype) {
  switch (dtype) {
    case io::DType::f32: return ElementKind::f32;
    case io::DType::f64: return ElementKind::f64;
    case io::DType::f16: return ElementKind::f16;
    case io::DType::bf16: return ElementKind::bf16;
    default: return std::nullopt;
  }
}

bool is_scale_dtype(io::DType dtype) {
  return dtype == io::DType::f32 || dtype == io::DType::f16 || dtype == io::DType::bf16;
}

void store(float value, ElementKind kind, std::byte* to) {
  switch (kind) {
    case ElementKind::f16: {
      const Half half = to_half(value);
      std::memcpy(to, &half, sizeof half);
      break;
    }
    case ElementKind::bf16: {
      const BFloat16 bfloat = to_bfloat16(value);
      std::memcpy(to, &bfloat, sizeof bfloat);
      break;
    }
    default: std::memcpy(to, &value, sizeof value);
  }
}

float load(ElementKind kind, const std::byte* from) {
  if (kind == ElementKind::f16) {
    Half half;
    std::memcpy(&half, from, sizeof half);
    return to_float(half);
  }
  if (kind == ElementKind::bf16) {
    BFloat16 bfloat;
    std::memcpy(&bfloat, from, sizeof bfloat);
    return to_float(bfloat);
  }
  float value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace kvant::format
