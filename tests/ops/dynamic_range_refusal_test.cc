// Every way in which dynamic-range plans say no, with the code and the numbers, and the neighbouring cases that they
// must not refuse. A refused run() leaves every byte as it was.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvant/kvant.h"
#include "tests/support/plan_refusals.h"
#include "tests/support/tables.h"

namespace kvant::tests {
namespace {

constexpr DynamicRangeMode kModes[] = {DynamicRangeMode::symmetric, DynamicRangeMode::asymmetric};

// A problem that is in order, with all of its views in one buffer. A test changes one thing and says what must be
// refused. Places are far enough apart that moving one by a few bytes meets no other.
struct Problem {
  static constexpr std::size_t kInput = 256, kOutput = 1024, kScale = 1536, kZeroPoint = 2048;

  DynamicRangeQuantizeDescriptor descriptor;
  PlanPreference preference;
  std::vector<std::byte> memory = std::vector<std::byte>(4096, std::byte{0x3C});
  AnyDynamicRangeQuantizeArgs args;

  explicit Problem(const Granularity& scope = PerToken{}, DynamicRangeMode mode = DynamicRangeMode::asymmetric,
                   const Shape& shape = {3, 4}, ElementKind in = ElementKind::f32, ElementKind out = ElementKind::s8) {
    descriptor.shape = shape;
    descriptor.scope = scope;
    descriptor.mode = mode;
    descriptor.input = in;
    descriptor.output = out;
    const Shape parameters = parameter_shape(shape, scope).value();
    args.input = {memory.data() + kInput, in, shape, 0};
    args.output = {memory.data() + kOutput, out, shape, 0};
    args.scale_out = {memory.data() + kScale, scale_kind(in), parameters, 0};
    args.zero_point_out = {memory.data() + kZeroPoint, ElementKind::s32, parameters, 0};
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  Result<AnyDynamicRangeQuantizePlan> select() const {
    return AnyDynamicRangeQuantizePlan::select(Stream::cpu(1), descriptor, preference);
  }
  Status selects() const { return select().status(); }

  testing::AssertionResult refuses(StatusCode code, Parts parts) const {
    const std::string prefix = "dynamic_range_quantize_per_" + std::string(name(descriptor.scope.kind())) + ": ";
    return tests::refuses(select(), args, memory, code, parts, prefix);
  }
  testing::AssertionResult invalid(Parts parts) const { return refuses(StatusCode::InvalidProblem, parts); }
  testing::AssertionResult unsupported(Parts parts) const { return refuses(StatusCode::Unsupported, parts); }

  testing::AssertionResult runs() const { return tests::runs(select(), args); }
};

const std::vector<Granularity>& scopes() {
  static const std::vector<Granularity> all = {PerTensor{}, PerChannel{1}, PerToken{}, PerGroup{1, 2}, PerBlock{2, 3}};
  return all;
}

// The baseline of everything below: what is not changed is not refused.
TEST(DynamicRangeBaseline, EverythingRuns) {
  for (const Granularity& scope : scopes())
    for (const DynamicRangeMode mode : kModes)
      for (const ElementKind in : kFloatKinds)
        for (const ElementKind out : kCodeKinds)
          if (mode == DynamicRangeMode::symmetric || !has_float_grid(out)) {
            EXPECT_TRUE(Problem(scope, mode, {3, 4}, in, out).runs()) << name(in) << " " << name(out);
          }
}

// ---- select(): shapes and scopes ----

TEST(DynamicRangeSelect, Shapes) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  const std::pair<Shape, std::string> bad[] = {{{2, -3}, "size -3 of dimension 1 in shape [2, -3] is negative"},
                                               {{-1, 0}, "size -1 of dimension 0 in shape [-1, 0] is negative"},
                                               {{1, 1, 1, 1, 1, 1, 1, 1, 1}, "rank 9 is above 8"},
                                               {{kHuge, kHuge}, "[1099511627776, 1099511627776]"},
                                               {{0, kHuge, kHuge}, "[0, 1099511627776, 1099511627776]"},
                                               {{std::int64_t{1} << 60, 1}, "[1152921504606846976, 1]"}};
  for (const auto& [shape, part] : bad)
    for (const Granularity& scope : scopes()) {
      Problem p(scope);
      p.descriptor.shape = shape;
      const std::string prefix = "dynamic_range_quantize_per_" + std::string(name(scope.kind())) + ": ";
      EXPECT_TRUE(invalid(p.selects(), {prefix, part}));
    }
  EXPECT_TRUE(Problem(PerToken{}, DynamicRangeMode::symmetric, {1, 1, 2, 1, 1, 1, 1, 3}).runs());
}

TEST(DynamicRangeSelect, Axes) {
  for (const int axis : {2, -3, 1000, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
    const std::string part = "axis " + std::to_string(axis);
    Problem p;
    p.descriptor.scope = PerChannel{axis};
    EXPECT_TRUE(invalid(p.selects(), {"dynamic_range_quantize_per_channel: ", part, "[3, 4]", "rank 2"}));
    p.descriptor.scope = PerGroup{axis, 2};
    EXPECT_TRUE(invalid(p.selects(), {"dynamic_range_quantize_per_group: ", part, "[3, 4]", "rank 2"}));
  }
  for (const int axis : {-2, -1, 0, 1}) {
    EXPECT_TRUE(Problem(PerChannel{axis}).runs());
    EXPECT_TRUE(Problem(PerGroup{axis, 2}).runs());
  }
  Problem p(PerTensor{});
  p.descriptor.shape = Shape();
  for (const Granularity& scope : std::vector<Granularity>{PerChannel{0}, PerGroup{0, 1}, PerToken{}, PerBlock{1, 1}}) {
    p.descriptor.scope = scope;
    EXPECT_TRUE(invalid(p.selects(), {"shape []"}));
  }
  EXPECT_TRUE(Problem(PerTensor{}, DynamicRangeMode::asymmetric, Shape()).runs());
}

TEST(DynamicRangeSelect, GroupSizes) {
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    Problem p;
    p.descriptor.scope = PerGroup{1, size};
    EXPECT_TRUE(
        invalid(p.selects(), {"dynamic_range_quantize_per_group: ", "group_size " + std::to_string(size), "positive"}));
  }
  for (const std::int64_t size : {std::int64_t{1}, std::int64_t{3}, std::numeric_limits<std::int64_t>::max()})
    EXPECT_TRUE(Problem(PerGroup{1, size}).runs());
}

TEST(DynamicRangeSelect, Blocks) {
  const std::string prefix = "dynamic_range_quantize_per_block: ";
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    Problem p;
    p.descriptor.scope = PerBlock{size, 2};
    EXPECT_TRUE(invalid(p.selects(), {prefix, "rows " + std::to_string(size) + " of a block must be positive"}));
    p.descriptor.scope = PerBlock{2, size};
    EXPECT_TRUE(invalid(p.selects(), {prefix, "columns " + std::to_string(size) + " of a block must be positive"}));
  }
  Problem p;
  p.descriptor.scope = PerBlock{2, 2};
  p.descriptor.shape = {12};
  EXPECT_TRUE(invalid(p.selects(), {prefix + "shape [12] has no rows and columns; its rank must be at least 2"}));
  for (const std::int64_t size : {std::int64_t{1}, std::int64_t{3}, std::numeric_limits<std::int64_t>::max()})
    EXPECT_TRUE(Problem(PerBlock{size, size}).runs());
}

// ---- select(): the range of codes ----

TEST(DynamicRangeSelect, CodesBeyondTheirType) {
  for (const DynamicRangeMode mode : kModes)
    for (const ElementKind out : kCodeKinds) {
      if (has_float_grid(out)) continue;
      Problem p(PerToken{}, mode, {3, 4}, ElementKind::f32, out);
      const CodeRange limits = code_range(out);
      p.descriptor.q_min = limits.min - 1;
      EXPECT_TRUE(invalid(p.selects(), {"dynamic_range_quantize_per_token: ", "q_min " + std::to_string(limits.min - 1),
                                        std::to_string(limits.min), name(out)}));
      p.descriptor.q_min = limits.min;
      p.descriptor.q_max = limits.max + 1;
      EXPECT_TRUE(invalid(p.selects(), {"dynamic_range_quantize_per_token: ", "q_max " + std::to_string(limits.max + 1),
                                        std::to_string(limits.max), name(out)}));
      p.descriptor.q_max = limits.max;
      EXPECT_TRUE(p.runs());
      p.descriptor.q_min = std::numeric_limits<std::int32_t>::min();
      p.descriptor.q_max = std::numeric_limits<std::int32_t>::max();
      EXPECT_TRUE(invalid(p.selects(), {"q_min -2147483648", std::to_string(limits.min)}));
    }
}

TEST(DynamicRangeSelect, FloatingPointGridsHaveNoRangeOfCodes) {
  const std::pair<ElementKind, std::string> grids[] = {
      {ElementKind::e4m3, "448"}, {ElementKind::e5m2, "57344"}, {ElementKind::e2m1, "6"}};
  for (const auto& [out, max] : grids) {
    const std::string sentence = "dynamic_range_quantize_per_token: q_min and q_max are for integer codes; " +
                                 std::string(name(out)) + " has the numbers from -" + max + " to " + max;
    Problem p(PerToken{}, DynamicRangeMode::symmetric, {3, 4}, ElementKind::f32, out);
    p.descriptor.q_min = -1;
    EXPECT_TRUE(refused_with(p.selects(), StatusCode::InvalidProblem, sentence));
    p.descriptor.q_min.reset();
    p.descriptor.q_max = 1;
    EXPECT_TRUE(refused_with(p.selects(), StatusCode::InvalidProblem, sentence));
    p.descriptor.q_max.reset();
    EXPECT_TRUE(p.runs());
  }
}

TEST(DynamicRangeSelect, FloatingPointGridsAreSymmetric) {
  for (const ElementKind out : kFloatGrids) {
    const Problem p(PerToken{}, DynamicRangeMode::asymmetric, {3, 4}, ElementKind::f32, out);
    EXPECT_TRUE(refused_with(p.selects(), StatusCode::InvalidProblem,
                             "dynamic_range_quantize_per_token: asymmetric mode needs a zero point, and " +
                                 std::string(name(out)) + " has none; use symmetric mode"));
  }
}

// ---- select(): scales that are codes ----

TEST(DynamicRangeScales, OfATypeThatNoScaleHas) {
  for (const ElementKind scale : {ElementKind::f64, ElementKind::s8, ElementKind::e5m2, ElementKind::s32}) {
    Problem p;
    p.descriptor.scale = scale;
    EXPECT_TRUE(refused_with(p.selects(), StatusCode::Unsupported,
                             "dynamic_range_quantize_per_token: scale_out has element " + std::string(name(scale)) +
                                 ", must be f32 (or a tensor of f16, bf16, e8m0, e4m3)"));
  }
  Problem wide(PerToken{}, DynamicRangeMode::symmetric, {3, 4}, ElementKind::f64);
  wide.descriptor.scale = ElementKind::f32;
  EXPECT_TRUE(unsupported(wide.selects(), "scale_out has element f32, must be f64 (or a tensor of "));
}

TEST(DynamicRangeScales, OfPowersAndOfE4m3AreForFloatingPointGrids) {
  for (const ElementKind scale : {ElementKind::e8m0, ElementKind::e4m3})
    for (const ElementKind out : kCodeKinds) {
      Problem p(PerToken{}, DynamicRangeMode::symmetric, {3, 4}, ElementKind::f32, out);
      p.descriptor.scale = scale;
      if (has_float_grid(out)) {
        EXPECT_TRUE(accepted(p.selects())) << name(out);
        continue;
      }
      EXPECT_TRUE(refused_with(p.selects(), StatusCode::InvalidProblem,
                               "dynamic_range_quantize_per_token: scales of " + std::string(name(scale)) +
                                   " are for codes of e4m3, e5m2, e2m1, these are " + std::string(name(out))));
    }
}

TEST(DynamicRangeScales, OfPowersEndBeforeF64Does) {
  Problem p(PerToken{}, DynamicRangeMode::symmetric, {3, 4}, ElementKind::f64, ElementKind::e4m3);
  p.descriptor.scale = ElementKind::e8m0;
  EXPECT_TRUE(refused_with(p.selects(), StatusCode::Unsupported,
                           "dynamic_range_quantize_per_token: scales of e8m0 end at 2^127, and f64 reaches 2^1023; "
                           "use f64, f16, bf16 or e4m3"));
}

TEST(DynamicRangeScales, WhatBelongsToOthers) {
  for (const ElementKind scale : {ElementKind::f32, ElementKind::f16, ElementKind::bf16, ElementKind::e4m3}) {
    Problem p(PerToken{}, DynamicRangeMode::symmetric, {3, 4}, ElementKind::f32, ElementKind::e2m1);
    p.descriptor.scale = scale;
    p.descriptor.mx_rule = MxRule::round_up;
    EXPECT_TRUE(refused_with(p.selects(), StatusCode::InvalidProblem,
                             "dynamic_range_quantize_per_token: mx_rule round_up is for scales of e8m0, these are " +
                                 std::string(name(scale))));
  }
  for (const ElementKind scale : {ElementKind::f32, ElementKind::f16, ElementKind::bf16, ElementKind::e8m0}) {
    Problem p(PerToken{}, DynamicRangeMode::symmetric, {3, 4}, ElementKind::f32, ElementKind::e2m1);
    p.descriptor.scale = scale;
    p.descriptor.finds_global_scale = true;
    EXPECT_TRUE(refused_with(p.selects(), StatusCode::InvalidProblem,
                             "dynamic_range_quantize_per_token: finds_global_scale is for scales of e4m3, these are " +
                                 std::string(name(scale))));
  }
}

// ---- can_implement() and run(): the global scale ----

// With scales of e4m3, which need one.
struct GlobalProblem : Problem {
  static constexpr std::size_t kGlobal = 2560;

