// The plans of linear layers. Their buffers are those of one list, of which each operator takes a part.
#include <array>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "array.h"
#include "functions.h"
#include "kvant/linear.h"
#include "packed_weight.h"
#include "parameter.h"
#include "plan_classes.h"

namespace kvant::python {
namespace {

struct LinearBuffers {
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
            &output.view,
            output_scale,
            output_zero_point};
  }

  Input activation, smooth;
  const PackedWeight* packed;
  Input weight;
  ParameterInput weight_scale, weight_zero_point;
  Input bias;
  Output output;
  std::optional<ParameterInput> act_scale, act_zero_point;
  std::optional<float> output_scale = std::nullopt;
  std::int32_t output_zero_point = 0;
};

constexpr std::array kFeatures = {Parameter{"max_rows"}, Parameter{"in_features"}, Parameter{"out_features"}};
constexpr std::array kKinds = {Parameter{"activation", "int8"}, Parameter{"weight", "int8"},
                               Parameter{"output", "float32"}};
constexpr std::array kWeightZeroPointAndBias = {Parameter{"weight_zero_point", 0}, Parameter{"bias", nullptr}};

template <QuantizeKind kOp>
struct OperatorOf;

template <>
struct OperatorOf<QuantizeKind::w8a8_linear> {
  using Descriptor = W8A8LinearDescriptor;
  static constexpr auto kActivation = "activation"_name;
  static constexpr auto kSelect = joined(kFeatures, kKinds);
  static constexpr auto kBuffers =
      joined(joined(std::array{Parameter{"activation"}, Parameter{"act_scale"}, Parameter{"weight"},
                               Parameter{"weight_scale"}, Parameter{"output"}, Parameter{"act_zero_point", 0}},
                    kWeightZeroPointAndBias),
             std::array{Parameter{"output_scale", nullptr}, Parameter{"output_zero_point", 0}});

  static void fill(Descriptor& descriptor, const auto& arguments) {
    descriptor.activation = code_kind(arguments["activation"_name], "activation").kind;
    descriptor.output = linear_output_kind(arguments["output"_name], "output").kind;
  }
  static ElementKind output(const Descriptor& descriptor) { return *descriptor.output; }
};

template <>
struct OperatorOf<QuantizeKind::smoothquant_linear> {
  using Descriptor = SmoothQuantLinearDescriptor;
  static constexpr auto kActivation = "activation"_name;
  static constexpr auto kSelect =
      joined(joined(kFeatures, std::array{Parameter{"act_scale"}, Parameter{"act_zero_point", 0}}), kKinds);
  static constexpr auto kBuffers =
      joined(std::array{Parameter{"activation"}, Parameter{"weight"}, Parameter{"weight_scale"}, Parameter{"output"}},
             kWeightZeroPointAndBias);

  static void fill(Descriptor& descriptor, const auto& arguments) {
    descriptor.act_scale = number(arguments["act_scale"_name], "act_scale");
    descriptor.act_zero_point = integer32(arguments["act_zero_point"_name], "act_zero_point");
    descriptor.activation = code_kind(arguments["activation"_name], "activation").kind;
    descriptor.output = float_kind(arguments["output"_name], "output").kind;
  }
  static ElementKind output(const Descriptor& descriptor) { return *descriptor.output; }
};

template <>
struct OperatorOf<QuantizeKind::quantized_linear> {
  using Descriptor = QuantizedLinearDescriptor;
  static constexpr auto kActivation = "input"_name;
  static constexpr auto kSelect =
      joined(kFeatures,
             std::array{Parameter{"input", "float32"}, Parameter{"weight", "int8"}, Parameter{"mode", "symmetric"},
                        Parameter{"include_zero", false}, Parameter{"act_scale", nullptr},
                        Parameter{"act_zero_point", 0}, Parameter{"smooth", false}, Parameter{"numerics", "exact"}});
  static constexpr auto kBuffers =
      joined(joined(std::array{Parameter{"input"}, Parameter{"weight"}, Parameter{"weight_scale"}, Parameter{"output"}},
                    kWeightZeroPointAndBias),
             std::array{Parameter{"smooth", nullptr}});

  static void fill(Descriptor& descriptor, const auto& arguments) {
    descriptor.mode = mode_of(arguments["mode"_name]);
    descriptor.include_zero = arguments["include_zero"_name];
    if (!arguments["act_scale"_name].is_none()) descriptor.act_scale = number(arguments["act_scale"_name], "act_scale");
    descriptor.act_zero_point = integer32(arguments["act_zero_point"_name], "act_zero_point");
    descriptor.smooth = arguments["smooth"_name];
    descriptor.input = float_kind(arguments["input"_name], "input").kind;
  }
  static ElementKind output(const Descriptor& descriptor) { return *descriptor.input; }
};

template <QuantizeKind kOp>
struct Definition : OperatorOf<kOp> {
  using Plan = AnyLinearPlan;
  using Descriptor = typename OperatorOf<kOp>::Descriptor;
  using Buffers = LinearBuffers;
  static constexpr bool kWorkspace = true;

  static Descriptor descriptor(const auto& arguments) {
    Descriptor made;
    made.max_rows = integer(arguments["max_rows"_name], "max_rows");
    made.in_features = integer(arguments["in_features"_name], "in_features");
    made.out_features = integer(arguments["out_features"_name], "out_features");
    OperatorOf<kOp>::fill(made, arguments);
    made.weight = code_kind(arguments["weight"_name], "weight").kind;
    return made;
  }

  template <class Arguments>
  static Buffers buffers(const Descriptor& descriptor, const Arguments& arguments) {
    const ElementKind scales = scale_kind(OperatorOf<kOp>::output(descriptor));
    const PackedWeight* const packed = packed_weight_from(arguments["weight"_name]);
    Buffers made{
        plan_input(arguments[OperatorOf<kOp>::kActivation], OperatorOf<kOp>::kActivation.kText),
        plan_input(arguments.or_none("smooth"_name), "smooth"),
        packed,
        packed == nullptr ? plan_input(arguments["weight"_name], "weight") : Input{},
        plan_scale(arguments["weight_scale"_name], "weight_scale", scales),
        plan_zero_point(arguments["weight_zero_point"_name], "weight_zero_point"),
        plan_input(arguments["bias"_name], "bias"),
        plan_output(arguments["output"_name], "output", Presence::required),
        std::nullopt,
        std::nullopt,
    };
    if constexpr (Arguments::has("act_scale"_name)) {
      made.act_scale = plan_scale(arguments["act_scale"_name], "act_scale", scales);
      made.act_zero_point = plan_zero_point(arguments["act_zero_point"_name], "act_zero_point");
    }
    if constexpr (Arguments::has("output_scale"_name)) {
      made.output_scale = optional_number32(arguments["output_scale"_name], "output_scale");
      made.output_zero_point = integer32(arguments["output_zero_point"_name], "output_zero_point");
    }
    return made;
  }

  static std::int64_t work(const Descriptor& descriptor) { return descriptor.in_features * descriptor.out_features; }
};

}  // namespace

void register_linear_plans(py::module_& module) { register_plan_classes<Definition, Signature::linear>(module); }

}  // namespace kvant::python
