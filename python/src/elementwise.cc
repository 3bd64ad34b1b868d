// quantize, dequantize, fake_quantize and their backward passes on Python's arrays.
#include "kvant/elementwise.h"

#include "array.h"
#include "functions.h"
#include "names.h"
#include "parameter.h"
#include "threads.h"

namespace kvant::python {
namespace {

// Selects a plan for the descriptor and runs it. `input` and `grad_output` null: the operator has none.
py::object run(const ElementwiseDescriptor& descriptor, Numerics numerics, const Input* input, const Input* grad_output,
               py::handle scale, py::handle zero_point, Output output) {
  const Stream stream = current_stream();
  const auto plan = value_of(ElementwisePlan::select(stream, descriptor, {.numerics = numerics}));
  const bool to_float = descriptor.op == QuantizeKind::dequantize || descriptor.op == QuantizeKind::dequantize_backward;
  const ElementKind kind = scale_kind(to_float ? descriptor.output : descriptor.input);
  const bool one_for_all = descriptor.granularity.kind() == GranularityKind::tensor;
  const ParameterInput scales = scale_input(scale, "scale", kind, one_for_all);
  const ParameterInput zero_points = zero_point_input(zero_point, "zero_point");
  Status done;
  {
    const Unlocked unlocked(element_count(descriptor.shape));
    done = plan.run(stream, {},
                    detail::ElementwiseOperands{input == nullptr ? nullptr : &input->view,
                                                grad_output == nullptr ? nullptr : &grad_output->view, &output.view,
                                                &scales.value, &zero_points.value});
  }
  check(done);
  return output.finish();
}

// x, scale, zero_point, scope, axis, group_size, dtype, q_min, q_max, numerics, out
py::object quantize(Arguments a) {
  const Input x = input(a[0], "x", Elements::floats);
  const ElementwiseDescriptor descriptor{.op = QuantizeKind::quantize,
                                         .shape = x.view.shape,
                                         .granularity = granularity_of(a[3], a[4], a[5]),
                                         .input = x.view.kind,
                                         .output = code_kind(a[6]).kind,
                                         .q_min = optional_integer32(a[7], "q_min"),
                                         .q_max = optional_integer32(a[8], "q_max")};
  return run(descriptor, numerics_of(a[9]), &x, nullptr, a[1], a[2],
             output(a[10], "out", descriptor.output, descriptor.shape, x.array.flavor));
}

// q, scale, zero_point, scope, axis, group_size, dtype, out
py::object dequantize(Arguments a) {
  const Input q = input(a[0], "q", Elements::codes);
  const NamedKind dtype = float_kind(a[6]);
  const ElementwiseDescriptor descriptor{.op = QuantizeKind::dequantize,
                                         .shape = q.view.shape,
                                         .granularity = granularity_of(a[3], a[4], a[5]),
                                         .input = q.view.kind,
                                         .output = dtype.kind};
  return run(descriptor, Numerics::exact, &q, nullptr, a[1], a[2],
             output(a[7], "out", dtype.kind, descriptor.shape, dtype.ml_dtypes ? Flavor::ml_dtypes : q.array.flavor));
}

// x, scale, zero_point, scope, axis, group_size, q_min, q_max, numerics, out
py::object fake_quantize(Arguments a) {
  const Input x = input(a[0], "x", Elements::floats);
  const ElementwiseDescriptor descriptor{.op = QuantizeKind::fake_quantize,
                                         .shape = x.view.shape,
                                         .granularity = granularity_of(a[3], a[4], a[5]),
                                         .input = x.view.kind,
                                         .output = x.view.kind,
                                         .q_min = integer32(a[6], "q_min"),
                                         .q_max = integer32(a[7], "q_max")};
  return run(descriptor, numerics_of(a[8]), &x, nullptr, a[1], a[2],
             output(a[9], "out", descriptor.output, descriptor.shape, x.array.flavor));
}

// The code type is not among the arguments, and only decides which ranges are refused.
ElementKind codes_for(std::int32_t q_min, std::int32_t q_max) {
  return q_min < 0 || q_max <= code_range(ElementKind::s8).max ? ElementKind::s8 : ElementKind::u8;
}

// dy, x, scale, zero_point, scope, axis, group_size, q_min, q_max, numerics, out
template <QuantizeKind kOp>
py::object backward(Arguments a) {
  const Input dy = input(a[0], "dy", Elements::floats);
  const Input x = input(a[1], "x", Elements::floats);
  const std::int32_t q_min = integer32(a[7], "q_min");
  const std::int32_t q_max = integer32(a[8], "q_max");
  const bool fake = kOp == QuantizeKind::fake_quantize_backward;
  const ElementwiseDescriptor descriptor{.op = kOp,
                                         .shape = x.view.shape,
                                         .granularity = granularity_of(a[4], a[5], a[6]),
                                         .input = x.view.kind,
                                         .output = fake ? x.view.kind : codes_for(q_min, q_max),
                                         .q_min = q_min,
                                         .q_max = q_max};
  return run(descriptor, numerics_of(a[9]), &x, &dy, a[2], a[3],
             output(a[10], "out", x.view.kind, descriptor.shape, dy.array.flavor));
}

// dy, scale, scope, axis, group_size, out
py::object dequantize_backward(Arguments a) {
  const Input dy = input(a[0], "dy", Elements::floats);
  const ElementwiseDescriptor descriptor{.op = QuantizeKind::dequantize_backward,
                                         .shape = dy.view.shape,
                                         .granularity = granularity_of(a[2], a[3], a[4]),
                                         .input = ElementKind::s8,  // of the forward pass; any would do
                                         .output = dy.view.kind};
  return run(descriptor, Numerics::exact, nullptr, &dy, a[1], Py_None,
             output(a[5], "out", dy.view.kind, descriptor.shape, dy.array.flavor));
}

}  // namespace

void register_elementwise(py::module_& module) {
  static PyMethodDef methods[] = {
      function<11, quantize>("quantize"),
      function<8, dequantize>("dequantize"),
      function<10, fake_quantize>("fake_quantize"),
      function<11, backward<QuantizeKind::quantize_backward>>("quantize_backward"),
      function<11, backward<QuantizeKind::fake_quantize_backward>>("fake_quantize_backward"),
      function<6, dequantize_backward>("dequantize_backward"),
      {}};
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) throw py::error_already_set();
}

}  // namespace kvant::python