  explicit GlobalProblem(bool finds, ElementKind in = ElementKind::f32)
      : Problem(PerToken{}, DynamicRangeMode::symmetric, {3, 4}, in, ElementKind::e2m1) {
    descriptor.scale = args.scale_out.kind = ElementKind::e4m3;
    descriptor.finds_global_scale = finds;
    if (finds)
      args.global_scale_out = {memory.data() + kGlobal, ElementKind::f32, {}, 0};
    else
      args.global_scale = AnyParameter(2.0f);
  }
};

TEST(DynamicRangeGlobalScale, IsGivenOrFound) {
  for (const ElementKind in : kFloatKinds)
    for (const bool finds : {false, true}) EXPECT_TRUE(GlobalProblem(finds, in).runs()) << name(in);
  const float tensor = 2.0f;
  for (const Shape& shape : {Shape(), Shape{1}}) {
    GlobalProblem given(false);
    given.args.global_scale = AnyParameter(AnyRef{&tensor, ElementKind::f32, shape, 0});
    EXPECT_TRUE(given.runs());
    GlobalProblem found(true);
    found.args.global_scale_out.shape = shape;
    EXPECT_TRUE(found.runs());
  }
}

TEST(DynamicRangeGlobalScale, Missing) {
  GlobalProblem given(false);
  given.args.global_scale = {};
  EXPECT_TRUE(given.invalid({"scales of e4m3 need a global_scale"}));
  GlobalProblem found(true);
  found.args.global_scale_out.data = nullptr;
  EXPECT_TRUE(found.invalid({"global_scale_out is null, must point to 1 number"}));
}

TEST(DynamicRangeGlobalScale, Superfluous) {
  GlobalProblem both(true);
  both.args.global_scale = AnyParameter(2.0f);
  EXPECT_TRUE(both.invalid({"global_scale is found, so it cannot be given"}));
  GlobalProblem written(false);
  written.args.global_scale_out = {written.memory.data() + GlobalProblem::kGlobal, ElementKind::f32, {}, 0};
  EXPECT_TRUE(written.invalid({"global_scale_out is written with finds_global_scale only"}));
  for (const ElementKind scale : {ElementKind::f32, ElementKind::f16, ElementKind::bf16, ElementKind::e8m0}) {
    Problem plain(PerToken{}, DynamicRangeMode::symmetric, {3, 4}, ElementKind::f32, ElementKind::e2m1);
    plain.descriptor.scale = plain.args.scale_out.kind = scale;
    plain.args.global_scale = AnyParameter(2.0f);
    EXPECT_TRUE(plain.invalid({"global_scale is for scales of e4m3, these are " + std::string(name(scale))}));
  }
}

TEST(DynamicRangeGlobalScale, OfAnotherKindOrShape) {
  const float four[4] = {1, 1, 1, 1};
  GlobalProblem given(false);
  given.args.global_scale = AnyParameter(2.0);
  EXPECT_TRUE(given.unsupported({"global_scale has element f64, must be f32"}));
  for (const Shape& shape : {Shape{4}, Shape{1, 1}}) {
    given.args.global_scale = AnyParameter(AnyRef{four, ElementKind::f32, shape, 0});
    EXPECT_TRUE(given.invalid({"global_scale has shape " + shape.to_string() + ", must be one number"}));
  }
  GlobalProblem found(true);
  found.args.global_scale_out.kind = ElementKind::f64;
  EXPECT_TRUE(found.unsupported({"global_scale_out has element f64, must be f32"}));
  found.args.global_scale_out.kind = ElementKind::f32;
  found.args.global_scale_out.shape = {2};
  EXPECT_TRUE(found.invalid({"global_scale_out has shape [2], must have []"}));
}

TEST(DynamicRangeGlobalScale, MustBeFiniteAndPositive) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::pair<float, std::string> bad[] = {
      {0.0f, "0"}, {-2.5f, "-2.5"}, {kInf, "inf"}, {std::numeric_limits<float>::quiet_NaN(), "nan"}};
  for (const auto& [value, text] : bad) {
    GlobalProblem p(false);
    p.args.global_scale = AnyParameter(value);
    EXPECT_TRUE(p.invalid({"global_scale " + text + " must be finite and positive"}));
    p.args.global_scale = AnyParameter(AnyRef{&value, ElementKind::f32, {}, 0});
    EXPECT_TRUE(p.invalid({"global_scale " + text + " must be finite and positive"}));
  }
}

