#include "format/weight_form.h"

#include "format/element_dtype.h"

namespace kvant::format {

WeightForm weight_form(const Scheme& scheme, io::DType weight) {
  return {.weight = element_of(weight).value_or(ElementKind::f32),
          .scale = element_of(scale_dtype(scheme, weight)).value_or(ElementKind::f32),
          .code = scheme.spec().weights.code,
          .storage = scheme.spec().weights.storage,
          .asymmetric = scheme.has_asymmetric_weights()};
}

io::DType scale_dtype(const Scheme& scheme, io::DType weight) {
  if (scheme.scale_dtype) return *scheme.scale_dtype;
  return weight == io::DType::f64 ? io::DType::f32 : weight;
}

std::uint64_t columns_of_a_scale(const Scheme& scheme, std::uint64_t columns) {
  return scheme.spec().has_groups() ? static_cast<std::uint64_t>(scheme.group_size) : columns;
}

}  // namespace kvant::format
