// The plan classes of kvant.plan.
#include <fmt/format.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>

#include "array.h"
#include "functions.h"
#include "kvant/dynamic_range.h"
#include "kvant/elementwise.h"
#include "kvant/linear.h"
#include "kvant/range.h"
#include "names.h"
#include "packed_weight.h"
#include "parameter.h"
#include "threads.h"

namespace kvant::python {
namespace {

std::string text(MathPrecision precision) { return precision == MathPrecision::f64 ? "float64" : "float32"; }
std::string text(AccumulatorKind accumulator) {
  return accumulator == AccumulatorKind::exact_integer ? "exact_integer" : "none";
}
const char* text(bool value) { return value ? "True" : "False"; }

PlanPreference preference(py::handle isa, Numerics numerics = Numerics::exact) {
  return {.isa = isa_of(isa), .numerics = numerics};
}

// A writable array of bytes, or None.
struct WorkspaceInput {
  py::object kept;
  Workspace workspace;
};
WorkspaceInput workspace_of(py::handle object) {
  if (object.is_none()) return {};
  const Array array = array_of(object, "workspace");
  // Bytes over references of Python's, for one, would not end well.
  if (array.kind != ElementKind::u8) refuse(fmt::format("workspace {} must be an array of uint8", printed(object)));
  if (!array.writable) refuse("workspace is read-only");
  if (row_stride(array.elements) != 0) refuse("workspace must be contiguous");
  return {array.elements,
          {const_cast<void*>(array.elements.data()), static_cast<std::size_t>(array.elements.nbytes())}};
}

// Runs a plan on its buffers, with Python's lock released where `work` elements are worth it, and says what was
// written.
template <class Plan, class Buffers>
void run_plan(const Plan& plan, Buffers buffers, py::handle workspace, py::handle stream_object, std::int64_t work) {
  const WorkspaceInput scratch = workspace_of(workspace);
  const Stream stream = stream_of(stream_object);
  Status done;
  {
    const Unlocked unlocked(work);
    done = plan.run(stream, scratch.workspace, buffers.operands());
  }
  check(done);
  buffers.written();
}

// can_implement() answers for what cannot even become a view, too.
template <class Function>
Status answer(Function&& function) {
  try {
    return function();
  } catch (const Refused& refused) {
    return refused.status;
  }
}

// What Python calls on every plan.
template <class Object>
py::class_<Object> plan_class(py::module_& module, const char* name, const char* documentation) {
  return py::class_<Object>(module, name, py::is_final(), py::module_local(), documentation)
      .def(
          "workspace_size", [](const Object& self) { return self.plan.workspace_size(); },
          "Bytes of scratch memory that run() wants.")
      .def(
          "sku", [](const Object& self) { return self.plan.sku(); }, "Which kernel runs.")
      .def(
          "precision_guarantee", [](const Object& self) { return self.plan.precision_guarantee(); },
          "What the kernel promises.")
      .def("__repr__", [name = std::string(name)](const Object& self) {
        return fmt::format("{}(kernel='{}', workspace_size={})", name, self.plan.sku().name(),
                           self.plan.workspace_size());
      });
}

// ---- The element-wise family

template <QuantizeKind kOp>
struct ElementwiseObject {
  ElementwisePlan plan;
};

constexpr bool is_backward(QuantizeKind op) {
  return op == QuantizeKind::quantize_backward || op == QuantizeKind::dequantize_backward ||
         op == QuantizeKind::fake_quantize_backward;
}

// The buffers of one call; None where the operator has none.
struct ElementwiseBuffers {
  ElementwiseBuffers(const ElementwisePlan& plan, py::handle x, py::handle dy, py::handle out, py::handle scale,
                     py::handle zero_point)
      : input(plan_input(x, "input")),
        grad_output(plan_input(dy, "grad_output")),
        output(plan_output(out, is_backward(plan.descriptor().op) ? "grad_input" : "output", Presence::required)),
        scales(plan_scale(scale, "scale", scale_kind(float_side(plan.descriptor())))),
        zero_points(plan_zero_point(zero_point, "zero_point")) {}

  static ElementKind float_side(const ElementwiseDescriptor& d) { return is_float(d.input) ? d.input : d.output; }

