// The plan classes of kvant.plan: one table, and one template that makes a class of a row.
//
// What differs from operator to operator is its Definition<kOp>, in the file of its family:
//
//   Plan, Descriptor, Buffers    Buffers has operands() for the plan, and written() for after the run
//   kSelect, kBuffers            the parameters of select() and of can_implement(); run() takes kBuffers too
//   kWorkspace                   whether run() takes scratch memory
//   descriptor(arguments)        what Python gave to select()
//   buffers(descriptor, arguments)
//   work(descriptor)             elements, for the decision whether to release Python's lock
#pragma once

#include <pybind11/pybind11.h>
#include "base/text.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kvant/plan.h"
#include "kvant/sku.h"
#include "names.h"
#include "refusal.h"
#include "signature.h"
#include "threads.h"

namespace kvant::python {

// What select() takes.
enum class Signature : std::uint8_t {
  floats_to_codes,
  codes_to_floats,
  floats_to_floats,
  range,
  dynamic_range,
  linear,
};

struct PlanClass {
  QuantizeKind op;
  Signature signature;
  const char* name;  // null: made from the operator's
  const char* documentation;
};

constexpr Signature signature_of(const ElementwiseOperator& o) {
  if (o.input == o.output) return Signature::floats_to_floats;
  return o.input == ElementClass::code ? Signature::codes_to_floats : Signature::floats_to_codes;
}

// The element-wise operators are those of the library's table: "fake_quantize" becomes FakeQuantizePlan.
inline constexpr auto kElementwisePlanClasses = [] {
  std::array<PlanClass, kElementwiseOperators.size()> classes{};
  for (std::size_t i = 0; i < classes.size(); ++i)
    classes[i] = {kElementwiseOperators[i].op, signature_of(kElementwiseOperators[i]), nullptr,
                  kElementwiseOperators[i].formula.data()};
  return classes;
}();

inline constexpr auto kPlanClasses = joined(
    kElementwisePlanClasses,
    std::array{
        PlanClass{
            QuantizeKind::range, Signature::range, "RangePlan",
            "Min, max and max magnitude of the finite values of every segment: min_out, max_out, max_abs_out, float32 "
            "(float64 for float64 input), each optional. With accumulate=True the outputs are extended: start from "
            "inf, -inf and 0. NaN and infinities are left out."},
        PlanClass{QuantizeKind::dynamic_range_quantize, Signature::dynamic_range, "DynamicRangeQuantizePlan",
                  "Scale and zero point from the data's own range, and the codes; the formulas are those of "
                  "kvant.dynamic_range_quantize. zero_point_out may be None in symmetric mode. Scales of float8_e4m3fn "
                  "need global_scale, or with "
                  "finds_global_scale=True global_scale_out."},
        PlanClass{
            QuantizeKind::w8a8_linear, Signature::linear, "W8A8LinearPlan",
            "kvant.w8a8_linear for up to max_rows rows of in_features codes; weight: an array or a PackedWeight."},
        PlanClass{QuantizeKind::smoothquant_linear, Signature::linear, "SmoothQuantLinearPlan",
                  "kvant.smoothquant_linear: one static activation scale, which belongs to the plan."},
        PlanClass{
            QuantizeKind::quantized_linear, Signature::linear, "QuantizedLinearPlan",
            "kvant.quantized_linear: floating-point input, quantized inside; select(smooth=True) takes a smoothing "
            "vector in run()."},
    });

// "FakeQuantizePlan"
std::string class_name(const PlanClass& row);

constexpr const PlanClass& plan_class_of(QuantizeKind op) {
  return *std::ranges::find(kPlanClasses, op, &PlanClass::op);
}

// A writable array of bytes, or None.
struct WorkspaceInput {
  py::object kept;
  Workspace workspace;
};
WorkspaceInput workspace_of(py::handle object);

// What Python holds. Each operator has a type of its own, as pybind11 has one class for each.
template <class Definition>
struct PlanObject {
  typename Definition::Plan plan;
  typename Definition::Descriptor descriptor;
};

template <class Definition, class Arguments>
PlanObject<Definition> select_plan(const Arguments& arguments) {
  PlanPreference preference{.isa = isa_of(arguments["isa"_name])};
  if constexpr (Arguments::has("numerics"_name)) preference.numerics = numerics_of(arguments["numerics"_name]);
  const auto descriptor = Definition::descriptor(arguments);
  const Stream stream = stream_of(arguments["stream"_name]);
  return {value_of(Definition::Plan::select(stream, descriptor, preference)), descriptor};
}

// Answers for what cannot even become a view, too.
template <class Definition, class Arguments>
Status can_implement(const PlanObject<Definition>& self, const Arguments& arguments) {
  try {
    return self.plan.can_implement(Definition::buffers(self.descriptor, arguments).operands());
  } catch (const Refused& refused) {
    return refused.status;
  }
}

// Runs a plan with Python's lock released where the work is worth it, and says what was written.
template <class Definition, class Arguments>
void run(const PlanObject<Definition>& self, const Arguments& arguments) {
  auto buffers = Definition::buffers(self.descriptor, arguments);
  const WorkspaceInput scratch = workspace_of(arguments.or_none("workspace"_name));
  const Stream stream = stream_of(arguments["stream"_name]);
  Status done;
  {
    const Unlocked unlocked(Definition::work(self.descriptor));
    done = self.plan.run(stream, scratch.workspace, buffers.operands());
  }
  check(done);
  buffers.written();
}

inline constexpr std::array kIsaAndStream = {Parameter{"isa", nullptr}, Parameter{"stream", nullptr}};
inline constexpr std::array kWorkspaceAndStream = {Parameter{"workspace", nullptr}, Parameter{"stream", nullptr}};
inline constexpr std::array kStream = {Parameter{"stream", nullptr}};

template <class Definition>
struct MethodParameters {
  static constexpr auto kRunning = [] {
    if constexpr (Definition::kWorkspace)
      return kWorkspaceAndStream;
    else
      return kStream;
  }();
  static constexpr auto kSelect = joined(Definition::kSelect, kIsaAndStream);
  static constexpr auto kCanImplement = Definition::kBuffers;
  static constexpr auto kRun = joined(Definition::kBuffers, kRunning);
};

template <class Definition>
void register_plan_class(py::module_& module, const PlanClass& row) {
  using Object = PlanObject<Definition>;
  using Parameters = MethodParameters<Definition>;
  const std::string name = class_name(row);
  py::class_<Object> type(module, name.c_str(), py::is_final(), py::module_local(), row.documentation);
  type.def(
          "workspace_size", [](const Object& self) { return self.plan.workspace_size(); },
          "Bytes of scratch memory that run() needs.")
      .def(
          "sku", [](const Object& self) { return self.plan.sku(); }, "Which kernel runs.")
      .def(
          "precision_guarantee", [](const Object& self) { return self.plan.precision_guarantee(); },
          "What the kernel promises.")
      .def("__repr__", [name](const Object& self) {
        return base::text("{}(kernel='{}', workspace_size={})", name, self.plan.sku().name(),
                          self.plan.workspace_size());
      });
  define_with<Positional::those_without_default, Parameters::kSelect>(
      [](const auto& arguments) { return select_plan<Definition>(arguments); },
      [&](auto&&... definition) { type.def_static("select", definition...); });
  define_with<Positional::none, Parameters::kCanImplement, Object>(
      [](const Object& self, const auto& arguments) { return can_implement(self, arguments); },
      [&](auto&&... definition) { type.def("can_implement", definition...); });
  define_with<Positional::none, Parameters::kRun, Object>(
      [](const Object& self, const auto& arguments) { run(self, arguments); },
      [&](auto&&... definition) { type.def("run", definition...); });
}

// The classes of all rows that have one of these signatures.
template <template <QuantizeKind> class Definition, Signature... kSignatures>
void register_plan_classes(py::module_& module) {
  const auto register_row = [&]<std::size_t kRow>(std::integral_constant<std::size_t, kRow>) {
    constexpr const PlanClass& kClass = kPlanClasses[kRow];
    if constexpr (((kClass.signature == kSignatures) || ...))
      register_plan_class<Definition<kClass.op>>(module, kClass);
  };
  [&]<std::size_t... kRows>(std::index_sequence<kRows...>) {
    (register_row(std::integral_constant<std::size_t, kRows>()), ...);
  }
  (std::make_index_sequence<kPlanClasses.size()>());
}

}  // namespace kvant::python
