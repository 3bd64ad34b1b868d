// The plans that read ranges off the data: RangePlan, and DynamicRangeQuantizePlan, which quantizes by them.
#include <array>
#include <cstdint>

#include "array.h"
#include "functions.h"
#include "kvant/dynamic_range.h"
#include "kvant/range.h"
#include "parameter.h"
#include "plan_classes.h"

namespace kvant::python {
namespace {

void finish_those_given(std::initializer_list<Output*> outputs) {
  for (Output* const each : outputs)
    if (each->object) each->finish();
}

struct RangeBuffers {
  void written() { finish_those_given({&min_out, &max_out, &max_abs_out}); }
  detail::RangeOperands operands() const { return {&input.view, &min_out.view, &max_out.view, &max_abs_out.view}; }

  Input input;
  Output min_out, max_out, max_abs_out;
};

struct DynamicRangeBuffers {
  void written() { finish_those_given({&output, &scale_out, &zero_point_out, &global_scale_out}); }
  detail::DynamicRangeQuantizeOperands operands() const {
    return {&input.view,          &output.view,        &scale_out.view,
            &zero_point_out.view, &global_scale.value, &global_scale_out.view};
  }

  Input input;
  Output output, scale_out, zero_point_out;
  ParameterInput global_scale;
  Output global_scale_out;
};

template <QuantizeKind kOp>
struct Definition;

template <>
struct Definition<QuantizeKind::range> {
  using Plan = AnyRangePlan;
  using Descriptor = RangeDescriptor;
  using Buffers = RangeBuffers;
  static constexpr std::array kSelect = {Parameter{"shape"},
                                         Parameter{"input", "float32"},
                                         Parameter{"scope", nullptr},
                                         Parameter{"axis", nullptr},
                                         Parameter{"group_size", nullptr},
                                         Parameter{"block_size", nullptr},
                                         Parameter{"accumulate", false}};
  static constexpr std::array kBuffers = {Parameter{"input"}, Parameter{"min_out", nullptr},
                                          Parameter{"max_out", nullptr}, Parameter{"max_abs_out", nullptr}};
  static constexpr bool kWorkspace = true;

  static Descriptor descriptor(const auto& arguments) {
    return {
        .shape = shape_from(arguments["shape"_name], "shape"),
        .scope = granularity_in(arguments),
        .accumulate = arguments["accumulate"_name],
        .input = float_kind(arguments["input"_name], "input").kind,
    };
  }

  static Buffers buffers(const Descriptor& /*descriptor*/, const auto& arguments) {
    return {plan_input(arguments["input"_name], "input"), plan_output(arguments["min_out"_name], "min_out"),
            plan_output(arguments["max_out"_name], "max_out"),
            plan_output(arguments["max_abs_out"_name], "max_abs_out")};
  }

  static std::int64_t work(const Descriptor& descriptor) { return element_count(descriptor.shape); }
};

template <>
struct Definition<QuantizeKind::dynamic_range_quantize> {
  using Plan = AnyDynamicRangeQuantizePlan;
  using Descriptor = DynamicRangeQuantizeDescriptor;
  using Buffers = DynamicRangeBuffers;
  static constexpr std::array kSelect = {Parameter{"shape"},
                                         Parameter{"input", "float32"},
                                         Parameter{"output", "int8"},
                                         Parameter{"mode", "symmetric"},
                                         Parameter{"scope", "token"},
                                         Parameter{"axis", nullptr},
                                         Parameter{"group_size", nullptr},
                                         Parameter{"block_size", nullptr},
                                         Parameter{"include_zero", false},
                                         Parameter{"q_min", nullptr},
                                         Parameter{"q_max", nullptr},
                                         Parameter{"scale_dtype", nullptr},
                                         Parameter{"mx_rule", "floor"},
                                         Parameter{"finds_global_scale", false},
                                         Parameter{"numerics", "exact"}};
  static constexpr std::array kBuffers = {Parameter{"input"},
                                          Parameter{"output"},
                                          Parameter{"scale_out"},
                                          Parameter{"zero_point_out", nullptr},
                                          Parameter{"global_scale", nullptr},
                                          Parameter{"global_scale_out", nullptr}};
  static constexpr bool kWorkspace = true;

  static Descriptor descriptor(const auto& arguments) {
    return {
        .shape = shape_from(arguments["shape"_name], "shape"),
        .scope = granularity_in(arguments),
        .mode = mode_of(arguments["mode"_name]),
        .include_zero = arguments["include_zero"_name],
        .q_min = optional_integer32(arguments["q_min"_name], "q_min"),
        .q_max = optional_integer32(arguments["q_max"_name], "q_max"),
        .scale = scale_dtype(arguments["scale_dtype"_name]),
        .mx_rule = mx_rule_of(arguments["mx_rule"_name]),
        .finds_global_scale = arguments["finds_global_scale"_name],
        .input = float_kind(arguments["input"_name], "input").kind,
        .output = code_kind(arguments["output"_name], "output").kind,
    };
  }

  static Buffers buffers(const Descriptor& descriptor, const auto& arguments) {
    Buffers made{plan_input(arguments["input"_name], "input"),
                 plan_output(arguments["output"_name], "output", Presence::required, *descriptor.output),
                 plan_output(arguments["scale_out"_name], "scale_out", Presence::required),
                 plan_output(arguments["zero_point_out"_name], "zero_point_out"),
                 plan_global_scale(arguments["global_scale"_name]),
                 plan_output(arguments["global_scale_out"_name], "global_scale_out")};
    if (!made.zero_point_out.object) made.zero_point_out.view.kind = ElementKind::s32;  // as no view would say
    return made;
  }

  static std::int64_t work(const Descriptor& descriptor) { return element_count(descriptor.shape); }
};

}  // namespace

void register_range_plans(py::module_& module) {
  register_plan_classes<Definition, Signature::range, Signature::dynamic_range>(module);
}

}  // namespace kvant::python