  void written() { output.finish(); }
  detail::ElementwiseOperands operands() const {
    return {&input.view, &grad_output.view, &output.view, &scales.value, &zero_points.value};
  }

  Input input;
  Input grad_output;
  Output output;
  ParameterInput scales;
  ParameterInput zero_points;
};

Status can_implement(const ElementwisePlan& plan, py::handle x, py::handle dy, py::handle out, py::handle scale,
                     py::handle zero_point) {
  return answer([&] { return plan.can_implement(ElementwiseBuffers(plan, x, dy, out, scale, zero_point).operands()); });
}

void run(const ElementwisePlan& plan, py::handle x, py::handle dy, py::handle out, py::handle scale,
         py::handle zero_point, py::handle stream_object) {
  run_plan(plan, ElementwiseBuffers(plan, x, dy, out, scale, zero_point), py::none(), stream_object,
           element_count(plan.descriptor().shape));
}

template <QuantizeKind kOp>
void register_elementwise_plan(py::module_& module, const char* name, const char* documentation) {
  using Object = ElementwiseObject<kOp>;
  constexpr bool kFake = kOp == QuantizeKind::fake_quantize || kOp == QuantizeKind::fake_quantize_backward;
  constexpr bool kFromCodes = kOp == QuantizeKind::dequantize || kOp == QuantizeKind::dequantize_backward;
  auto type = plan_class<Object>(module, name, documentation);
  const auto select = [](py::handle shape, ElementKind in, ElementKind out, py::handle scope, py::handle axis,
                         py::handle group_size, py::handle q_min, py::handle q_max, py::handle numerics, py::handle isa,
                         py::handle stream) {
    return Object{value_of(ElementwisePlan::select(stream_of(stream),
                                                   {.op = kOp,
                                                    .shape = shape_from(shape, "shape"),
                                                    .granularity = granularity_of(scope, axis, group_size),
                                                    .input = in,
                                                    .output = out,
                                                    .q_min = optional_integer32(q_min, "q_min"),
                                                    .q_max = optional_integer32(q_max, "q_max")},
                                                   preference(isa, numerics_of(numerics))))};
  };
  const py::str exact("exact");
  if constexpr (kFake) {
    type.def_static(
        "select",
        [select](py::handle shape, py::handle element, py::handle scope, py::handle axis, py::handle group_size,
                 py::handle q_min, py::handle q_max, py::handle numerics, py::handle isa, py::handle stream) {
          const ElementKind kind = float_kind(element, "element").kind;
          return select(shape, kind, kind, scope, axis, group_size, q_min, q_max, numerics, isa, stream);
        },
        py::arg("shape"), py::kw_only(), py::arg("element") = "float32", py::arg("scope") = py::none(),
        py::arg("axis") = py::none(), py::arg("group_size") = py::none(), py::arg("q_min") = -128,
        py::arg("q_max") = 127, py::arg("numerics") = "exact", py::arg("isa") = py::none(),
        py::arg("stream") = py::none());
  } else if constexpr (kFromCodes) {
    type.def_static(
        "select",
        [select, exact](py::handle shape, py::handle in, py::handle out, py::handle scope, py::handle axis,
                        py::handle group_size, py::handle isa, py::handle stream) {
          return select(shape, code_kind(in, "input").kind, float_kind(out, "output").kind, scope, axis, group_size,
                        py::none(), py::none(), exact, isa, stream);
        },
        py::arg("shape"), py::kw_only(), py::arg("input") = "int8", py::arg("output") = "float32",
        py::arg("scope") = py::none(), py::arg("axis") = py::none(), py::arg("group_size") = py::none(),
        py::arg("isa") = py::none(), py::arg("stream") = py::none());
  } else {
    type.def_static(
        "select",
        [select](py::handle shape, py::handle in, py::handle out, py::handle scope, py::handle axis,
                 py::handle group_size, py::handle q_min, py::handle q_max, py::handle numerics, py::handle isa,
                 py::handle stream) {
          return select(shape, float_kind(in, "input").kind, code_kind(out, "output").kind, scope, axis, group_size,
                        q_min, q_max, numerics, isa, stream);
        },
        py::arg("shape"), py::kw_only(), py::arg("input") = "float32", py::arg("output") = "int8",
        py::arg("scope") = py::none(), py::arg("axis") = py::none(), py::arg("group_size") = py::none(),
        py::arg("q_min") = py::none(), py::arg("q_max") = py::none(), py::arg("numerics") = "exact",
        py::arg("isa") = py::none(), py::arg("stream") = py::none());
  }
  const py::none none;
  if constexpr (kOp == QuantizeKind::dequantize_backward) {
    type.def(
            "can_implement",
            [none](const Object& self, py::handle dy, py::handle dx, py::handle scale) {
              return can_implement(self.plan, none, dy, dx, scale, none);
            },
            py::kw_only(), py::arg("grad_output"), py::arg("grad_input"), py::arg("scale"))
        .def(
            "run",
            [none](const Object& self, py::handle dy, py::handle dx, py::handle scale, py::handle stream) {
              run(self.plan, none, dy, dx, scale, none, stream);
            },
            py::kw_only(), py::arg("grad_output"), py::arg("grad_input"), py::arg("scale"),
            py::arg("stream") = py::none());
  } else if constexpr (is_backward(kOp)) {
    type.def(
            "can_implement",
            [](const Object& self, py::handle dy, py::handle x, py::handle dx, py::handle scale,
               py::handle zero_point) { return can_implement(self.plan, x, dy, dx, scale, zero_point); },
            py::kw_only(), py::arg("grad_output"), py::arg("input"), py::arg("grad_input"), py::arg("scale"),
            py::arg("zero_point") = 0)
        .def(
            "run",
            [](const Object& self, py::handle dy, py::handle x, py::handle dx, py::handle scale, py::handle zero_point,
               py::handle stream) { run(self.plan, x, dy, dx, scale, zero_point, stream); },
            py::kw_only(), py::arg("grad_output"), py::arg("input"), py::arg("grad_input"), py::arg("scale"),
            py::arg("zero_point") = 0, py::arg("stream") = py::none());
  } else {
    type.def(
            "can_implement",
            [none](const Object& self, py::handle x, py::handle y, py::handle scale, py::handle zero_point) {
              return can_implement(self.plan, x, none, y, scale, zero_point);
            },
            py::kw_only(), py::arg("input"), py::arg("output"), py::arg("scale"), py::arg("zero_point") = 0)
        .def(
            "run",
            [none](const Object& self, py::handle x, py::handle y, py::handle scale, py::handle zero_point,
                   py::handle stream) { run(self.plan, x, none, y, scale, zero_point, stream); },
            py::kw_only(), py::arg("input"), py::arg("output"), py::arg("scale"), py::arg("zero_point") = 0,
            py::arg("stream") = py::none());
  }
}

// ---- Ranges

struct RangeObject {
  AnyRangePlan plan;
};

struct RangeBuffers {
  RangeBuffers(py::handle x, py::handle min, py::handle max, py::handle max_abs)
      : input(plan_input(x, "input")),
        min_out(plan_output(min, "min_out")),
        max_out(plan_output(max, "max_out")),
        max_abs_out(plan_output(max_abs, "max_abs_out")) {}
  void written() {
    for (Output* const each : {&min_out, &max_out, &max_abs_out})
      if (each->object) each->finish();
  }
  detail::RangeOperands operands() const { return {&input.view, &min_out.view, &max_out.view, &max_abs_out.view}; }