TEST(DynamicRangeGlobalScale, OverlapsNothing) {
  const std::pair<std::size_t, const char*> places[] = {{Problem::kInput, "input"},
                                                        {Problem::kOutput, "output"},
                                                        {Problem::kScale, "scale_out"},
                                                        {Problem::kZeroPoint, "zero_point_out"}};
  for (const auto& [place, what] : places) {
    GlobalProblem found(true);
    found.args.global_scale_out.data = found.memory.data() + place;
    EXPECT_TRUE(found.invalid({"global_scale_out overlaps " + std::string(what)}));
    GlobalProblem given(false);
    const float two = 2.0f;
    std::memcpy(given.memory.data() + place, &two, 4);
    given.args.global_scale = AnyParameter(AnyRef{given.memory.data() + place, ElementKind::f32, {}, 0});
    if (place == Problem::kInput) {  // both are only read
      EXPECT_TRUE(given.runs());
      continue;
    }
    EXPECT_TRUE(given.invalid({"global_scale overlaps " + std::string(what)}));
  }
}

// ---- select(): the range of integer codes, by mode ----

TEST(DynamicRangeSelect, SymmetricNeedsAPositiveMaximum) {
  for (const auto& [q_min, q_max] : {std::pair{-128, 0}, {-128, -1}, {-5, -5}, {0, 0}}) {
    Problem p(PerChannel{0}, DynamicRangeMode::symmetric);
    p.descriptor.q_min = q_min;
    p.descriptor.q_max = q_max;
    EXPECT_TRUE(invalid(p.selects(), {"dynamic_range_quantize_per_channel: ", "q_max", std::to_string(q_max)}));
  }
  // Against the default of the one that is not given.
  Problem p(PerToken{}, DynamicRangeMode::symmetric);
  p.descriptor.q_max = -100;
  EXPECT_TRUE(invalid(p.selects(), {"dynamic_range_quantize_per_token: ", "q_max", "-100"}));
  p.descriptor.q_max = 1;
  EXPECT_TRUE(p.runs());
  p.descriptor.q_min = 2;  // above q_max in any mode
  EXPECT_TRUE(invalid(p.selects(), {"q_min", "2", "q_max", "1"}));
}

