#include "format/layer_outputs.h"

#include <fmt/format.h>

#include <optional>

#include "format/element_dtype.h"

namespace kvant::format {

io::DType scale_dtype(const Scheme& scheme, io::DType weight) {
  if (scheme.scale_dtype) return *scheme.scale_dtype;
  return weight == io::DType::f64 ? io::DType::f32 : weight;
}

quantize::WeightForm weight_form(const Scheme& scheme, io::DType weight) {
  const bool four_bits = scheme.kind == SchemeKind::w4a16;
  return {.weight = element_of(weight).value_or(ElementKind::f32),
          .scale = element_of(scale_dtype(scheme, weight)).value_or(ElementKind::f32),
          .bits = four_bits ? 4 : 8,
          .asymmetric = four_bits && scheme.asymmetric};
}

std::uint64_t columns_of_a_scale(const Scheme& scheme, std::uint64_t columns) {
  return scheme.kind == SchemeKind::w4a16 ? static_cast<std::uint64_t>(scheme.group_size) : columns;
}

std::vector<LayerOutput> layer_outputs(const Scheme& scheme, std::string_view module, io::DType dtype,
                                       std::uint64_t rows, std::uint64_t columns) {
  std::vector<LayerOutput> outputs;
  const auto add = [&](OutputKind kind, std::string_view suffix, io::DType type, std::vector<std::uint64_t> shape) {
    outputs.push_back({kind, {fmt::format("{}.{}", module, suffix), type, std::move(shape), 0, 0}});
  };
  const io::DType scale = scale_dtype(scheme, dtype);
  if (scheme.kind == SchemeKind::w4a16) {
    const std::uint64_t groups = columns / columns_of_a_scale(scheme, columns);
    add(OutputKind::codes, "weight_packed", io::DType::i32, {rows, columns / 8});
    add(OutputKind::scales, "weight_scale", scale, {rows, groups});
    add(OutputKind::weight_shape, "weight_shape", io::DType::i64, {2});
    if (scheme.asymmetric) add(OutputKind::zero_points, "weight_zero_point", io::DType::i32, {(rows + 7) / 8, groups});
    return outputs;
  }
  add(OutputKind::codes, "weight", io::DType::i8, {rows, columns});
  add(OutputKind::scales, "weight_scale", scale, {rows, 1});
  if (scheme.kind == SchemeKind::w8a8_static) {
    add(OutputKind::input_scale, "input_scale", scale, {1});
    if (scheme.asymmetric) add(OutputKind::input_zero_point, "input_zero_point", io::DType::i8, {1});
  }
  return outputs;
}

}  // namespace kvant::format