  Input input;
  Output min_out, max_out, max_abs_out;
};

void register_range_plan(py::module_& module) {
  plan_class<RangeObject>(module, "RangePlan",
                          "Least and greatest finite value and largest magnitude of every segment: min_out, max_out, "
                          "max_abs_out, float32 (float64 for float64 input), each optional. With accumulate=True the "
                          "outputs are extended: start from inf, -inf and 0. NaN and infinities are left out.")
      .def_static(
          "select",
          [](py::handle shape, py::handle in, py::handle scope, py::handle axis, py::handle group_size, bool accumulate,
             py::handle isa, py::handle stream) {
            return RangeObject{value_of(AnyRangePlan::select(stream_of(stream),
                                                             {.shape = shape_from(shape, "shape"),
                                                              .scope = granularity_of(scope, axis, group_size),
                                                              .accumulate = accumulate,
                                                              .input = float_kind(in, "input").kind},
                                                             preference(isa)))};
          },
          py::arg("shape"), py::kw_only(), py::arg("input") = "float32", py::arg("scope") = py::none(),
          py::arg("axis") = py::none(), py::arg("group_size") = py::none(), py::arg("accumulate") = false,
          py::arg("isa") = py::none(), py::arg("stream") = py::none())
      .def(
          "can_implement",
          [](const RangeObject& self, py::handle x, py::handle min, py::handle max, py::handle max_abs) {
            return answer([&] { return self.plan.can_implement(RangeBuffers(x, min, max, max_abs).operands()); });
          },
          py::kw_only(), py::arg("input"), py::arg("min_out") = py::none(), py::arg("max_out") = py::none(),
          py::arg("max_abs_out") = py::none())
      .def(
          "run",
          [](const RangeObject& self, py::handle x, py::handle min, py::handle max, py::handle max_abs,
             py::handle workspace, py::handle stream_object) {
            run_plan(self.plan, RangeBuffers(x, min, max, max_abs), workspace, stream_object,
                     element_count(self.plan.descriptor().shape));
          },
          py::kw_only(), py::arg("input"), py::arg("min_out") = py::none(), py::arg("max_out") = py::none(),
          py::arg("max_abs_out") = py::none(), py::arg("workspace") = py::none(), py::arg("stream") = py::none());
}

// ---- Dynamic range

struct DynamicRangeObject {
  AnyDynamicRangeQuantizePlan plan;
};

struct DynamicRangeBuffers {
  DynamicRangeBuffers(py::handle x, py::handle q, py::handle scale, py::handle zero_point)
      : input(plan_input(x, "input")),
        output(plan_output(q, "output", Presence::required)),
        scale_out(plan_output(scale, "scale_out", Presence::required)),
        zero_point_out(plan_output(zero_point, "zero_point_out")) {
    if (zero_point.is_none()) zero_point_out.view.kind = ElementKind::s32;
  }
  void written() {
    for (Output* const each : {&output, &scale_out, &zero_point_out})
      if (each->object) each->finish();
  }
  detail::DynamicRangeQuantizeOperands operands() const {
    return {&input.view, &output.view, &scale_out.view, &zero_point_out.view};
  }