TEST(DynamicRangeSelect, AsymmetricNeedsTwoCodes) {
  for (const bool include_zero : {false, true})
    for (const auto& [q_min, q_max] : {std::pair{5, 5}, {5, 4}, {127, -128}, {0, 0}, {-128, -128}}) {
      Problem p(PerGroup{1, 2});
      p.descriptor.include_zero = include_zero;
      p.descriptor.q_min = q_min;
      p.descriptor.q_max = q_max;
      EXPECT_TRUE(invalid(p.selects(), {"dynamic_range_quantize_per_group: ", "q_min", "q_max", std::to_string(q_min),
                                        std::to_string(q_max)}));
      p.descriptor.q_min = -6;
      p.descriptor.q_max = -5;
      EXPECT_TRUE(p.runs());
    }
  Problem p(PerToken{}, DynamicRangeMode::asymmetric, {3, 4}, ElementKind::f32, ElementKind::u4);
  p.descriptor.q_min = 15;
  EXPECT_TRUE(invalid(p.selects(), {"q_min", "q_max", "15"}));
}

// ---- select(): element kinds ----

TEST(DynamicRangeSelect, Kinds) {
  Problem p;
  for (const ElementKind kind :
       {ElementKind::s8, ElementKind::u8, ElementKind::s4, ElementKind::u4, ElementKind::s32}) {
    p.descriptor.input = kind;
    EXPECT_TRUE(unsupported(p.selects(), {"dynamic_range_quantize_per_token: ", "input", name(kind)}));
  }
  p.descriptor.input = ElementKind::f32;
  for (const ElementKind kind :
       {ElementKind::f32, ElementKind::f64, ElementKind::f16, ElementKind::bf16, ElementKind::s32}) {
    p.descriptor.output = kind;
    EXPECT_TRUE(unsupported(p.selects(), {"dynamic_range_quantize_per_token: ", "output", name(kind)}));
  }
}

