// Linear layers on Python's arrays.
#include "kvant/linear.h"

#include "base/text.h"

#include "array.h"
#include "functions.h"
#include "names.h"
#include "packed_weight.h"
#include "parameter.h"
#include "threads.h"

namespace kvant::python {
namespace {

// A weight, packed or plain.
struct Weight {
  const PackedWeight* packed = nullptr;
  Input plain;
  ElementKind kind = ElementKind::s8;
  std::int64_t out_features = 0;
};

Weight weight_of(py::handle object, const char* argument) {
  Weight weight;
  weight.packed = packed_weight_from(object);
  if (weight.packed != nullptr) {
    weight.kind = weight.packed->element();
    weight.out_features = weight.packed->out_features();
    return weight;
  }
  weight.plain = byte_codes(object, argument);
  const Shape& shape = weight.plain.view.shape;
  if (shape.rank() != 2) refuse(base::text("{} has shape {}; it must be [N, K]", argument, shape.to_string()));
  weight.kind = weight.plain.view.kind;
  weight.out_features = shape[0];
  return weight;
}

// [..., K] with N in place of K.
struct Rows {
  std::int64_t count = 1;
  std::int64_t in_features = 0;
  Shape output;
};

Rows rows_of(const Shape& activation, const char* argument, std::int64_t out_features) {
  if (activation.rank() == 0 || activation.rank() > kMaxRank)
    refuse(base::text("{} has {} dimensions; it must have 1 to {}", argument, activation.rank(), kMaxRank));
  Rows rows;
  for (int i = 0; i + 1 < activation.rank(); ++i) rows.count *= activation[i];
  rows.in_features = activation.row_length();
  rows.output = activation;
  rows.output[activation.rank() - 1] = out_features;
  return rows;
}

// Checkpoints hold [N, 1] for the N scales of a weight.
ParameterInput flat(ParameterInput parameter) {
  const Shape& shape = parameter.value.shape();
  if (!parameter.value.is_scalar() && shape.rank() == 2 && shape[1] == 1)
    parameter.value = AnyParameter(AnyRef{parameter.value.data(), parameter.value.kind(), {shape[0]}, 0});
  return parameter;
}

// What all three share, from the weight on.
struct Call {
  const AnyRef* activation;
  const AnyParameter* act_scale;
  const AnyParameter* act_zero_point;
  const AnyRef* smooth;
  const Weight& weight;
  py::handle weight_scale;
  py::handle weight_zero_point;
  py::handle bias;
  std::optional<float> output_scale = std::nullopt;
  std::int32_t output_zero_point = 0;
};

template <class Descriptor>
py::object run(const Descriptor& descriptor, Numerics numerics, const Call& call, Output output) {
  const ElementKind kind = output.view.kind;
  const Stream stream = current_stream();
  const ParameterInput scales = flat(scale_input(call.weight_scale, "weight_scale", scale_kind(kind), true));
  const ParameterInput zero_points = flat(zero_point_input(call.weight_zero_point, "weight_zero_point"));
  const Input bias = vector_input(call.bias, "bias", scale_kind(kind), is_float(kind) ? kind : scale_kind(kind));
  const auto plan = value_of(AnyLinearPlan::select(stream, descriptor, {.numerics = numerics}));
  Status done;
  {
    const Unlocked unlocked((descriptor.max_rows + descriptor.out_features) * descriptor.in_features);
    const Scratch scratch(plan.workspace_size());
    done = plan.run(
        stream, scratch.workspace(),
        detail::LinearOperands{call.activation, call.act_scale, call.act_zero_point, call.smooth,
                               call.weight.packed == nullptr ? &call.weight.plain.view : nullptr, call.weight.packed,
                               &scales.value, &zero_points.value, bias.view.data == nullptr ? nullptr : &bias.view,
                               &output.view, call.output_scale, call.output_zero_point});
  }
  check(done);
  return output.finish();
}

constexpr auto kLinearOfCodes = names("act_q", "act_scale", "act_zero_point", "weight", "weight_scale",
                                      "weight_zero_point", "bias", "dtype", "out");
constexpr auto kLinearToCodes = joined(kLinearOfCodes, names("output_scale", "output_zero_point"));
py::object w8a8_linear(const NamedArguments<kLinearToCodes>& a) {
  const Input activation = byte_codes(a["act_q"_name], "act_q");
  const Weight weight = weight_of(a["weight"_name], "weight_q");
  const NamedKind dtype = linear_output_kind(a["dtype"_name]);
  const Rows rows = rows_of(activation.view.shape, "act_q", weight.out_features);
  const ParameterInput act_scale = scale_input(a["act_scale"_name], "act_scale", scale_kind(dtype.kind), true);
  const ParameterInput act_zero_point = zero_point_input(a["act_zero_point"_name], "act_zero_point");
  return run(W8A8LinearDescriptor{.max_rows = rows.count,
                                  .in_features = rows.in_features,
                                  .out_features = weight.out_features,
                                  .activation = activation.view.kind,
                                  .weight = weight.kind,
                                  .output = dtype.kind},
             Numerics::exact,
             {&activation.view, &act_scale.value, &act_zero_point.value, nullptr, weight, a["weight_scale"_name],
              a["weight_zero_point"_name], a["bias"_name], optional_number32(a["output_scale"_name], "output_scale"),
              integer32(a["output_zero_point"_name], "output_zero_point")},
             output(a["out"_name], "out", dtype.kind, rows.output,
                    dtype.ml_dtypes ? Flavor::ml_dtypes : activation.array.flavor));
}

py::object smoothquant_linear(const NamedArguments<kLinearOfCodes>& a) {
  const Input activation = byte_codes(a["act_q"_name], "act_q");
  const Weight weight = weight_of(a["weight"_name], "weight_q");
  const NamedKind dtype = float_kind(a["dtype"_name]);
  const Rows rows = rows_of(activation.view.shape, "act_q", weight.out_features);
  return run(SmoothQuantLinearDescriptor{.max_rows = rows.count,
                                         .in_features = rows.in_features,
                                         .out_features = weight.out_features,
                                         .act_scale = number(a["act_scale"_name], "act_scale"),
                                         .act_zero_point = integer32(a["act_zero_point"_name], "act_zero_point"),
                                         .activation = activation.view.kind,
                                         .weight = weight.kind,
                                         .output = dtype.kind},
             Numerics::exact,
             {&activation.view, nullptr, nullptr, nullptr, weight, a["weight_scale"_name], a["weight_zero_point"_name],
              a["bias"_name]},
             output(a["out"_name], "out", dtype.kind, rows.output,
                    dtype.ml_dtypes ? Flavor::ml_dtypes : activation.array.flavor));
}

constexpr auto kLinearOfFloats = names("x", "weight", "weight_scale", "weight_zero_point", "bias", "mode",
                                       "include_zero", "act_scale", "act_zero_point", "smooth", "numerics", "out");
py::object quantized_linear(const NamedArguments<kLinearOfFloats>& a) {
  const Input x = input(a["x"_name], "x", Elements::floats);
  const Weight weight = weight_of(a["weight"_name], "weight");
  const Rows rows = rows_of(x.view.shape, "x", weight.out_features);
  const ElementKind scales = scale_kind(x.view.kind);
  const Input smooth = vector_input(a["smooth"_name], "smooth", scales, scales);
  const bool smoothed = !a["smooth"_name].is_none();
  std::optional<double> act_scale;
  if (!a["act_scale"_name].is_none()) act_scale = number(a["act_scale"_name], "act_scale");
  return run(QuantizedLinearDescriptor{.max_rows = rows.count,
                                       .in_features = rows.in_features,
                                       .out_features = weight.out_features,
                                       .mode = mode_of(a["mode"_name]),
                                       .include_zero = boolean(a["include_zero"_name], "include_zero"),
                                       .act_scale = act_scale,
                                       .act_zero_point = integer32(a["act_zero_point"_name], "act_zero_point"),
                                       .smooth = smoothed,
                                       .input = x.view.kind,
                                       .weight = weight.kind},
             numerics_of(a["numerics"_name]),
             {&x.view, nullptr, nullptr, smoothed ? &smooth.view : nullptr, weight, a["weight_scale"_name],
              a["weight_zero_point"_name], a["bias"_name]},
             output(a["out"_name], "out", x.view.kind, rows.output, x.array.flavor));
}

}  // namespace

void register_linear(py::module_& module) {
  static PyMethodDef methods[] = {function<kLinearToCodes, w8a8_linear>("w8a8_linear"),
                                  function<kLinearOfCodes, smoothquant_linear>("smoothquant_linear"),
                                  function<kLinearOfFloats, quantized_linear>("quantized_linear"),
                                  {}};
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) throw py::error_already_set();
}

}  // namespace kvant::python
