// How the weights of one Linear become codes under a scheme: what the arithmetic needs to know of a scheme and of a
// dtype.
#pragma once

#include "format/scheme.h"
#include "io/safetensors.h"
#include "kvant/element.h"

namespace kvant::format {

struct WeightForm {
  ElementKind weight = ElementKind::f32;  // f32, f64, f16, bf16
  ElementKind scale = ElementKind::f32;   // as stored: f32, f16, bf16, e8m0, e4m3 under a global scale
  WeightScheme scheme = {};
  ScaleChoice choice = ScaleChoice::minmax;
};
WeightForm weight_form(const Scheme& scheme, io::DType weight);

// The dtype of its scales where they are numbers: what the scheme says, or the weight's own (F32 for F64, which no
// loader takes).
io::DType scale_dtype(const Scheme& scheme, io::DType weight);

}  // namespace kvant::format