TEST(DynamicRangeSelect, MissingKinds) {
  Problem p;
  p.descriptor.input.reset();
  EXPECT_TRUE(invalid(p.selects(), {"dynamic_range_quantize_per_token: ", "input"}));
  p.descriptor.input = ElementKind::f32;
  p.descriptor.output.reset();
  EXPECT_TRUE(invalid(p.selects(), {"dynamic_range_quantize_per_token: ", "output"}));
}

TEST(DynamicRangeSelect, DescriptorAgainstTheTypesOfThePlan) {
  const Stream stream = Stream::cpu(1);
  using Plan = DynamicRangeQuantizePlan<float, std::int8_t>;
  DynamicRangeQuantizeDescriptor d{.shape = {3, 4}, .scope = PerChannel{1}};
  EXPECT_TRUE(accepted(Plan::select(stream, d).status()));
  d.input = ElementKind::f32;
  d.output = ElementKind::s8;
  EXPECT_TRUE(accepted(Plan::select(stream, d).status()));
  d.input = ElementKind::f64;
  EXPECT_TRUE(
      unsupported(Plan::select(stream, d).status(), {"dynamic_range_quantize_per_channel: ", "f64", "f32", "s8"}));
  d.input.reset();
  d.output = ElementKind::u4;
  EXPECT_TRUE(
      unsupported(Plan::select(stream, d).status(), {"dynamic_range_quantize_per_channel: ", "u4", "f32", "s8"}));
}

// ---- select(): what was asked of it ----

TEST(DynamicRangeSelect, Preferences) {
  Problem p;
  expect_preferences(p, "dynamic_range_quantize_per_token: ");
}

TEST(DynamicRangeSelect, IsaThatMayBeAbsent) {
  Problem p;
  expect_avx2_or_its_name(p, "dynamic_range_quantize_per_token: ");
}

// ---- can_implement() and run(): views ----

// What the operands have in common, to change one at a time.
struct Operand {
  const char* what;
  ElementKind& (*kind)(AnyDynamicRangeQuantizeArgs&);
  Shape& (*shape)(AnyDynamicRangeQuantizeArgs&);
  std::int64_t& (*stride)(AnyDynamicRangeQuantizeArgs&);
  void (*drop)(AnyDynamicRangeQuantizeArgs&);
};

template <auto kMember>
constexpr Operand operand(const char* what) {
  using Args = AnyDynamicRangeQuantizeArgs;
  return {what, [](Args& a) -> ElementKind& { return (a.*kMember).kind; },
          [](Args& a) -> Shape& { return (a.*kMember).shape; },
          [](Args& a) -> std::int64_t& { return (a.*kMember).row_stride; },
          [](Args& a) { (a.*kMember).data = nullptr; }};
}

