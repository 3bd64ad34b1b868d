// quantize, dequantize, fake_quantize and their backward passes on Python's arrays.
#include "kvant/elementwise.h"

#include "base/text.h"

#include "array.h"
#include "functions.h"
#include "names.h"
#include "parameter.h"
#include "threads.h"

namespace kvant::python {
namespace {

// Selects a plan for the descriptor and runs it. `input` and `grad_output` null: the operator has none.
py::object run(const ElementwiseDescriptor& descriptor, Numerics numerics, const Input* input, const Input* grad_output,
               py::handle scale, py::handle zero_point, py::handle global_scale, Output output) {
  const Stream stream = current_stream();
  const auto plan = value_of(ElementwisePlan::select(stream, descriptor, {.numerics = numerics}));
  const bool one_for_all = descriptor.granularity.kind() == GranularityKind::tensor;
  const ParameterInput scales =
      scale_input(scale, "scale", scale_kind_of(descriptor), one_for_all, StoredScales::allowed);
  const ParameterInput zero_points = zero_point_input(zero_point, "zero_point");
  const ParameterInput global = global_scale_input(global_scale);
  Status done;
  {
    const Unlocked unlocked(element_count(descriptor.shape));
    done = plan.run(stream, {},
                    detail::ElementwiseOperands{input == nullptr ? nullptr : &input->view,
                                                grad_output == nullptr ? nullptr : &grad_output->view, &output.view,
                                                &scales.value, &zero_points.value, &global.value});
  }
  check(done);
  return output.finish();
}

constexpr auto kQuantize = names("x", "scale", "zero_point", "scope", "axis", "group_size", "block_size", "dtype",
                                 "q_min", "q_max", "numerics", "saturate", "global_scale", "out");
py::object quantize(const NamedArguments<kQuantize>& a) {
  const Input x = input(a["x"_name], "x", Elements::floats);
  const ElementwiseDescriptor descriptor{.op = QuantizeKind::quantize,
                                         .shape = x.view.shape,
                                         .granularity = granularity_in(a),
                                         .input = x.view.kind,
                                         .output = code_kind(a["dtype"_name]).kind,
                                         .q_min = optional_integer32(a["q_min"_name], "q_min"),
                                         .q_max = optional_integer32(a["q_max"_name], "q_max"),
                                         .saturate = boolean(a["saturate"_name], "saturate")};
  return run(descriptor, numerics_of(a["numerics"_name]), &x, nullptr, a["scale"_name], a["zero_point"_name],
             a["global_scale"_name], output(a["out"_name], "out", descriptor.output, descriptor.shape, x.array.flavor));
}

constexpr auto kDequantize =
    names("q", "scale", "zero_point", "scope", "axis", "group_size", "block_size", "dtype", "global_scale", "out");
py::object dequantize(const NamedArguments<kDequantize>& a) {
  const Input q = input(a["q"_name], "q", Elements::codes);
  const NamedKind dtype = float_kind(a["dtype"_name]);
  const ElementwiseDescriptor descriptor{.op = QuantizeKind::dequantize,
                                         .shape = q.view.shape,
                                         .granularity = granularity_in(a),
                                         .input = q.view.kind,
                                         .output = dtype.kind};
  return run(
      descriptor, Numerics::exact, &q, nullptr, a["scale"_name], a["zero_point"_name], a["global_scale"_name],
      output(a["out"_name], "out", dtype.kind, descriptor.shape, dtype.ml_dtypes ? Flavor::ml_dtypes : q.array.flavor));
}

// With a floating-point grid the range of codes is not asked for; what is given is for the plan to refuse.
std::optional<std::int32_t> limit(py::handle object, const char* argument, const std::optional<ElementKind>& grid) {
  if (!grid && object.is_none())
    refuse(base::text("{} is None; it must be an integer, unless a grid is given", argument));
  return optional_integer32(object, argument);
}

constexpr auto kFakeQuantize = names("x", "scale", "zero_point", "scope", "axis", "group_size", "block_size", "q_min",
                                     "q_max", "grid", "numerics", "saturate", "global_scale", "out");
py::object fake_quantize(const NamedArguments<kFakeQuantize>& a) {
  const Input x = input(a["x"_name], "x", Elements::floats);
  const auto grid = grid_kind(a["grid"_name]);
  const ElementwiseDescriptor descriptor{.op = QuantizeKind::fake_quantize,
                                         .shape = x.view.shape,
                                         .granularity = granularity_in(a),
                                         .input = x.view.kind,
                                         .output = x.view.kind,
                                         .q_min = limit(a["q_min"_name], "q_min", grid),
                                         .q_max = limit(a["q_max"_name], "q_max", grid),
                                         .grid = grid,
                                         .saturate = boolean(a["saturate"_name], "saturate")};
  return run(descriptor, numerics_of(a["numerics"_name]), &x, nullptr, a["scale"_name], a["zero_point"_name],
             a["global_scale"_name], output(a["out"_name], "out", descriptor.output, descriptor.shape, x.array.flavor));
}

// The integer code type is not among the arguments, and only decides which ranges are refused: the narrowest that holds
// this one.
ElementKind codes_for(std::int32_t q_min, std::int32_t q_max) {
  for (const ElementInfo& element : kElements)
    if (element.grid == GridKind::integer && element.bits >= 8 && element.range.min <= q_min &&
        element.range.max >= q_max)
      return element.kind;
  return q_min < 0 ? ElementKind::s16 : ElementKind::u16;
}

constexpr auto kBackward = names("dy", "x", "scale", "zero_point", "scope", "axis", "group_size", "block_size", "q_min",
                                 "q_max", "grid", "numerics", "global_scale", "out");
template <QuantizeKind kOp>
py::object backward(const NamedArguments<kBackward>& a) {
  const Input dy = input(a["dy"_name], "dy", Elements::floats);
  const Input x = input(a["x"_name], "x", Elements::floats);
  const auto grid = grid_kind(a["grid"_name]);
  const auto q_min = limit(a["q_min"_name], "q_min", grid);
  const auto q_max = limit(a["q_max"_name], "q_max", grid);
  const bool fake = kOp == QuantizeKind::fake_quantize_backward;
  const ElementwiseDescriptor descriptor{.op = kOp,
                                         .shape = x.view.shape,
                                         .granularity = granularity_in(a),
                                         .input = x.view.kind,
                                         .output = fake   ? x.view.kind
                                                   : grid ? *grid
                                                          : codes_for(*q_min, *q_max),
                                         .q_min = q_min,
                                         .q_max = q_max,
                                         .grid = fake ? grid : std::nullopt};
  return run(descriptor, numerics_of(a["numerics"_name]), &x, &dy, a["scale"_name], a["zero_point"_name],
             a["global_scale"_name], output(a["out"_name], "out", x.view.kind, descriptor.shape, dy.array.flavor));
}

constexpr auto kDequantizeBackward =
    names("dy", "scale", "scope", "axis", "group_size", "block_size", "global_scale", "out");
py::object dequantize_backward(const NamedArguments<kDequantizeBackward>& a) {
  const Input dy = input(a["dy"_name], "dy", Elements::floats);
  const ElementwiseDescriptor descriptor{.op = QuantizeKind::dequantize_backward,
                                         .shape = dy.view.shape,
                                         .granularity = granularity_in(a),
                                         .input = ElementKind::s8,  // of the forward pass; any would do
                                         .output = dy.view.kind};
  return run(descriptor, Numerics::exact, nullptr, &dy, a["scale"_name], Py_None, a["global_scale"_name],
             output(a["out"_name], "out", dy.view.kind, descriptor.shape, dy.array.flavor));
}

}  // namespace

void register_elementwise(py::module_& module) {
  static PyMethodDef methods[] = {
      function<kQuantize, quantize>("quantize"),
      function<kDequantize, dequantize>("dequantize"),
      function<kFakeQuantize, fake_quantize>("fake_quantize"),
      function<kBackward, backward<QuantizeKind::quantize_backward>>("quantize_backward"),
      function<kBackward, backward<QuantizeKind::fake_quantize_backward>>("fake_quantize_backward"),
      function<kDequantizeBackward, dequantize_backward>("dequantize_backward"),
      {}};
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) throw py::error_already_set();
}

}  // namespace kvant::python
