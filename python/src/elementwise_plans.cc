// The plans of the element-wise family. Its operators differ in two things: whether the forward pass goes from floats
// to codes, back, or stays in floats, and whether they are the backward pass.
#include <array>
#include <cstdint>
#include <type_traits>

#include "array.h"
#include "functions.h"
#include "kvant/elementwise.h"
#include "parameter.h"
#include "plan_classes.h"

namespace kvant::python {
namespace {

constexpr bool is_backward(QuantizeKind op) { return elementwise_operator(op).backward_of.has_value(); }

constexpr std::array kScope = {Parameter{"scope", nullptr}, Parameter{"axis", nullptr},
                               Parameter{"group_size", nullptr}, Parameter{"block_size", nullptr}};
constexpr std::array kRounding = {Parameter{"saturate", true}, Parameter{"numerics", "exact"}};

constexpr auto kFloatsToCodes =
    joined(joined(std::array{Parameter{"shape"}, Parameter{"input", "float32"}, Parameter{"output", "int8"}}, kScope),
           joined(std::array{Parameter{"q_min", nullptr}, Parameter{"q_max", nullptr}}, kRounding));
constexpr auto kCodesToFloats =
    joined(std::array{Parameter{"shape"}, Parameter{"input", "int8"}, Parameter{"output", "float32"}}, kScope);
constexpr auto kFloatsToFloats =
    joined(joined(std::array{Parameter{"shape"}, Parameter{"element", "float32"}}, kScope),
           joined(std::array{Parameter{"q_min", nullptr}, Parameter{"q_max", nullptr}, Parameter{"grid", nullptr}},
                  kRounding));

constexpr std::array kForward = {Parameter{"input"}, Parameter{"output"}, Parameter{"scale"},
                                 Parameter{"zero_point", 0}, Parameter{"global_scale", nullptr}};
constexpr std::array kBackward = {Parameter{"grad_output"},   Parameter{"input"},
                                  Parameter{"grad_input"},    Parameter{"scale"},
                                  Parameter{"zero_point", 0}, Parameter{"global_scale", nullptr}};
// dequantize is linear in the codes: its gradient asks neither for them nor for the zero point.
constexpr std::array kBackwardOfLinear = {Parameter{"grad_output"}, Parameter{"grad_input"}, Parameter{"scale"},
                                          Parameter{"global_scale", nullptr}};

template <Signature kSignature>
constexpr auto select_parameters() {
  if constexpr (kSignature == Signature::floats_to_codes)
    return kFloatsToCodes;
  else if constexpr (kSignature == Signature::codes_to_floats)
    return kCodesToFloats;
  else
    return kFloatsToFloats;
}

template <QuantizeKind kOp>
constexpr auto buffer_parameters() {
  if constexpr (!elementwise_operator(kOp).reads_input)
    return kBackwardOfLinear;
  else if constexpr (is_backward(kOp))
    return kBackward;
  else
    return kForward;
}

template <QuantizeKind kOp>
constexpr auto output_name() {
  if constexpr (is_backward(kOp))
    return "grad_input"_name;
  else
    return "output"_name;
}

// The buffers of one call; None where the operator has none.
struct ElementwiseBuffers {
  void written() { output.finish(); }
  detail::ElementwiseOperands operands() const {
    return {&input.view, &grad_output.view, &output.view, &scales.value, &zero_points.value, &global_scale.value};
  }

  Input input;
  Input grad_output;
  Output output;
  ParameterInput scales;
  ParameterInput zero_points;
  ParameterInput global_scale;
};

template <QuantizeKind kOp>
struct Definition {
  static constexpr Signature kSignature = plan_class_of(kOp).signature;
  using Plan = ElementwisePlan;
  using Descriptor = ElementwiseDescriptor;
  using Buffers = ElementwiseBuffers;
  static constexpr auto kSelect = select_parameters<kSignature>();
  static constexpr auto kBuffers = buffer_parameters<kOp>();
  static constexpr auto kOutput = output_name<kOp>();
  static constexpr bool kWorkspace = false;

  static Descriptor descriptor(const auto& arguments) {
    Descriptor made{.op = kOp};
    if constexpr (kSignature == Signature::floats_to_codes) {
      made.input = float_kind(arguments["input"_name], "input").kind;
      made.output = code_kind(arguments["output"_name], "output").kind;
    } else if constexpr (kSignature == Signature::codes_to_floats) {
      made.input = code_kind(arguments["input"_name], "input").kind;
      made.output = float_kind(arguments["output"_name], "output").kind;
    } else {
      made.input = made.output = float_kind(arguments["element"_name], "element").kind;
    }
    made.shape = shape_from(arguments["shape"_name], "shape");
    made.granularity = granularity_in(arguments);
    made.q_min = optional_integer32(arguments.or_none("q_min"_name), "q_min");
    made.q_max = optional_integer32(arguments.or_none("q_max"_name), "q_max");
    made.grid = grid_kind(arguments.or_none("grid"_name));
    if constexpr (std::remove_cvref_t<decltype(arguments)>::has("saturate"_name))
      made.saturate = arguments["saturate"_name];
    return made;
  }

  static Buffers buffers(const Descriptor& descriptor, const auto& arguments) {
    const ElementKind written = is_backward(kOp) ? descriptor.input : descriptor.output;
    return {plan_input(arguments.or_none("input"_name), "input", descriptor.input),
            plan_input(arguments.or_none("grad_output"_name), "grad_output"),
            plan_output(arguments[kOutput], kOutput.kText, Presence::required, written),
            plan_scale(arguments["scale"_name], "scale", scale_kind_of(descriptor)),
            plan_zero_point(arguments.or_none("zero_point"_name), "zero_point"),
            plan_global_scale(arguments["global_scale"_name])};
  }

  static std::int64_t work(const Descriptor& descriptor) { return element_count(descriptor.shape); }
};

}  // namespace

void register_elementwise_plans(py::module_& module) {
  register_plan_classes<Definition, Signature::floats_to_codes, Signature::codes_to_floats,
                        Signature::floats_to_floats>(module);
}

}  // namespace kvant::python