constexpr Operand kTensors[] = {operand<&AnyDynamicRangeQuantizeArgs::input>("input"),
                                operand<&AnyDynamicRangeQuantizeArgs::output>("output")};
constexpr Operand kParameters[] = {operand<&AnyDynamicRangeQuantizeArgs::scale_out>("scale_out"),
                                   operand<&AnyDynamicRangeQuantizeArgs::zero_point_out>("zero_point_out")};

TEST(DynamicRangeViews, OfAnotherKind) {
  for (const Operand& view : kTensors) {
    Problem p;
    const std::string_view had = name(view.kind(p.args));
    view.kind(p.args) = ElementKind::f16;
    EXPECT_TRUE(p.unsupported({view.what, "f16", had}));
  }
  Problem u8;
  u8.args.output.kind = ElementKind::u8;
  EXPECT_TRUE(u8.unsupported({"output", "u8", "s8"}));
}

TEST(DynamicRangeViews, OfAnotherShape) {
  for (const Operand& view : kTensors)
    for (const Shape& shape : {Shape{3, 5}, Shape{12}, Shape{4, 3}, Shape{3, 4, 1}, Shape(), Shape{3, -4}}) {
      Problem p;
      view.shape(p.args) = shape;
      EXPECT_TRUE(p.invalid({view.what, "shape " + shape.to_string(), "[3, 4]"}));
    }
}

TEST(DynamicRangeViews, RowStrides) {
  for (const Operand& view : kTensors)
    for (const std::int64_t stride :
         {std::int64_t{3}, std::int64_t{1}, std::int64_t{-4}, std::numeric_limits<std::int64_t>::min()}) {
      Problem p;
      view.stride(p.args) = stride;
      EXPECT_TRUE(p.invalid({view.what, "row stride " + std::to_string(stride), "4"}));
      view.stride(p.args) = 4;
      EXPECT_TRUE(p.runs());
      view.stride(p.args) = 7;
      EXPECT_TRUE(p.runs());
    }
  for (const ElementKind out : {ElementKind::s4, ElementKind::u4}) {
    Problem p(PerToken{}, DynamicRangeMode::symmetric, {3, 4}, ElementKind::f32, out);
    p.args.output.row_stride = 5;
    EXPECT_TRUE(p.invalid({"output", "row stride 5", name(out), "even"}));
    p.args.output.row_stride = 6;
    EXPECT_TRUE(p.runs());
    p.args.input.row_stride = 5;  // floats may
    EXPECT_TRUE(p.runs());
  }
  for (const Operand& view : kTensors)
    for (const int bits : {60, 59}) {  // times 8 bytes, times 3 rows
      const std::int64_t stride = std::int64_t{1} << bits;
      Problem p;
      view.stride(p.args) = stride;
      EXPECT_TRUE(p.invalid({view.what, "row stride " + std::to_string(stride)}));
    }
}

TEST(DynamicRangeViews, Null) {
  for (const Granularity& scope : scopes())
    for (const Operand& view : kTensors) {
      Problem p(scope);
      view.drop(p.args);
      EXPECT_TRUE(p.invalid({view.what, "null", "[3, 4]"}));
    }
}

TEST(DynamicRangeViews, DefaultArguments) {
  Problem p;
  p.args = {};
  EXPECT_TRUE(p.invalid({"input", "[]", "[3, 4]"}));
}

// ---- can_implement() and run(): parameters ----

TEST(DynamicRangeParameters, OfAnotherKind) {
  for (const ElementKind in : kFloatKinds) {
    const ElementKind right = scale_kind(in);
    for (const ElementKind wrong : {ElementKind::f32, ElementKind::f64, ElementKind::f16, ElementKind::s32}) {
      if (wrong == right) continue;
      Problem p(PerToken{}, DynamicRangeMode::symmetric, {3, 4}, in);
      p.args.scale_out.kind = wrong;
      EXPECT_TRUE(p.unsupported({"scale_out", name(wrong), name(right)}));
    }
  }
  for (const DynamicRangeMode mode : kModes) {
    Problem p(PerToken{}, mode);
    p.args.zero_point_out.kind = ElementKind::s8;
    EXPECT_TRUE(p.unsupported({"zero_point_out", "s8", "s32"}));
  }
}