  Input input;
  Output output, scale_out, zero_point_out;
};

void register_dynamic_range_plan(py::module_& module) {
  plan_class<DynamicRangeObject>(
      module, "DynamicRangeQuantizePlan",
      "Scale and zero point from the data's own range, and the codes; the formulas are those "
      "of kvant.dynamic_range_quantize. zero_point_out may be None in symmetric mode.")
      .def_static(
          "select",
          [](py::handle shape, py::handle in, py::handle out, py::handle mode, py::handle scope, py::handle axis,
             py::handle group_size, bool include_zero, py::handle q_min, py::handle q_max, py::handle numerics,
             py::handle isa, py::handle stream) {
            return DynamicRangeObject{
                value_of(AnyDynamicRangeQuantizePlan::select(stream_of(stream),
                                                             {.shape = shape_from(shape, "shape"),
                                                              .scope = granularity_of(scope, axis, group_size),
                                                              .mode = mode_of(mode),
                                                              .include_zero = include_zero,
                                                              .q_min = optional_integer32(q_min, "q_min"),
                                                              .q_max = optional_integer32(q_max, "q_max"),
                                                              .input = float_kind(in, "input").kind,
                                                              .output = code_kind(out, "output").kind},
                                                             preference(isa, numerics_of(numerics))))};
          },
          py::arg("shape"), py::kw_only(), py::arg("input") = "float32", py::arg("output") = "int8",
          py::arg("mode") = "symmetric", py::arg("scope") = "token", py::arg("axis") = py::none(),
          py::arg("group_size") = py::none(), py::arg("include_zero") = false, py::arg("q_min") = py::none(),
          py::arg("q_max") = py::none(), py::arg("numerics") = "exact", py::arg("isa") = py::none(),
          py::arg("stream") = py::none())
      .def(
          "can_implement",
          [](const DynamicRangeObject& self, py::handle x, py::handle q, py::handle scale, py::handle zero_point) {
            return answer(
                [&] { return self.plan.can_implement(DynamicRangeBuffers(x, q, scale, zero_point).operands()); });
          },
          py::kw_only(), py::arg("input"), py::arg("output"), py::arg("scale_out"),
          py::arg("zero_point_out") = py::none())
      .def(
          "run",
          [](const DynamicRangeObject& self, py::handle x, py::handle q, py::handle scale, py::handle zero_point,
             py::handle workspace, py::handle stream_object) {
            run_plan(self.plan, DynamicRangeBuffers(x, q, scale, zero_point), workspace, stream_object,
                     element_count(self.plan.descriptor().shape));
          },
          py::kw_only(), py::arg("input"), py::arg("output"), py::arg("scale_out"),
          py::arg("zero_point_out") = py::none(), py::arg("workspace") = py::none(), py::arg("stream") = py::none());
}

// ---- Linear layers

template <class Descriptor>
struct LinearObject {
  AnyLinearPlan plan;
  Descriptor descriptor;
};

ElementKind output_of(const W8A8LinearDescriptor& d) { return *d.output; }
ElementKind output_of(const SmoothQuantLinearDescriptor& d) { return *d.output; }
ElementKind output_of(const QuantizedLinearDescriptor& d) { return *d.input; }

struct LinearArguments {
  py::handle activation, act_scale, act_zero_point, smooth, weight, weight_scale, weight_zero_point, bias, output;
};

struct LinearBuffers {
  LinearBuffers(const LinearArguments& a, const char* activation_name, ElementKind scales, bool has_act_scale)
      : activation(plan_input(a.activation, activation_name)),
        smooth(plan_input(a.smooth, "smooth")),
        packed(packed_weight_from(a.weight)),
        weight(packed == nullptr ? plan_input(a.weight, "weight") : Input{}),
        weight_scale(plan_scale(a.weight_scale, "weight_scale", scales)),
        weight_zero_point(plan_zero_point(a.weight_zero_point, "weight_zero_point")),
        bias(plan_input(a.bias, "bias")),
        output(plan_output(a.output, "output", Presence::required)) {
    if (!has_act_scale) return;
    act_scale = plan_scale(a.act_scale, "act_scale", scales);
    act_zero_point = plan_zero_point(a.act_zero_point, "act_zero_point");
  }

