#include "format/weight_form.h"

#include "format/element_dtype.h"

namespace kvant::format {

WeightForm weight_form(const Scheme& scheme, io::DType weight) {
  return {
      .weight = element_of(weight).value_or(ElementKind::f32),
      .scale = scheme.weights.scale_code.value_or(element_of(scale_dtype(scheme, weight)).value_or(ElementKind::f32)),
      .scheme = scheme.weights,
      .choice = scheme.scale_choice};
}

io::DType scale_dtype(const Scheme& scheme, io::DType weight) {
  if (scheme.scale_dtype) return *scheme.scale_dtype;
  return weight == io::DType::f64 ? io::DType::f32 : weight;
}

}  // namespace kvant::format
