// Streams of a GPU: what they say of themselves, what plans selected on them say, and everything that is refused
// before a kernel is launched.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvant/kvant.h"
#include "tests/cuda/same_on_device.h"
#include "tests/support/linear_case.h"
#include "tests/support/refusals.h"

namespace kvant::tests {
namespace {

// A problem in order of each family: descriptor, and arguments in host memory.
template <class PlanType, class DescriptorType, class ArgsType>
struct Problem {
  using Plan = PlanType;
  using Args = ArgsType;
  std::string_view name;
  DescriptorType descriptor;
  ArgsType args;
};

class Problems {
 public:
  Problem<ElementwisePlan, ElementwiseDescriptor, ElementwiseArgs> quantize() {
    return {"quantize", quantize_.descriptor, quantize_.args(quantize_.input.data(), nullptr, codes_.data())};
  }
  Problem<ElementwisePlan, ElementwiseDescriptor, ElementwiseArgs> gradient() {
    const ElementwiseCase& c = gradient_;
    return {"quantize_backward", c.descriptor, c.args(c.input.data(), c.gradient.data(), dx_.data())};
  }
  Problem<AnyDynamicRangeQuantizePlan, DynamicRangeQuantizeDescriptor, AnyDynamicRangeQuantizeArgs> dynamic_range() {
    return {"dynamic_range_quantize", dynamic_range_.descriptor, dynamic_range_.args(made_)};
  }
  Problem<AnyRangePlan, RangeDescriptor, AnyRangeArgs> range() {
    const RangeDescriptor d{.shape = {6, 10}, .scope = PerToken{}, .input = ElementKind::f32};
    const auto out = [](std::vector<float>& numbers) { return AnyMut{numbers.data(), ElementKind::f32, {6}, 0}; };
    return {"range", d, {dynamic_range_.args(made_).input, out(min_), out(max_), out(max_abs_)}};
  }
  Problem<AnyLinearPlan, W8A8LinearDescriptor, AnyLinearArgs> w8a8() {
    return {"w8a8_linear", linear_case_.descriptor(), linear_.args()};
  }
  Problem<AnyLinearPlan, SmoothQuantLinearDescriptor, AnyLinearArgs> smoothquant() {
    AnyLinearArgs args = linear_.args();
    args.act_scale = AnyParameter(AnyRef{});
    args.act_zero_point = AnyParameter(std::int32_t{0});
    return {"smoothquant_linear",
            {.max_rows = 3,
             .in_features = 8,
             .out_features = 4,
             .act_scale = 0.5,
             .weight = ElementKind::s8,
             .output = ElementKind::f32},
            args};
  }
  Problem<AnyLinearPlan, QuantizedLinearDescriptor, AnyLinearArgs> quantized() {
    AnyLinearArgs args = smoothquant().args;
    args.activation = {layer_.x.data(), ElementKind::f32, {3, 8}, 0};
    args.smooth = {layer_.smooth.data(), ElementKind::f32, {8}, 0};
    args.weight = {layer_.w.data(), ElementKind::s8, {4, 8}, 0};
    args.bias = layer_.bias(BiasForm::of_scales);
    return {"quantized_linear",
            {.max_rows = 3,
             .in_features = 8,
             .out_features = 4,
             .smooth = true,
             .input = ElementKind::f32,
             .weight = ElementKind::s8},
            args};
  }

  // Calls f with each of them.
  template <class F>
  void each(const F& f) {
    f(quantize());
    f(gradient());
    f(dynamic_range());
    f(range());
    f(w8a8());
    f(smoothquant());
    f(quantized());
  }

 private:
  static LinearCase tensors_everywhere() {
    LinearCase c(3, 8, 4, {}, CodeData::uniform, CodeData::uniform, 1);
    c.act_scale = {{0.5, 0.25, 0.125}, true};
    c.act_zero_point = {{1, 2, 3}, true};
    c.weight_scale = {{0.5, 0.25, 0.125, 1.0}, true};
    c.weight_zero_point = {{4, 5, 6, 7}, true};
    c.bias_kind = ElementKind::f32;
    c.bias = {1.0, 2.0, 3.0, 4.0};
    return c;
  }

