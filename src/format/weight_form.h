// How the weights of one Linear become codes under a scheme: what the arithmetic needs to know of a row of the table
// and of a dtype.
#pragma once

#include <cstdint>

#include "format/scheme.h"
#include "io/safetensors.h"
#include "kvant/element.h"

namespace kvant::format {

struct WeightForm {
  ElementKind weight = ElementKind::f32;  // f32, f64, f16, bf16
  ElementKind scale = ElementKind::f32;   // as stored: f32, f16, bf16
  ElementKind code = ElementKind::s8;     // s8, s4
  Storage storage = Storage::elements;
  bool asymmetric = false;  // in words only
};
WeightForm weight_form(const Scheme& scheme, io::DType weight);

// The dtype of its scales: what the scheme says, or the weight's own (F32 for F64, which no loader takes).
io::DType scale_dtype(const Scheme& scheme, io::DType weight);

// How many columns share a scale in a weight of that many.
std::uint64_t columns_of_a_scale(const Scheme& scheme, std::uint64_t columns);

}  // namespace kvant::format