TEST(DynamicRangeParameters, OfAnotherShape) {
  struct Bad {
    Granularity scope;
    Shape given, wanted;
  };
  const std::vector<Bad> all = {{PerTensor{}, {3}, {}},           {PerToken{}, {4}, {3}},
                                {PerToken{}, {3, 4}, {3}},        {PerChannel{1}, {3}, {4}},
                                {PerChannel{1}, {4, 1}, {4}},     {PerToken{}, {}, {3}},
                                {PerGroup{1, 2}, {3, 3}, {3, 2}}, {PerGroup{1, 2}, {2, 3}, {3, 2}},
                                {PerBlock{2, 3}, {3, 2}, {2, 2}}, {PerBlock{2, 9}, {3}, {2, 1}}};
  for (const Bad& bad : all)
    for (const Operand& view : kParameters)
      for (const DynamicRangeMode mode : kModes) {
        Problem p(bad.scope, mode);
        view.shape(p.args) = bad.given;
        EXPECT_TRUE(p.invalid({view.what, "shape " + bad.given.to_string(), bad.wanted.to_string()}));
      }
  Problem flat(PerGroup{1, 2});
  flat.args.scale_out.shape = {6};
  flat.args.zero_point_out.shape = {6};
  EXPECT_TRUE(flat.runs());
  Problem one(PerTensor{});
  one.args.scale_out.shape = {1};
  EXPECT_TRUE(one.runs());
}

TEST(DynamicRangeParameters, MustBeDense) {
  for (const Operand& view : kParameters)
    for (const std::int64_t stride : {1, 3, 8}) {
      Problem p(PerGroup{1, 2});  // [3, 2]
      view.stride(p.args) = stride;
      EXPECT_TRUE(p.invalid({view.what, "row stride " + std::to_string(stride)}));
      view.stride(p.args) = 2;
      EXPECT_TRUE(p.runs());
    }
}

TEST(DynamicRangeParameters, Null) {
  for (const Granularity& scope : scopes())
    for (const DynamicRangeMode mode : kModes) {
      Problem p(scope, mode);
      p.args.scale_out.data = nullptr;
      EXPECT_TRUE(p.invalid({"scale_out", "null"}));
      p.args.scale_out = {};
      EXPECT_FALSE(p.runs());
      Problem zero_point(scope, mode);
      zero_point.args.zero_point_out.data = nullptr;
      if (mode == DynamicRangeMode::asymmetric) {
        EXPECT_TRUE(zero_point.invalid({"zero_point_out", "null"}));
        zero_point.args.zero_point_out = {};
        EXPECT_FALSE(zero_point.runs());
      } else {
        EXPECT_TRUE(zero_point.runs());
        zero_point.args.zero_point_out = {};
        EXPECT_TRUE(zero_point.runs());
      }
    }
  Problem numbers(PerGroup{1, 2});
  numbers.args.scale_out.data = nullptr;
  EXPECT_TRUE(numbers.invalid({"scale_out", "null", "6"}));
}

// ---- can_implement() and run(): overlap ----

// `moved` over `other`, from both sides by one byte, and then just beside it.
void expect_no_overlap(const char* moved_name, AnyMut AnyDynamicRangeQuantizeArgs::*moved, std::size_t moved_bytes,
                       const char* other_name, std::size_t other_at, std::size_t other_bytes, DynamicRangeMode mode) {
  Problem p(PerToken{}, mode);
  for (const std::size_t at : {other_at - moved_bytes + 1, other_at, other_at + other_bytes - 1}) {
    (p.args.*moved).data = p.memory.data() + at;
    EXPECT_TRUE(p.invalid({"overlaps", moved_name, other_name})) << at;
  }
  for (const std::size_t at : {other_at - moved_bytes, other_at + other_bytes}) {
    (p.args.*moved).data = p.memory.data() + at;
    EXPECT_TRUE(p.runs()) << moved_name << " beside " << other_name << " at " << at;
  }
}

TEST(DynamicRangeOverlap, OfAnyTwo) {
  using Args = AnyDynamicRangeQuantizeArgs;
  constexpr std::size_t kInputBytes = 48, kOutputBytes = 12, kParameterBytes = 12;
  for (const DynamicRangeMode mode : kModes) {
    expect_no_overlap("output", &Args::output, kOutputBytes, "input", Problem::kInput, kInputBytes, mode);
    expect_no_overlap("scale_out", &Args::scale_out, kParameterBytes, "input", Problem::kInput, kInputBytes, mode);
    expect_no_overlap("scale_out", &Args::scale_out, kParameterBytes, "output", Problem::kOutput, kOutputBytes, mode);
    expect_no_overlap("zero_point_out", &Args::zero_point_out, kParameterBytes, "input", Problem::kInput, kInputBytes,
                      mode);
    expect_no_overlap("zero_point_out", &Args::zero_point_out, kParameterBytes, "output", Problem::kOutput,
                      kOutputBytes, mode);
    expect_no_overlap("zero_point_out", &Args::zero_point_out, kParameterBytes, "scale_out", Problem::kScale,
                      kParameterBytes, mode);
  }
}

// Columns of one matrix, and codes in the gaps between rows of floats, are no overlap.
TEST(DynamicRangeOverlap, NotInTheGaps) {
  Problem p;
  p.args.input.row_stride = 8;  // 16 bytes of floats, 16 bytes free
  p.args.output.row_stride = 32;
  for (const std::size_t at : {16u, 28u}) {
    p.args.output.data = p.memory.data() + Problem::kInput + at;
    EXPECT_TRUE(p.runs()) << at;
  }
  for (const std::size_t at : {15u, 29u}) {
    p.args.output.data = p.memory.data() + Problem::kInput + at;
    EXPECT_TRUE(p.invalid({"output", "overlaps", "input"})) << at;
  }
}