  ElementwiseCase quantize_{describe(QuantizeKind::quantize, ElementKind::f32, ElementKind::s8, {6, 10}, PerToken{}), 1,
                            false};
  ElementwiseCase gradient_{
      describe(QuantizeKind::quantize_backward, ElementKind::f16, ElementKind::s8, {6, 10}, PerToken{}), 2, false};
  DynamicRangeCase dynamic_range_{problem({6, 10}, PerToken{}, kModes[1], ElementKind::f32, ElementKind::u8),
                                  Data::normal, 3};
  std::vector<std::byte> codes_ = std::vector<std::byte>(60), dx_ = std::vector<std::byte>(120);
  DynamicRangeResult made_ = dynamic_range_.room();
  std::vector<float> min_ = std::vector<float>(6), max_ = min_, max_abs_ = min_;
  LinearCase linear_case_ = tensors_everywhere();
  PreparedLinear linear_{linear_case_, {.isa = ArchSku::scalar}, {}};
  FloatLayer<float> layer_{3, 8, 4, Data::normal, 4};
};

Stream gpu() { return Stream::cuda(nullptr); }

bool says(const Status& status, std::string_view part) {
  return !status.ok() && status.message().find(part) != std::string_view::npos;
}

TEST(CudaStream, SaysWhatItIs) {
  const Stream stream = gpu();
  ASSERT_TRUE(stream.status().ok()) << stream.status().message();
  EXPECT_EQ(stream.backend(), BackendKind::cuda);
  const Stream copy = stream;
  EXPECT_EQ(copy.backend(), BackendKind::cuda);
  EXPECT_EQ(Stream::cpu(1).backend(), BackendKind::cpu);
  EXPECT_EQ(name(ArchSku::sm_80), "sm_80");
}

// Whether or not the preference says what the stream says anyway.
TEST(CudaStream, PlansSayWhatTheyAre) {
  for (const PlanPreference& preference :
       {PlanPreference{}, PlanPreference{.backend = BackendKind::cuda}, PlanPreference{.isa = ArchSku::sm_80}})
    Problems().each([&](const auto& p) {
      const auto plan = std::decay_t<decltype(p)>::Plan::select(gpu(), p.descriptor, preference);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      const KernelSku sku = plan->sku();
      EXPECT_EQ(sku.backend, BackendKind::cuda) << p.name;
      EXPECT_EQ(sku.arch, ArchSku::sm_80) << p.name;
      EXPECT_TRUE(sku.name().starts_with(p.name)) << sku.name();
      EXPECT_TRUE(sku.name().ends_with("__sm_80")) << sku.name();
      const auto cpu = std::decay_t<decltype(p)>::Plan::select(Stream::cpu(1), p.descriptor);
      ASSERT_TRUE(cpu.ok()) << cpu.status().message();
      EXPECT_EQ(plan->precision_guarantee(), cpu->precision_guarantee()) << p.name;
      EXPECT_EQ(cpu->sku().backend, BackendKind::cpu) << p.name;
    });
}

// And in order the problems are: each runs, to the scalar plan's bits.
TEST(CudaStream, RunsEveryFamily) {
  Problems().each([](const auto& p) {
    EXPECT_TRUE(same_on_device<typename std::decay_t<decltype(p)>::Plan>(p.descriptor, p.args, std::string(p.name)));
  });
}

TEST(CudaStream, PlansBelongToTheirBackend) {
  Problems().each([](const auto& p) {
    using Plan = typename std::decay_t<decltype(p)>::Plan;
    const auto on_cpu = Plan::select(Stream::cpu(1), p.descriptor), on_gpu = Plan::select(gpu(), p.descriptor);
    ASSERT_TRUE(on_cpu.ok()) << on_cpu.status().message();
    ASSERT_TRUE(on_gpu.ok()) << on_gpu.status().message();
    // Neither may look at the arguments of the other's memory.
    std::vector<std::byte> scratch(on_cpu->workspace_size());
    const Status cpu_plan = on_cpu->run(gpu(), {scratch.data(), scratch.size()}, p.args);
    EXPECT_TRUE(says(cpu_plan, "the plan was selected for cpu, but the stream is on cuda"))
        << p.name << ": " << cpu_plan.message();
    DeviceCopies device({});
    const Status gpu_plan = on_gpu->run(Stream::cpu(1), device.scratch(on_gpu->workspace_size()), device.put(p.args));
    EXPECT_TRUE(says(gpu_plan, "the plan was selected for cuda, but the stream is on cpu"))
        << p.name << ": " << gpu_plan.message();
  });
}

#if !defined(KVANT_TESTS_ON_GPU)
// Kernels go to the current device, so it must be the stream's.
TEST(CudaStream, BelongsToItsDevice) {
  Problems().each([](const auto& p) {
    using Plan = typename std::decay_t<decltype(p)>::Plan;
    const Stream stream = gpu();
    const auto plan = Plan::select(stream, p.descriptor);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const simt::ScopedSettings settings({.device = 3});
    DeviceCopies device({});
    const Status status = plan->run(stream, device.scratch(plan->workspace_size()), device.put(p.args));
    EXPECT_EQ(status.code(), StatusCode::InvalidProblem) << p.name;
    EXPECT_TRUE(says(status, "the stream belongs to device 0, the current device is 3")) << p.name << status.message();
  });
}
#endif

TEST(CudaStream, PreferencesThatDisagreeAreRefused) {
  Problems().each([](const auto& p) {
    using Plan = typename std::decay_t<decltype(p)>::Plan;
    const auto selects = [&](const Stream& stream, const PlanPreference& preference) {
      return Plan::select(stream, p.descriptor, preference).status();
    };
    const Status other_backend = selects(gpu(), {.backend = BackendKind::cpu});
    EXPECT_TRUE(says(other_backend, "cpu") && says(other_backend, "cuda")) << p.name << other_backend.message();
    const Status no_gpu = selects(Stream::cpu(1), {.backend = BackendKind::cuda});
    EXPECT_TRUE(says(no_gpu, "cpu") && says(no_gpu, "cuda")) << p.name << no_gpu.message();
    for (const ArchSku isa : {ArchSku::scalar, ArchSku::avx2})
      EXPECT_TRUE(says(selects(gpu(), {.isa = isa}), name(isa))) << p.name << name(isa);
    EXPECT_TRUE(says(selects(Stream::cpu(1), {.isa = ArchSku::sm_80}), "sm_80")) << p.name;
  });
}

// ---- alignment ----

// A GPU cannot load an element from an address that is no multiple of its size; the CPU's kernels can.
constexpr StatusCode kMisaligned = StatusCode::MisalignedOperand;

template <class P>
void expect_alignment(const P& p, std::string_view argument, std::string_view alignment,
                      const std::function<void(typename P::Args&)>& misalign) {
  const auto plan = P::Plan::select(gpu(), p.descriptor);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  DeviceCopies device({});
  typename P::Args args = device.put(p.args);
  const Workspace scratch = device.scratch(plan->workspace_size());
  ASSERT_TRUE(plan->can_implement(args).ok()) << plan->can_implement(args).message();
  misalign(args);
  const std::string argument_text(argument), alignment_text(alignment);
  for (const Status& status : {plan->can_implement(args), plan->run(gpu(), scratch, args)})
    EXPECT_TRUE(refused(status, kMisaligned, {argument_text, alignment_text})) << p.name << " " << argument;
}

template <class View>
void by_one_byte(View& view) {
  // The address is never used, so it may be beside the buffer.
  view.data = reinterpret_cast<decltype(view.data)>(reinterpret_cast<std::uintptr_t>(view.data) + 1);
}
void by_one_byte(AnyParameter& parameter) {
  AnyRef view{parameter.data(), parameter.kind(), parameter.shape(), parameter.row_stride()};
  by_one_byte(view);
  parameter = AnyParameter(view);
}

TEST(CudaStream, AddressesMustSuitTheirElements) {
  Problems problems;
  const auto quantize = problems.quantize();
  expect_alignment(quantize, "input", "4", [](auto& args) { by_one_byte(args.input); });
  expect_alignment(quantize, "scale", "4", [](auto& args) { by_one_byte(args.scale); });
  expect_alignment(quantize, "zero_point", "4", [](auto& args) { by_one_byte(args.zero_point); });
  const auto gradient = problems.gradient();
  expect_alignment(gradient, "input", "2", [](auto& args) { by_one_byte(args.input); });
  expect_alignment(gradient, "grad_output", "2", [](auto& args) { by_one_byte(args.grad_output); });
  expect_alignment(gradient, "grad_input", "2", [](auto& args) { by_one_byte(args.output); });
  const auto dynamic_range = problems.dynamic_range();
  expect_alignment(dynamic_range, "input", "4", [](auto& args) { by_one_byte(args.input); });
  expect_alignment(dynamic_range, "scale_out", "4", [](auto& args) { by_one_byte(args.scale_out); });
  expect_alignment(dynamic_range, "zero_point_out", "4", [](auto& args) { by_one_byte(args.zero_point_out); });
  const auto range = problems.range();
  expect_alignment(range, "input", "4", [](auto& args) { by_one_byte(args.input); });
  expect_alignment(range, "min_out", "4", [](auto& args) { by_one_byte(args.min_out); });
  expect_alignment(range, "max_out", "4", [](auto& args) { by_one_byte(args.max_out); });
  expect_alignment(range, "max_abs_out", "4", [](auto& args) { by_one_byte(args.max_abs_out); });
  const auto w8a8 = problems.w8a8();
  expect_alignment(w8a8, "act_scale", "4", [](auto& args) { by_one_byte(args.act_scale); });
  expect_alignment(w8a8, "act_zero_point", "4", [](auto& args) { by_one_byte(args.act_zero_point); });
  expect_alignment(w8a8, "weight_scale", "4", [](auto& args) { by_one_byte(args.weight_scale); });
  expect_alignment(w8a8, "weight_zero_point", "4", [](auto& args) { by_one_byte(args.weight_zero_point); });
  expect_alignment(w8a8, "bias", "4", [](auto& args) { by_one_byte(args.bias); });
  expect_alignment(w8a8, "output", "4", [](auto& args) { by_one_byte(args.output); });
  const auto quantized = problems.quantized();
  expect_alignment(quantized, "input", "4", [](auto& args) { by_one_byte(args.activation); });
  expect_alignment(quantized, "smooth", "4", [](auto& args) { by_one_byte(args.smooth); });
}

// ---- what is checked as on the CPU ----

// The same sentence from both, and nothing written.
template <class P>
void expect_refused_alike(const P& p, const std::function<void(typename P::Args&)>& spoil, std::string_view what,
                          Numerics numerics = Numerics::exact) {
  const auto cpu = P::Plan::select(Stream::cpu(1), p.descriptor, {.numerics = numerics});
  const auto device_plan = P::Plan::select(gpu(), p.descriptor, {.numerics = numerics});
  ASSERT_TRUE(cpu.ok()) << cpu.status().message();
  ASSERT_TRUE(device_plan.ok()) << device_plan.status().message();
  typename P::Args host = p.args;
  const Contents before = contents_of(outputs_of(p.args));
  spoil(host);
  const Status wanted = cpu->can_implement(host);
  ASSERT_FALSE(wanted.ok()) << p.name << " accepts " << what << " on the CPU";
  DeviceCopies device({});
  typename P::Args there = device.put(p.args);
  spoil(there);
  const Workspace scratch = device.scratch(device_plan->workspace_size());
  for (const Status& status : {device_plan->can_implement(there), device_plan->run(gpu(), scratch, there)}) {
    EXPECT_EQ(status.code(), wanted.code()) << p.name << " " << what << ": " << status.message();
    EXPECT_EQ(status.message(), wanted.message()) << p.name << " " << what;
  }
  EXPECT_TRUE(device.fetch()) << p.name << " " << what;
  EXPECT_EQ(contents_of(outputs_of(p.args)), before) << p.name << " " << what;
}

TEST(CudaStream, NumbersAreCheckedAsOnTheCpu) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  Problems problems;
  auto quantize = problems.quantize();
  quantize.descriptor.granularity = PerTensor{};
  quantize.args.scale = AnyParameter(0.5f);
  quantize.args.zero_point = AnyParameter(std::int32_t{0});
  const auto w8a8 = problems.w8a8();
  for (const float scale : {0.0f, -1.0f, kInf, NAN}) {
    expect_refused_alike(
        quantize, [=](auto& args) { args.scale = AnyParameter(scale); }, "a bad scale");
    expect_refused_alike(
        w8a8, [=](auto& args) { args.act_scale = AnyParameter(scale); }, "a bad act_scale");
    expect_refused_alike(
        w8a8, [=](auto& args) { args.weight_scale = AnyParameter(scale); }, "a bad weight_scale");
  }
  expect_refused_alike(
      quantize, [](auto& args) { args.scale = AnyParameter(1e-40f); }, "a scale without reciprocal",
      Numerics::reciprocal);
  expect_refused_alike(
      quantize, [](auto& args) { args.scale = AnyParameter(0.5); }, "an f64 scale");
  for (const std::int32_t zero_point : {(1 << 23) + 1, -(1 << 23) - 1}) {
    const AnyParameter number(zero_point);
    expect_refused_alike(
        quantize, [&](auto& args) { args.zero_point = number; }, "a zero point too far");
    expect_refused_alike(
        w8a8, [&](auto& args) { args.act_zero_point = number; }, "an act_zero_point too far");
    expect_refused_alike(
        w8a8, [&](auto& args) { args.weight_zero_point = number; }, "a weight_zero_point too far");
  }
}

TEST(CudaStream, ViewsAreCheckedAsOnTheCpu) {
  Problems problems;
  problems.each([](const auto& p) {
    using Args = typename std::decay_t<decltype(p)>::Args;
    if constexpr (!std::is_same_v<Args, AnyRangeArgs>) {
      expect_refused_alike(
          p, [](auto& args) { args.output.data = nullptr; }, "no output");
      expect_refused_alike(
          p,
          [](auto& args) {
            args.output.shape = {6, 11};
          },
          "another shape");
      expect_refused_alike(
          p, [](auto& args) { args.output.row_stride = 2; }, "a stride below the row's length");
      expect_refused_alike(
          p, [](auto& args) { args.output.kind = ElementKind::s32; }, "another kind");
    }
    if constexpr (std::is_same_v<Args, AnyLinearArgs>) {
      expect_refused_alike(
          p, [](auto& args) { args.weight = {}; }, "no weight");
      expect_refused_alike(
          p, [](auto& args) { args.bias.shape = {5}; }, "a bias of another length");
      expect_refused_alike(
          p, [](auto& args) { args.output.data = const_cast<void*>(args.weight_scale.data()); },
          "an output over its scales");
    } else {
      expect_refused_alike(
          p, [](auto& args) { args.input.data = nullptr; }, "no input");
      expect_refused_alike(
          p, [](auto& args) { args.input.kind = ElementKind::f64; }, "another kind of input");
    }
  });
  expect_refused_alike(
      problems.dynamic_range(), [](auto& args) { args.output.data = const_cast<void*>(args.input.data); },
      "an output over its input");
  expect_refused_alike(
      problems.range(), [](auto& args) { args.max_out.data = args.min_out.data; }, "an output over another");
}

TEST(CudaStream, WorkspacesThatAreTooSmallAreRefused) {
  std::vector<std::string_view> tried;
  Problems().each([&](const auto& p) {
    const auto plan = std::decay_t<decltype(p)>::Plan::select(gpu(), p.descriptor);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const std::size_t needed = plan->workspace_size();
    if (needed == 0) return;
    tried.push_back(p.name);
    DeviceCopies device({});
    const auto args = device.put(p.args);
    const Workspace scratch = device.scratch(needed);
    EXPECT_TRUE(refused(plan->run(gpu(), {scratch.data, needed - 1}, args), StatusCode::WorkspaceTooSmall,
                        {p.name, std::to_string(needed), std::to_string(needed - 1)}));
    EXPECT_TRUE(refused(plan->run(gpu(), {nullptr, needed}, args), StatusCode::InvalidProblem, {p.name, "workspace"}));
    EXPECT_TRUE(plan->run(gpu(), scratch, args).ok());
  });
  // It has to keep the codes that it makes.
  EXPECT_NE(std::find(tried.begin(), tried.end(), "quantized_linear"), tried.end());
}

// ---- what there is on the CPU only ----

TEST(CudaStream, IsRefusedByWhatRunsOnTheCpuOnly) {
  constexpr StatusCode kUnsupported = StatusCode::Unsupported;
  const std::vector<std::int8_t> w(32, 1);
  const TensorRef<std::int8_t> weight(w.data(), {4, 8});
  EXPECT_TRUE(refused(PackedWeight::pack(gpu(), weight).status(), kUnsupported, {"cuda"}));

  std::vector<float> x(32, 1.0f), s(8, 1.0f), norm(8, 1.0f);
  auto observer = Observer::create({});
  ASSERT_TRUE(observer.ok()) << observer.status().message();
  EXPECT_TRUE(
      refused(observer->observe(gpu(), TensorRef<float>(x.data(), {4, 8})), kUnsupported, {"observer", "cuda"}));
  // The refused batch is not counted, and the observer goes on.
  EXPECT_EQ(observer->observed(), 0);
  EXPECT_TRUE(observer->observe(Stream::cpu(1), TensorRef<float>(x.data(), {4, 8})).ok());
  EXPECT_EQ(observer->observed(), 32);

  const AnyRef weights[] = {TensorRef<float>(x.data(), {4, 8})};
  const AnyMut folded[] = {TensorMut<float>(x.data(), {4, 8})};
  EXPECT_TRUE(refused(smooth_scales(gpu(), {norm.data(), {8}}, weights, 0.5, {s.data(), {8}}), kUnsupported,
                      {"smooth_scales", "cuda"}));
  std::fill(s.begin(), s.end(), 2.0f);
  EXPECT_TRUE(refused(apply_smoothing(gpu(), {s.data(), {8}}, TensorMut<float>(norm.data(), {8}), {}, folded),
                      kUnsupported, {"apply_smoothing", "cuda"}));
  EXPECT_EQ(norm, std::vector<float>(8, 1.0f));
  EXPECT_EQ(x, std::vector<float>(32, 1.0f));

  const F32LinearDescriptor layer{.max_rows = 4, .in_features = 8, .out_features = 4, .weight = ElementKind::f32};
  EXPECT_TRUE(refused(AnyF32LinearPlan::select(gpu(), layer).status(), kUnsupported, {"f32_linear", "cpu", "cuda"}));
  EXPECT_TRUE(refused(PackedF32Weight::pack(gpu(), weights[0]).status(), kUnsupported, {"packed_f32_weight", "cuda"}));
  const auto plan = AnyF32LinearPlan::select(Stream::cpu(1), layer);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_TRUE(refused(plan->run(gpu(), {}, AnyF32LinearArgs()), kUnsupported, {"f32_linear", "cpu", "cuda"}));
}

TEST(CudaStream, PackedWeightsAreTheCpusOnly) {
  const std::vector<std::int8_t> w(32, 1);
  const auto packed = PackedWeight::pack(Stream::cpu(1), TensorRef<std::int8_t>(w.data(), {4, 8}));
  ASSERT_TRUE(packed.ok()) << packed.status().message();
  Problems problems;
  const auto p = problems.w8a8();
  const auto plan = AnyLinearPlan::select(gpu(), p.descriptor);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  DeviceCopies device({});
  AnyLinearArgs args = device.put(p.args);
  args.weight = {};
  args.packed_weight = &*packed;
  EXPECT_TRUE(refused(plan->can_implement(args), StatusCode::Unsupported, {"w8a8_linear", "packed_weight"}));
}

}  // namespace
}  // namespace kvant::tests
