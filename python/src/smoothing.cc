// smooth_scales and apply_smoothing on Python's arrays.
#include "kvant/smoothing.h"

#include "base/text.h"

#include <string>
#include <vector>

#include "array.h"
#include "functions.h"
#include "names.h"
#include "parameter.h"
#include "threads.h"

namespace kvant::python {
namespace {

// One array, or a list or tuple of them.
std::vector<py::object> each(py::handle weights) {
  if (!PyList_Check(weights.ptr()) && !PyTuple_Check(weights.ptr()))
    return {py::reinterpret_borrow<py::object>(weights)};
  std::vector<py::object> all;
  for (const py::handle weight : weights) all.push_back(py::reinterpret_borrow<py::object>(weight));
  return all;
}

std::string weight_name(std::size_t i, std::size_t count) {
  return count == 1 ? "weights" : base::text("weights[{}]", i);
}

std::int64_t total(const std::vector<AnyRef>& views) {
  std::int64_t elements = 0;
  for (const AnyRef& view : views) elements += element_count(view.shape);
  return elements;
}

constexpr auto kSmoothScales = names("act_absmax", "weights", "alpha", "out");
py::object smooth_scales(const NamedArguments<kSmoothScales>& a) {
  const Input absmax = vector_input(a["act_absmax"_name], "act_absmax", ElementKind::f32, ElementKind::f32);
  if (a["act_absmax"_name].is_none()) refuse("act_absmax is None; it must be an array [K]");
  const std::vector<py::object> given = each(a["weights"_name]);
  std::vector<Input> weights;
  std::vector<AnyRef> views;
  for (std::size_t i = 0; i < given.size(); ++i) {
    weights.push_back(input(given[i], weight_name(i, given.size()).c_str(), Elements::floats));
    views.push_back(weights.back().view);
  }
  const double alpha = number(a["alpha"_name], "alpha");
  Output scales = output(a["out"_name], "out", ElementKind::f32, absmax.view.shape, absmax.array.flavor);
  TensorRef<float> from;
  static_cast<AnyRef&>(from) = absmax.view;
  TensorMut<float> to;
  static_cast<AnyMut&>(to) = scales.view;
  const Stream stream = current_stream();
  Status done;
  {
    const Unlocked unlocked(total(views));
    done = kvant::smooth_scales(stream, from, views, alpha, to);
  }
  check(done);
  return scales.finish();
}

constexpr auto kApplySmoothing = names("scales", "norm_weight", "norm_bias", "weights");
py::object apply_smoothing(const NamedArguments<kApplySmoothing>& a) {
  const Input scales = vector_input(a["scales"_name], "scales", ElementKind::f32, ElementKind::f32);
  if (a["scales"_name].is_none()) refuse("scales is None; it must be an array [K]");
  Output norm_weight = plan_output(a["norm_weight"_name], "norm_weight", Presence::required);
  Output norm_bias = plan_output(a["norm_bias"_name], "norm_bias");
  const std::vector<py::object> given = each(a["weights"_name]);
  std::vector<Output> weights;
  std::vector<AnyMut> views;
  std::vector<AnyRef> read;
  for (std::size_t i = 0; i < given.size(); ++i) {
    weights.push_back(plan_output(given[i], weight_name(i, given.size()).c_str(), Presence::required));
    views.push_back(weights.back().view);
    read.push_back(weights.back().view);
  }
  TensorRef<float> from;
  static_cast<AnyRef&>(from) = scales.view;
  const Stream stream = current_stream();
  Status done;
  {
    const Unlocked unlocked(total(read));
    done = kvant::apply_smoothing(stream, from, norm_weight.view, norm_bias.view, views);
  }
  check(done);
  norm_weight.finish();
  if (norm_bias.object) norm_bias.finish();
  for (Output& weight : weights) weight.finish();
  return py::none();
}

}  // namespace

void register_smoothing(py::module_& module) {
  static PyMethodDef methods[] = {function<kSmoothScales, smooth_scales>("smooth_scales"),
                                  function<kApplySmoothing, apply_smoothing>("apply_smoothing"),
                                  {}};
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) throw py::error_already_set();
}

}  // namespace kvant::python