// ---- no elements ----

TEST(DynamicRangeLegal, NoElementsAndNullPointers) {
  for (const Shape& shape : {Shape{0, 4}, Shape{3, 0}, Shape{0, 0}})
    for (const Granularity& scope : scopes()) {
      Problem p(scope, DynamicRangeMode::asymmetric, shape);
      p.args.input.data = nullptr;
      p.args.output.data = nullptr;
      EXPECT_TRUE(p.runs()) << shape.to_string();
    }
  // Kinds and shapes are checked all the same.
  Problem p(PerToken{}, DynamicRangeMode::symmetric, {0, 4});
  p.args.output.shape = {4, 0};
  EXPECT_TRUE(p.invalid({"output", "[4, 0]", "[0, 4]"}));
}

// ---- workspace and streams ----

TEST(DynamicRangeWorkspace, TooSmall) {
  const Shape shape{1 << 22};
  for (const Stream& stream : {Stream::cpu(1), Stream::cpu(2)}) {
    const auto plan = AnyDynamicRangeQuantizePlan::select(
        stream, {.shape = shape, .scope = PerTensor{}, .input = ElementKind::f32, .output = ElementKind::s8});
    ASSERT_TRUE(accepted(plan.status()));
    const std::size_t needed = plan->workspace_size();
    if (needed == 0) continue;  // nothing can be too small
    std::vector<float> x(1 << 22, 1.0f);
    std::vector<std::int8_t> q(x.size(), 0x5A);
    float scale = 77.0f;
    std::int32_t zero_point = 77;
    std::vector<std::byte> scratch(needed + 64);
    const AnyDynamicRangeQuantizeArgs args{.input = {x.data(), ElementKind::f32, shape, 0},
                                           .output = {q.data(), ElementKind::s8, shape, 0},
                                           .scale_out = {&scale, ElementKind::f32, {}, 0},
                                           .zero_point_out = {&zero_point, ElementKind::s32, {}, 0}};
    EXPECT_TRUE(accepted(plan->can_implement(args)));
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, needed - 1})
      EXPECT_TRUE(
          refused(plan->run(stream, {scratch.data(), size}, args), StatusCode::WorkspaceTooSmall,
                  {"dynamic_range_quantize_per_tensor: ", "workspace", std::to_string(size), std::to_string(needed)}));
    EXPECT_TRUE(refused(plan->run(stream, {}, args), StatusCode::WorkspaceTooSmall,
                        {"workspace", " 0 ", std::to_string(needed)}));
    // Enough bytes that are nowhere.
    EXPECT_TRUE(invalid(plan->run(stream, {nullptr, needed}, args), {"workspace", "null", std::to_string(needed)}));
    EXPECT_EQ(q, std::vector<std::int8_t>(q.size(), 0x5A));
    EXPECT_EQ(scale, 77.0f);
    EXPECT_EQ(zero_point, 77);
    // More than needed is fine, at any address.
    for (const std::size_t shift : {0u, 1u, 7u, 33u}) {
      EXPECT_TRUE(accepted(plan->run(stream, {scratch.data() + shift, needed}, args))) << shift;
      EXPECT_EQ(scale, 1.0f / 127.0f);
      EXPECT_EQ(zero_point, 0);
      EXPECT_EQ(q, std::vector<std::int8_t>(q.size(), 127));
      scale = 77.0f;
      std::fill(q.begin(), q.end(), std::int8_t{0});
    }
    EXPECT_TRUE(accepted(plan->run(stream, {scratch.data(), needed + 64}, args)));
  }
}

TEST(DynamicRangeWorkspace, NoneForSegmentsThatFitTheCache) {
  for (const Granularity& scope : scopes()) {
    const Problem p(scope);
    const auto plan = AnyDynamicRangeQuantizePlan::select(Stream::cpu(2), p.descriptor);
    ASSERT_TRUE(accepted(plan.status()));
    EXPECT_EQ(plan->workspace_size(), 0u);
    EXPECT_TRUE(accepted(plan->run(Stream::cpu(2), {}, p.args)));
  }
}

TEST(DynamicRangeStream, ThatIsNotUsable) {
  const Stream bad = Stream::cpu(0);
  const Problem p;
  EXPECT_TRUE(invalid(AnyDynamicRangeQuantizePlan::select(bad, p.descriptor).status(), {"0 threads"}));
  EXPECT_TRUE(
      invalid(DynamicRangeQuantizePlan<float, std::int8_t>::select(bad, {.shape = {3, 4}}).status(), {"0 threads"}));
  const auto plan = AnyDynamicRangeQuantizePlan::select(Stream::cpu(1), p.descriptor);
  ASSERT_TRUE(accepted(plan.status()));
  const std::vector<std::byte> before = p.memory;
  EXPECT_TRUE(invalid(plan->run(bad, {}, p.args), {"0 threads"}));
  EXPECT_EQ(p.memory, before);
}

}  // namespace
}  // namespace kvant::tests