  // Null where nothing was given.
  static const AnyRef* pointer(const Input& input) { return input.view.data == nullptr ? nullptr : &input.view; }
  void written() { output.finish(); }
  detail::LinearOperands operands() const {
    return {&activation.view,
            act_scale ? &act_scale->value : nullptr,
            act_zero_point ? &act_zero_point->value : nullptr,
            pointer(smooth),
            packed == nullptr ? &weight.view : nullptr,
            packed,
            &weight_scale.value,
            &weight_zero_point.value,
            pointer(bias),
            &output.view};
  }

  Input activation, smooth;
  std::optional<ParameterInput> act_scale, act_zero_point;
  const PackedWeight* packed;
  Input weight;
  ParameterInput weight_scale, weight_zero_point;
  Input bias;
  Output output;
};

template <class Descriptor>
LinearBuffers buffers_of(const LinearObject<Descriptor>& self, const LinearArguments& arguments) {
  constexpr bool kFromFloats = std::is_same_v<Descriptor, QuantizedLinearDescriptor>;
  return {arguments, kFromFloats ? "input" : "activation", scale_kind(output_of(self.descriptor)),
          std::is_same_v<Descriptor, W8A8LinearDescriptor>};
}

template <class Descriptor>
Status can_implement(const LinearObject<Descriptor>& self, const LinearArguments& arguments) {
  return answer([&] { return self.plan.can_implement(buffers_of(self, arguments).operands()); });
}

template <class Descriptor>
void run(const LinearObject<Descriptor>& self, const LinearArguments& arguments, py::handle workspace,
         py::handle stream_object) {
  run_plan(self.plan, buffers_of(self, arguments), workspace, stream_object,
           self.descriptor.in_features * self.descriptor.out_features);
}

template <class Descriptor>
LinearObject<Descriptor> select_linear(const Descriptor& descriptor, py::handle isa, py::handle stream,
                                       Numerics numerics = Numerics::exact) {
  return {value_of(AnyLinearPlan::select(stream_of(stream), descriptor, preference(isa, numerics))), descriptor};
}

ElementKind byte_kind(py::handle dtype, const char* argument) { return code_kind(dtype, argument).kind; }

void register_linear_plans(py::module_& module) {
  const py::none none;
  using W8A8 = LinearObject<W8A8LinearDescriptor>;
  plan_class<W8A8>(
      module, "W8A8LinearPlan",
      "kvant.w8a8_linear for up to max_rows rows of in_features codes; weight: an array or a PackedWeight.")
      .def_static(
          "select",
          [](py::handle max_rows, py::handle in_features, py::handle out_features, py::handle activation,
             py::handle weight, py::handle output, py::handle isa, py::handle stream) {
            return select_linear(W8A8LinearDescriptor{.max_rows = integer(max_rows, "max_rows"),
                                                      .in_features = integer(in_features, "in_features"),
                                                      .out_features = integer(out_features, "out_features"),
                                                      .activation = byte_kind(activation, "activation"),
                                                      .weight = byte_kind(weight, "weight"),
                                                      .output = float_kind(output, "output").kind},
                                 isa, stream);
          },
          py::arg("max_rows"), py::arg("in_features"), py::arg("out_features"), py::kw_only(),
          py::arg("activation") = "int8", py::arg("weight") = "int8", py::arg("output") = "float32",
          py::arg("isa") = py::none(), py::arg("stream") = py::none())
      .def(
          "can_implement",
          [none](const W8A8& self, py::handle activation, py::handle act_scale, py::handle weight,
                 py::handle weight_scale, py::handle output, py::handle act_zero_point, py::handle weight_zero_point,
                 py::handle bias) {
            return can_implement(self, {activation, act_scale, act_zero_point, none, weight, weight_scale,
                                        weight_zero_point, bias, output});
          },
          py::kw_only(), py::arg("activation"), py::arg("act_scale"), py::arg("weight"), py::arg("weight_scale"),
          py::arg("output"), py::arg("act_zero_point") = 0, py::arg("weight_zero_point") = 0,
          py::arg("bias") = py::none())
      .def(
          "run",
          [none](const W8A8& self, py::handle activation, py::handle act_scale, py::handle weight,
                 py::handle weight_scale, py::handle output, py::handle act_zero_point, py::handle weight_zero_point,
                 py::handle bias, py::handle workspace, py::handle stream) {
            run(self,
                {activation, act_scale, act_zero_point, none, weight, weight_scale, weight_zero_point, bias, output},
                workspace, stream);
          },
          py::kw_only(), py::arg("activation"), py::arg("act_scale"), py::arg("weight"), py::arg("weight_scale"),
          py::arg("output"), py::arg("act_zero_point") = 0, py::arg("weight_zero_point") = 0,
          py::arg("bias") = py::none(), py::arg("workspace") = py::none(), py::arg("stream") = py::none());

  using SmoothQuant = LinearObject<SmoothQuantLinearDescriptor>;
  plan_class<SmoothQuant>(module, "SmoothQuantLinearPlan",
                          "kvant.smoothquant_linear: one static activation scale, which belongs to the plan.")
      .def_static(
          "select",
          [](py::handle max_rows, py::handle in_features, py::handle out_features, py::handle act_scale,
             py::handle act_zero_point, py::handle activation, py::handle weight, py::handle output, py::handle isa,
             py::handle stream) {
            return select_linear(
                SmoothQuantLinearDescriptor{.max_rows = integer(max_rows, "max_rows"),
                                            .in_features = integer(in_features, "in_features"),
                                            .out_features = integer(out_features, "out_features"),
                                            .act_scale = number(act_scale, "act_scale"),
                                            .act_zero_point = integer32(act_zero_point, "act_zero_point"),
                                            .activation = byte_kind(activation, "activation"),
                                            .weight = byte_kind(weight, "weight"),
                                            .output = float_kind(output, "output").kind},
                isa, stream);
          },
          py::arg("max_rows"), py::arg("in_features"), py::arg("out_features"), py::arg("act_scale"), py::kw_only(),
          py::arg("act_zero_point") = 0, py::arg("activation") = "int8", py::arg("weight") = "int8",
          py::arg("output") = "float32", py::arg("isa") = py::none(), py::arg("stream") = py::none())
      .def(
          "can_implement",
          [none](const SmoothQuant& self, py::handle activation, py::handle weight, py::handle weight_scale,
                 py::handle output, py::handle weight_zero_point, py::handle bias) {
            return can_implement(self,
                                 {activation, none, none, none, weight, weight_scale, weight_zero_point, bias, output});
          },
          py::kw_only(), py::arg("activation"), py::arg("weight"), py::arg("weight_scale"), py::arg("output"),
          py::arg("weight_zero_point") = 0, py::arg("bias") = py::none())
      .def(
          "run",
          [none](const SmoothQuant& self, py::handle activation, py::handle weight, py::handle weight_scale,
                 py::handle output, py::handle weight_zero_point, py::handle bias, py::handle workspace,
                 py::handle stream) {
            run(self, {activation, none, none, none, weight, weight_scale, weight_zero_point, bias, output}, workspace,
                stream);
          },
          py::kw_only(), py::arg("activation"), py::arg("weight"), py::arg("weight_scale"), py::arg("output"),
          py::arg("weight_zero_point") = 0, py::arg("bias") = py::none(), py::arg("workspace") = py::none(),
          py::arg("stream") = py::none());

  using Quantized = LinearObject<QuantizedLinearDescriptor>;
  plan_class<Quantized>(module, "QuantizedLinearPlan",
                        "kvant.quantized_linear: floating-point input, quantized inside; select(smooth=True) takes a "
                        "smoothing vector in run().")
      .def_static(
          "select",
          [](py::handle max_rows, py::handle in_features, py::handle out_features, py::handle input, py::handle weight,
             py::handle mode, bool include_zero, py::handle act_scale, py::handle act_zero_point, bool smooth,
             py::handle numerics, py::handle isa, py::handle stream) {
            std::optional<double> scale;
            if (!act_scale.is_none()) scale = number(act_scale, "act_scale");
            return select_linear(
                QuantizedLinearDescriptor{.max_rows = integer(max_rows, "max_rows"),
                                          .in_features = integer(in_features, "in_features"),
                                          .out_features = integer(out_features, "out_features"),
                                          .mode = mode_of(mode),
                                          .include_zero = include_zero,
                                          .act_scale = scale,
                                          .act_zero_point = integer32(act_zero_point, "act_zero_point"),
                                          .smooth = smooth,
                                          .input = float_kind(input, "input").kind,
                                          .weight = byte_kind(weight, "weight")},
                isa, stream, numerics_of(numerics));
          },
          py::arg("max_rows"), py::arg("in_features"), py::arg("out_features"), py::kw_only(),
          py::arg("input") = "float32", py::arg("weight") = "int8", py::arg("mode") = "symmetric",
          py::arg("include_zero") = false, py::arg("act_scale") = py::none(), py::arg("act_zero_point") = 0,
          py::arg("smooth") = false, py::arg("numerics") = "exact", py::arg("isa") = py::none(),
          py::arg("stream") = py::none())
      .def(
          "can_implement",
          [none](const Quantized& self, py::handle x, py::handle weight, py::handle weight_scale, py::handle output,
                 py::handle weight_zero_point, py::handle bias, py::handle smooth) {
            return can_implement(self, {x, none, none, smooth, weight, weight_scale, weight_zero_point, bias, output});
          },
          py::kw_only(), py::arg("input"), py::arg("weight"), py::arg("weight_scale"), py::arg("output"),
          py::arg("weight_zero_point") = 0, py::arg("bias") = py::none(), py::arg("smooth") = py::none())
      .def(
          "run",
          [none](const Quantized& self, py::handle x, py::handle weight, py::handle weight_scale, py::handle output,
                 py::handle weight_zero_point, py::handle bias, py::handle smooth, py::handle workspace,
                 py::handle stream) {
            run(self, {x, none, none, smooth, weight, weight_scale, weight_zero_point, bias, output}, workspace,
                stream);
          },
          py::kw_only(), py::arg("input"), py::arg("weight"), py::arg("weight_scale"), py::arg("output"),
          py::arg("weight_zero_point") = 0, py::arg("bias") = py::none(), py::arg("smooth") = py::none(),
          py::arg("workspace") = py::none(), py::arg("stream") = py::none());
}

// ---- What plans say of themselves

void register_answers(py::module_& module) {
  py::class_<Status>(module, "Status", py::is_final(), py::module_local(),
                     "The answer of can_implement(): true, or a code with a sentence.")
      .def_property_readonly("ok", [](const Status& self) { return self.ok(); })
      .def_property_readonly("code", [](const Status& self) { return std::string(name(self.code())); })
      .def_property_readonly("message", [](const Status& self) { return std::string(self.message()); })
      .def("__bool__", [](const Status& self) { return self.ok(); })
      .def("__repr__", [](const Status& self) {
        return self.ok() ? std::string("Status(Ok)") : fmt::format("Status({}: {})", name(self.code()), self.message());
      });
  py::class_<PrecisionGuarantee>(module, "PrecisionGuarantee", py::is_final(), py::module_local(),
                                 "What a kernel promises.")
      .def_property_readonly(
          "math_precision", [](const PrecisionGuarantee& self) { return text(self.math_precision); },
          "\"float32\" or \"float64\": what the formula is evaluated in.")
      .def_property_readonly(
          "accumulator", [](const PrecisionGuarantee& self) { return text(self.accumulator); },
          "\"exact_integer\" for sums that never saturate, wrap or round; else \"none\".")
      .def_readonly("bit_stable_on_same_hardware", &PrecisionGuarantee::bit_stable_on_same_hardware)
      .def_readonly("bit_stable_across_hardware", &PrecisionGuarantee::bit_stable_across_hardware)
      .def_readonly("deterministic", &PrecisionGuarantee::deterministic)
      .def("__eq__", [](const PrecisionGuarantee& a, const PrecisionGuarantee& b) { return a == b; })
      .def("__repr__", [](const PrecisionGuarantee& self) {
        return fmt::format(
            "PrecisionGuarantee(math_precision='{}', accumulator='{}', bit_stable_on_same_hardware={}, "
            "bit_stable_across_hardware={}, deterministic={})",
            text(self.math_precision), text(self.accumulator), text(self.bit_stable_on_same_hardware),
            text(self.bit_stable_across_hardware), text(self.deterministic));
      });
  py::class_<KernelSku>(module, "KernelSku", py::is_final(), py::module_local(), "Which kernel a plan runs.")
      .def_property_readonly(
          "name", [](const KernelSku& self) { return self.name(); }, "As in \"quantize_f32_s8__avx2\".")
      .def_property_readonly("op", [](const KernelSku& self) { return std::string(name(self.op)); })
      .def_property_readonly(
          "element", [](const KernelSku& self) { return dtype_name(self.element); }, "What the kernel reads.")
      .def_property_readonly(
          "aux_element", [](const KernelSku& self) { return dtype_name(self.aux_element); }, "What it writes.")
      .def_property_readonly("isa", [](const KernelSku& self) { return std::string(name(self.arch)); })
      .def_property_readonly("backend", [](const KernelSku& self) { return std::string(name(self.backend)); })
      .def_readonly("precision_guarantee", &KernelSku::precision_guarantee)
      .def("__repr__", [](const KernelSku& self) { return fmt::format("KernelSku('{}')", self.name()); });
}

}  // namespace

void register_plans(py::module_& module) {
  register_answers(module);
  register_elementwise_plan<QuantizeKind::quantize>(module, "QuantizePlan",
                                                    "q = clamp(rne(x / scale) + zero_point, q_min, q_max)");
  register_elementwise_plan<QuantizeKind::dequantize>(module, "DequantizePlan", "x = scale * (q - zero_point)");
  register_elementwise_plan<QuantizeKind::fake_quantize>(
      module, "FakeQuantizePlan", "y = scale * (clamp(rne(x / scale) + zero_point, q_min, q_max) - zero_point)");
  register_elementwise_plan<QuantizeKind::quantize_backward>(
      module, "QuantizeBackwardPlan", "dx = dy / scale where q_min <= rne(x / scale) + zero_point <= q_max, else 0");
  register_elementwise_plan<QuantizeKind::dequantize_backward>(module, "DequantizeBackwardPlan", "dq = dy * scale");
  register_elementwise_plan<QuantizeKind::fake_quantize_backward>(
      module, "FakeQuantizeBackwardPlan", "dx = dy where q_min <= rne(x / scale) + zero_point <= q_max, else 0");
  register_range_plan(module);
  register_dynamic_range_plan(module);
  register_linear_plans(module);
}

}  // namespace kvant::python
