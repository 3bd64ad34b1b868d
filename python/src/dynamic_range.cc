// dynamic_range_quantize on Python's arrays.
#include "kvant/dynamic_range.h"

#include "base/text.h"

#include "array.h"
#include "functions.h"
#include "names.h"
#include "parameter.h"
#include "threads.h"

namespace kvant::python {
namespace {

constexpr auto kDynamicRangeQuantize =
    names("x", "mode", "scope", "axis", "group_size", "block_size", "dtype", "q_min", "q_max", "include_zero",
          "numerics", "scale_dtype", "mx_rule", "global_scale", "out");
py::object dynamic_range_quantize(const NamedArguments<kDynamicRangeQuantize>& a) {
  const Input x = input(a["x"_name], "x", Elements::floats);
  const ElementKind scales = scale_dtype(a["scale_dtype"_name]).value_or(scale_kind(x.view.kind));
  const bool finds_global = scales == ElementKind::e4m3 && a["global_scale"_name].is_none();
  const DynamicRangeQuantizeDescriptor descriptor{.shape = x.view.shape,
                                                  .scope = granularity_in(a),
                                                  .mode = mode_of(a["mode"_name]),
                                                  .include_zero = boolean(a["include_zero"_name], "include_zero"),
                                                  .q_min = optional_integer32(a["q_min"_name], "q_min"),
                                                  .q_max = optional_integer32(a["q_max"_name], "q_max"),
                                                  .scale = scales,
                                                  .mx_rule = mx_rule_of(a["mx_rule"_name]),
                                                  .finds_global_scale = finds_global,
                                                  .input = x.view.kind,
                                                  .output = code_kind(a["dtype"_name]).kind};
  const int results = finds_global ? 4 : 3;
  py::object given[4] = {py::none(), py::none(), py::none(), py::none()};
  const py::handle out = a["out"_name];
  if (!out.is_none()) {
    if (!PyTuple_Check(out.ptr()) || PyTuple_GET_SIZE(out.ptr()) != results)
      refuse(base::text("out {} must be a tuple (q, scale, zero_point{}), each an array or None", printed(out),
                        finds_global ? ", global_scale" : ""));
    for (int i = 0; i < results; ++i) given[i] = py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(out.ptr(), i));
  }
  const Stream stream = current_stream();
  const auto plan =
      value_of(AnyDynamicRangeQuantizePlan::select(stream, descriptor, {.numerics = numerics_of(a["numerics"_name])}));
  const Shape parameters = value_of(parameter_shape(descriptor.shape, descriptor.scope));
  const Flavor flavor = x.array.flavor;
  Output q = output(given[0], "out[0]", *descriptor.output, descriptor.shape, flavor);
  Output scale = output(given[1], "out[1]", scales, parameters, flavor);
  Output zero_point = output(given[2], "out[2]", ElementKind::s32, parameters, flavor);
  const ParameterInput global = global_scale_input(a["global_scale"_name]);
  Output global_found;
  if (finds_global) global_found = output(given[3], "out[3]", ElementKind::f32, Shape(), flavor);
  Status done;
  {
    const Unlocked unlocked(element_count(descriptor.shape));
    const Scratch scratch(plan.workspace_size());
    done = plan.run(stream, scratch.workspace(),
                    detail::DynamicRangeQuantizeOperands{&x.view, &q.view, &scale.view, &zero_point.view, &global.value,
                                                         &global_found.view});
  }
  check(done);
  if (finds_global) return py::make_tuple(q.finish(), scale.finish(), zero_point.finish(), global_found.finish());
  return py::make_tuple(q.finish(), scale.finish(), zero_point.finish());
}

}  // namespace

void register_dynamic_range(py::module_& module) {
  static PyMethodDef methods[] = {function<kDynamicRangeQuantize, dynamic_range_quantize>("dynamic_range_quantize"),
                                  {}};
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) throw py::error_already_set();
}

}  // namespace kvant::python
