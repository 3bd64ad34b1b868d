// Every way in which linear plans and packed weights say no, with the code and the numbers, and the neighbouring cases
// that they must not refuse. A refused run() leaves every byte as it was.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvant/kvant.h"
#include "tests/support/plan_refusals.h"
#include "tests/support/special_numbers.h"
#include "tests/support/tables.h"

namespace kvant::tests {
namespace {

constexpr ElementKind kBytes[] = {ElementKind::s8, ElementKind::u8};
constexpr std::int64_t kHuge = std::int64_t{1} << 40;

enum class Op { w8a8, smoothquant, quantized };
constexpr Op kOps[] = {Op::w8a8, Op::smoothquant, Op::quantized};

std::string_view label(Op op) {
  return op == Op::w8a8 ? "w8a8_linear" : op == Op::smoothquant ? "smoothquant_linear" : "quantized_linear";
}

// What the three descriptors have in common, and what they do not.
struct Descriptor {
  std::int64_t max_rows = 3, in_features = 4, out_features = 5;
  double act_scale = 0.5;
  bool static_scale = false;  // of quantized_linear
  std::int32_t act_zero_point = 0;
  bool smooth = false;
  ElementKind activation = ElementKind::s8;
  std::optional<ElementKind> weight = ElementKind::s8;
  std::optional<ElementKind> output = ElementKind::f32;  // also the input of quantized_linear

  Result<AnyLinearPlan> select(Op op, const Stream& stream, const PlanPreference& preference) const {
    if (op == Op::w8a8)
      return AnyLinearPlan::select(stream,
                                   W8A8LinearDescriptor{.max_rows = max_rows,
                                                        .in_features = in_features,
                                                        .out_features = out_features,
                                                        .activation = activation,
                                                        .weight = weight,
                                                        .output = output},
                                   preference);
    if (op == Op::smoothquant)
      return AnyLinearPlan::select(stream,
                                   SmoothQuantLinearDescriptor{.max_rows = max_rows,
                                                               .in_features = in_features,
                                                               .out_features = out_features,
                                                               .act_scale = act_scale,
                                                               .act_zero_point = act_zero_point,
                                                               .activation = activation,
                                                               .weight = weight,
                                                               .output = output},
                                   preference);
    return AnyLinearPlan::select(
        stream,
        QuantizedLinearDescriptor{.max_rows = max_rows,
                                  .in_features = in_features,
                                  .out_features = out_features,
                                  .act_scale = static_scale ? std::optional(act_scale) : std::nullopt,
                                  .act_zero_point = act_zero_point,
                                  .smooth = smooth,
                                  .input = output,
                                  .weight = weight},
        preference);
  }
};

// A problem that is in order, with all of its views in one buffer. A test changes one thing and says what must be
// refused. Places are far enough apart that moving one by its own size meets no other.
struct Problem {
  static constexpr std::size_t kStep = 512;
  static constexpr std::size_t kActivation = 1 * kStep, kActScale = 2 * kStep, kActZeroPoint = 3 * kStep,
                               kSmooth = 4 * kStep, kWeight = 5 * kStep, kWeightScale = 6 * kStep,
                               kWeightZeroPoint = 7 * kStep, kBias = 8 * kStep, kOutput = 9 * kStep;

  Op op;
  Descriptor descriptor;
  PlanPreference preference;
  std::vector<std::byte> memory = std::vector<std::byte>(11 * kStep, std::byte{0x3C});
  AnyLinearArgs args;
  std::optional<PackedWeight> packed;

  explicit Problem(Op which, ElementKind output = ElementKind::f32, bool smooth = false, std::int64_t m = 3,
                   std::int64_t k = 4, std::int64_t n = 5, ElementKind activation = ElementKind::s8,
                   ElementKind weight = ElementKind::s8)
      : op(which) {
    descriptor.max_rows = m;
    descriptor.in_features = k;
    descriptor.out_features = n;
    descriptor.output = output;
    descriptor.activation = activation;
    descriptor.weight = weight;
    descriptor.smooth = smooth;
    args.activation = {at(kActivation), op == Op::quantized ? output : activation, {m, k}, 0};
    if (op == Op::w8a8) {
      args.act_scale = AnyParameter(AnyRef{at(kActScale), scale_kind(output), {m}, 0});
      args.act_zero_point = AnyParameter(AnyRef{at(kActZeroPoint), ElementKind::s32, {m}, 0});
    }
    if (smooth) args.smooth = {at(kSmooth), scale_kind(output), {k}, 0};
    args.weight = {at(kWeight), weight, {n, k}, 0};
    args.weight_scale = AnyParameter(AnyRef{at(kWeightScale), scale_kind(output), {n}, 0});
    args.weight_zero_point = AnyParameter(AnyRef{at(kWeightZeroPoint), ElementKind::s32, {n}, 0});
    args.bias = {at(kBias), output, {n}, 0};
    args.output = {at(kOutput), output, {m, n}, 0};
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  std::byte* at(std::size_t place) { return memory.data() + place; }

  // The weight packed, in place of the raw one.
  void pack(const AnyRef& weight) {
    const auto made = PackedWeight::pack(Stream::cpu(1), weight, preference);
    ASSERT_TRUE(accepted(made.status()));
    packed = *made;
    args.packed_weight = &*packed;
    args.weight = {};
  }

  Result<AnyLinearPlan> select() const { return descriptor.select(op, Stream::cpu(1), preference); }
  testing::AssertionResult select_refuses(StatusCode code, Parts parts) const {
    const Status status = select().status();
    if (testing::AssertionResult result = refused(status, code, parts); !result) return result;
    return refused(status, code, {label(op)});
  }
  testing::AssertionResult select_invalid(Parts parts) const {
    return select_refuses(StatusCode::InvalidProblem, parts);
  }
  testing::AssertionResult select_unsupported(Parts parts) const {
    return select_refuses(StatusCode::Unsupported, parts);
  }

  testing::AssertionResult refuses(StatusCode code, Parts parts) const {
    return tests::refuses(select(), args, memory, code, parts, label(op));
  }
  testing::AssertionResult invalid(Parts parts) const { return refuses(StatusCode::InvalidProblem, parts); }
  testing::AssertionResult unsupported(Parts parts) const { return refuses(StatusCode::Unsupported, parts); }

  testing::AssertionResult runs() const { return tests::runs(select(), args); }
};

// The baseline of everything below: what is not changed is not refused.
TEST(LinearBaseline, EverythingRuns) {
  for (const Op op : kOps)
    for (const ElementKind output : kFloatKinds)
      for (const ElementKind activation : kBytes)
        for (const ElementKind weight : kBytes)
          for (const bool smooth : {false, true}) {
            if (smooth && op != Op::quantized) continue;
            Problem p(op, output, smooth, 3, 4, 5, activation, weight);
            EXPECT_TRUE(p.runs()) << label(op) << " " << name(output);
            p.descriptor.static_scale = true;
            EXPECT_TRUE(p.runs()) << label(op) << " " << name(output);
            p.pack(p.args.weight);
            EXPECT_TRUE(p.runs()) << label(op) << " " << name(output);
            p.args.bias = {};
            p.args.weight_zero_point = AnyParameter(std::int32_t{0});
            EXPECT_TRUE(p.runs()) << label(op) << " " << name(output);
          }
}

// ---- select(): sizes ----

TEST(LinearSelect, NegativeSizes) {
  for (const Op op : kOps)
    for (const std::int64_t size : {std::int64_t{-1}, std::int64_t{-77}, std::numeric_limits<std::int64_t>::min()}) {
      const std::string number = std::to_string(size);
      Problem rows(op), in(op), out(op);
      rows.descriptor.max_rows = size;
      EXPECT_TRUE(rows.select_invalid({"max_rows", number}));
      in.descriptor.in_features = size;
      EXPECT_TRUE(in.select_invalid({"in_features", number}));
      out.descriptor.out_features = size;
      EXPECT_TRUE(out.select_invalid({"out_features", number}));
    }
}

// Products of sizes that 63 bits do not count, in elements or in bytes; a zero beside them does not excuse it.
TEST(LinearSelect, SizesThatOverflow) {
  struct Sizes {
    std::int64_t m, k, n;
  };
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max(), kHalf = std::int64_t{1} << 31;
  for (const Op op : kOps) {
    for (const Sizes& sizes :
         {Sizes{1, kHuge, kHuge}, Sizes{kHuge, kHuge, 1}, Sizes{kHuge, 1, kHuge}, Sizes{0, kHuge, kHuge},
          Sizes{kHuge, kHuge, 0}, Sizes{kHuge, 0, kHuge}, Sizes{kMax, kMax, kMax}, Sizes{kMax, 2, 1}, Sizes{1, kMax, 2},
          Sizes{2, 1, kMax}, Sizes{kHalf, 1, kHalf}}) {
      Problem p(op, ElementKind::f64);
      p.descriptor.max_rows = sizes.m;
      p.descriptor.in_features = sizes.k;
      p.descriptor.out_features = sizes.n;
      EXPECT_TRUE(p.select_invalid({std::to_string(std::max({sizes.m, sizes.k, sizes.n}))}))
          << sizes.m << " " << sizes.k << " " << sizes.n;
    }
    // Large, but countable.
    Problem p(op);
    p.descriptor.max_rows = 1 << 20;
    p.descriptor.in_features = p.descriptor.out_features = 1 << 14;
    EXPECT_TRUE(accepted(p.select().status()));
  }
}

// ---- select(): element kinds ----

TEST(LinearSelect, Kinds) {
  using enum ElementKind;
  for (const Op op : kOps) {
    for (const ElementKind kind : {f32, f64, f16, bf16, s4, u4, s32}) {
      Problem weight(op), activation(op);
      weight.descriptor.weight = kind;
      EXPECT_TRUE(weight.select_unsupported({"weight", name(kind)}));
      if (op == Op::quantized) continue;
      activation.descriptor.activation = kind;
      EXPECT_TRUE(activation.select_unsupported({"activation", name(kind)}));
    }
    for (const ElementKind kind : {s8, u8, s4, u4, s32}) {
      if (op == Op::w8a8 && (kind == s8 || kind == u8)) continue;
      Problem p(op);
      p.descriptor.output = kind;
      EXPECT_TRUE(p.select_unsupported({op == Op::quantized ? "input" : "output", name(kind)}));
    }
  }
}

TEST(LinearSelect, MissingKinds) {
  for (const Op op : kOps) {
    Problem weight(op), output(op);
    weight.descriptor.weight.reset();
    EXPECT_TRUE(weight.select_invalid({"weight"}));
    output.descriptor.output.reset();
    EXPECT_TRUE(output.select_invalid({op == Op::quantized ? "input" : "output"}));
  }
}

TEST(LinearSelect, DescriptorAgainstTheTypesOfThePlan) {
  const Stream stream = Stream::cpu(1);
  {
    W8A8LinearDescriptor d{.max_rows = 3, .in_features = 4, .out_features = 5};
    EXPECT_TRUE(accepted(W8A8LinearPlan<float>::select(stream, d).status()));
    d.weight = ElementKind::s8;
    d.output = ElementKind::f32;
    EXPECT_TRUE(accepted(W8A8LinearPlan<float>::select(stream, d).status()));
    EXPECT_TRUE(unsupported(W8A8LinearPlan<Half>::select(stream, d).status(), {"w8a8_linear", "f32", "f16"}));
    EXPECT_TRUE(
        unsupported(W8A8LinearPlan<float, std::uint8_t>::select(stream, d).status(), {"w8a8_linear", "s8", "u8"}));
    d.activation = ElementKind::f32;
    EXPECT_TRUE(unsupported(W8A8LinearPlan<float>::select(stream, d).status(), {"w8a8_linear", "activation", "f32"}));
  }
  {
    SmoothQuantLinearDescriptor d{.max_rows = 3, .in_features = 4, .out_features = 5, .act_scale = 1};
    EXPECT_TRUE(accepted(SmoothQuantLinearPlan<float>::select(stream, d).status()));
    d.output = ElementKind::bf16;
    EXPECT_TRUE(accepted(SmoothQuantLinearPlan<BFloat16>::select(stream, d).status()));
    EXPECT_TRUE(
        unsupported(SmoothQuantLinearPlan<double>::select(stream, d).status(), {"smoothquant_linear", "bf16", "f64"}));
    d.weight = ElementKind::u8;
    EXPECT_TRUE(
        unsupported(SmoothQuantLinearPlan<BFloat16>::select(stream, d).status(), {"smoothquant_linear", "u8", "s8"}));
  }
  {
    QuantizedLinearDescriptor d{.max_rows = 3, .in_features = 4, .out_features = 5};
    EXPECT_TRUE(accepted(QuantizedLinearPlan<float>::select(stream, d).status()));
    d.input = ElementKind::f64;
    EXPECT_TRUE(accepted(QuantizedLinearPlan<double>::select(stream, d).status()));
    EXPECT_TRUE(
        unsupported(QuantizedLinearPlan<float>::select(stream, d).status(), {"quantized_linear", "f64", "f32"}));
    d.weight = ElementKind::s8;
    EXPECT_TRUE(unsupported(QuantizedLinearPlan<double, std::uint8_t>::select(stream, d).status(),
                            {"quantized_linear", "s8", "u8"}));
  }
}

// ---- select(): static scales and zero points ----

TEST(LinearSelect, StaticScales) {
  for (const Op op : {Op::smoothquant, Op::quantized})
    for (const ElementKind output : kFloatKinds) {
      Problem p(op, output);
      p.descriptor.static_scale = true;
      for (const double scale : {0.0, -0.0, -1.0, kNan, kInf, -kInf}) {
        p.descriptor.act_scale = scale;
        EXPECT_TRUE(p.select_invalid({"act_scale"})) << scale;
      }
      p.descriptor.act_scale = -2.5;
      EXPECT_TRUE(p.select_invalid({"act_scale", "-2.5"}));
      // What is positive in f64 and nothing in f32, or beyond it.
      for (const double scale : {1e-60, 1e60}) {
        p.descriptor.act_scale = scale;
        if (output == ElementKind::f64)
          EXPECT_TRUE(p.runs()) << scale;
        else
          EXPECT_TRUE(p.select_invalid({"act_scale"})) << scale;
      }
      for (const double scale : {1e-40, 3e38, 1.0}) {
        p.descriptor.act_scale = scale;
        EXPECT_TRUE(p.runs()) << scale;
      }
    }
  // Numerics::reciprocal divides 1 by it.
  Problem p(Op::quantized);
  p.descriptor.static_scale = true;
  p.preference.numerics = Numerics::reciprocal;
  EXPECT_TRUE(p.runs());
  p.descriptor.act_scale = 1e-40;
  EXPECT_TRUE(p.select_invalid({"act_scale"}));
}

// The default of a descriptor is no scale.
TEST(LinearSelect, AStaticScaleMustBeGiven) {
  EXPECT_TRUE(
      invalid(SmoothQuantLinearPlan<float>::select(Stream::cpu(1), {.max_rows = 3, .in_features = 4, .out_features = 5})
                  .status(),
              {"smoothquant_linear", "act_scale"}));
}

TEST(LinearSelect, StaticZeroPoints) {
  constexpr std::int32_t kMax = 1 << 23;
  for (const Op op : {Op::smoothquant, Op::quantized}) {
    Problem p(op);
    p.descriptor.static_scale = true;
    for (const std::int32_t zero_point :
         {kMax + 1, -kMax - 1, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()}) {
      p.descriptor.act_zero_point = zero_point;
      EXPECT_TRUE(p.select_invalid({"act_zero_point", std::to_string(zero_point)}));
    }
    for (const std::int32_t zero_point : {kMax, -kMax, 300, -129}) {
      p.descriptor.act_zero_point = zero_point;
      EXPECT_TRUE(p.runs());
    }
  }
}

// ---- select(): what was asked of it ----

TEST(LinearSelect, Preferences) {
  for (const Op op : kOps) {
    Problem p(op);
    ASSERT_NO_FATAL_FAILURE(expect_preferences(p, label(op)));
    // Packing takes the variable too, and the two fit each other.
    const ScopedVariable forced("KVANT_FORCE_ISA", "scalar");
    p.pack(p.args.weight);
    ASSERT_TRUE(p.packed.has_value());
    EXPECT_EQ(p.packed->isa(), ArchSku::scalar);
    EXPECT_TRUE(p.runs());
  }
}

// Served, or refused by name: never another instruction set instead.
TEST(LinearSelect, IsaThatMayBeAbsent) {
  for (const Op op : kOps)
    for (const bool by_variable : {false, true}) {
      Problem p(op);
      const ScopedVariable forced("KVANT_FORCE_ISA", by_variable ? "avx2" : nullptr);
      if (!by_variable) p.preference.isa = ArchSku::avx2;
      const auto plan = p.select();
      const auto packed = PackedWeight::pack(Stream::cpu(1), p.args.weight, p.preference);
      const auto size = PackedWeight::packed_size(Stream::cpu(1), 5, 4, p.preference);
      EXPECT_EQ(plan.ok(), packed.ok());
      EXPECT_EQ(plan.ok(), size.ok());
      if (plan.ok()) {
        EXPECT_EQ(plan->sku().arch, ArchSku::avx2);
        ASSERT_TRUE(accepted(packed.status()));
        EXPECT_EQ(packed->isa(), ArchSku::avx2);
        continue;
      }
      const std::string_view asked = by_variable ? "KVANT_FORCE_ISA" : "PlanPreference";
      EXPECT_TRUE(unsupported(plan.status(), {label(op), asked, "avx2"}));
      EXPECT_TRUE(unsupported(packed.status(), {"packed_weight", asked, "avx2"}));
      EXPECT_TRUE(unsupported(size.status(), {"packed_weight", asked, "avx2"}));
    }
}

// ---- rows ----

TEST(LinearRows, MoreThanThePlanAllows) {
  for (const Op op : kOps) {
    for (const std::int64_t most : {0, 1, 2}) {
      Problem p(op);
      p.descriptor.max_rows = most;
      EXPECT_TRUE(p.invalid({"3", "max_rows", std::to_string(most)}));
    }
    Problem p(op);
    p.descriptor.max_rows = 1000;
    EXPECT_TRUE(p.runs());
    // 2 * 3 rows are 6.
    Problem many(op);
    many.descriptor.max_rows = 5;
    many.args.activation.shape = {2, 3, 4};
    many.args.output.shape = {2, 3, 5};
    if (op == Op::w8a8) {
      many.args.act_scale = AnyParameter(AnyRef{many.at(Problem::kActScale), ElementKind::f32, {6}, 0});
      many.args.act_zero_point = AnyParameter(AnyRef{many.at(Problem::kActZeroPoint), ElementKind::s32, {6}, 0});
    }
    EXPECT_TRUE(many.invalid({"6", "max_rows", "5"}));
    many.descriptor.max_rows = 6;
    EXPECT_TRUE(many.runs());
  }
}

// ---- views ----

std::string_view activation_name(Op op) { return op == Op::quantized ? "input" : "activation"; }

// The activation of quantized_linear is called its input in typed arguments and activation in others; a sentence may
// say either.
testing::AssertionResult refuses_activation(const Problem& p, StatusCode code, Parts parts) {
  testing::AssertionResult result = p.refuses(code, parts);
  if (!result) return result;
  const auto plan = p.select();
  const std::string message(plan->can_implement(p.args).message());
  if (message.find("activation") == std::string::npos && message.find(activation_name(p.op)) == std::string::npos)
    return testing::AssertionFailure() << "\"" << message << "\" names neither activation nor input";
  return result;
}

TEST(LinearViews, OfAnotherKind) {
  using enum ElementKind;
  for (const Op op : kOps) {
    for (const ElementKind kind : {f32, f64, f16, bf16, s8, u8, s4, u4, s32}) {
      Problem activation(op), weight(op), output(op);
      const ElementKind had = activation.args.activation.kind;
      if (kind != had) {
        activation.args.activation.kind = kind;
        EXPECT_TRUE(refuses_activation(activation, StatusCode::Unsupported, {name(kind), name(had)}));
      }
      if (kind != s8) {
        weight.args.weight.kind = kind;
        EXPECT_TRUE(weight.unsupported({"weight", name(kind), "s8"}));
      }
      if (kind != f32) {
        output.args.output.kind = kind;
        EXPECT_TRUE(output.unsupported({"output", name(kind), "f32"}));
      }
    }
  }
}

TEST(LinearViews, ActivationsOfAnotherShape) {
  for (const Op op : kOps) {
    for (const Shape& shape : {Shape{3, 5}, Shape{3, 3}, Shape{12}, Shape{3, 4, 1}, Shape{5}, Shape{3, 0}}) {
      Problem p(op);
      p.args.activation.shape = shape;
      EXPECT_TRUE(refuses_activation(p, StatusCode::InvalidProblem, {shape.to_string(), "4"}));
    }
    // Negative sizes, also in pairs, no rank, and too much of it.
    for (const Shape& shape : {Shape{-3, 4}, Shape{-1, -3, 4}, Shape(), Shape{1, 1, 1, 1, 1, 1, 1, 3, 4}}) {
      Problem p(op);
      p.args.activation.shape = shape;
      EXPECT_FALSE(p.runs());
      EXPECT_TRUE(p.invalid({}));
    }
    Problem overflow(op);
    overflow.args.activation.shape = {kHuge, kHuge, 4};
    overflow.args.output.shape = {kHuge, kHuge, 5};
    EXPECT_TRUE(overflow.invalid({"1099511627776"}));
  }
}

TEST(LinearViews, OutputsOfAnotherShape) {
  for (const Op op : kOps) {
    for (const Shape& shape : {Shape{3, 4}, Shape{4, 5}, Shape{2, 5}, Shape{15}, Shape{5}, Shape{1, 3, 5},
                               Shape{3, 1, 5}, Shape{3, 5, 1}, Shape{3, -5}, Shape()}) {
      Problem p(op);
      p.args.output.shape = shape;
      EXPECT_TRUE(p.invalid({"output", shape.to_string(), "[3, 5]"}));
    }
    // The leading sizes must agree one by one.
    Problem p(op);
    p.descriptor.max_rows = 6;
    p.args.activation.shape = {2, 3, 4};
    if (op == Op::w8a8) {
      p.args.act_scale = AnyParameter(0.5f);
      p.args.act_zero_point = AnyParameter(std::int32_t{0});
    }
    for (const Shape& shape : {Shape{3, 2, 5}, Shape{6, 5}, Shape{2, 3, 1, 5}}) {
      p.args.output.shape = shape;
      EXPECT_TRUE(p.invalid({"output", shape.to_string(), "[2, 3, 5]"}));
    }
    p.args.output.shape = {2, 3, 5};
    EXPECT_TRUE(p.runs());
  }
}

TEST(LinearViews, WeightsOfAnotherShape) {
  for (const Op op : kOps)
    for (const Shape& shape :
         {Shape{4, 5}, Shape{5, 3}, Shape{6, 4}, Shape{20}, Shape{5, 4, 1}, Shape{5, -4}, Shape()}) {
      Problem p(op);
      p.args.weight.shape = shape;
      EXPECT_TRUE(p.invalid({"weight", shape.to_string(), "[5, 4]"}));
    }
}

TEST(LinearViews, RowStrides) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  for (const Op op : kOps) {
    for (const std::int64_t stride : {std::int64_t{3}, std::int64_t{1}, std::int64_t{-4}, kMin}) {
      const std::string number = std::to_string(stride);
      Problem activation(op), weight(op), output(op);
      activation.args.activation.row_stride = stride;
      EXPECT_TRUE(refuses_activation(activation, StatusCode::InvalidProblem, {"stride", number, "4"}));
      weight.args.weight.row_stride = stride;
      EXPECT_TRUE(weight.invalid({"weight", "stride", number, "4"}));
      output.args.output.row_stride = stride;
      EXPECT_TRUE(output.invalid({"output", "stride", number, "5"}));
    }
    Problem p(op);
    p.args.output.row_stride = 4;
    EXPECT_TRUE(p.invalid({"output", "stride", "4", "5"}));
    for (const std::int64_t more : {0, 3}) {
      p.args.activation.row_stride = p.args.weight.row_stride = 4 + more;
      p.args.output.row_stride = 5 + more;
      EXPECT_TRUE(p.runs());
    }
    for (const int bits : {62, 61}) {  // times three rows, or the bytes of an element
      const std::int64_t stride = std::int64_t{1} << bits;
      const std::string number = std::to_string(stride);
      Problem activation(op), weight(op), output(op);
      activation.args.activation.row_stride = stride;
      weight.args.weight.row_stride = stride;
      output.args.output.row_stride = stride;
      if (bits == 62) {
        EXPECT_TRUE(refuses_activation(activation, StatusCode::InvalidProblem, {"stride", number}));
        EXPECT_TRUE(weight.invalid({"weight", "stride", number}));
      }
      EXPECT_TRUE(output.invalid({"output", "stride", number}));
    }
  }
}

TEST(LinearViews, Null) {
  for (const Op op : kOps) {
    Problem activation(op), output(op), weight(op);
    activation.args.activation.data = nullptr;
    EXPECT_TRUE(refuses_activation(activation, StatusCode::InvalidProblem, {"null", "[3, 4]"}));
    output.args.output.data = nullptr;
    EXPECT_TRUE(output.invalid({"output", "null", "[3, 5]"}));
    weight.args.weight.data = nullptr;
    EXPECT_TRUE(weight.invalid({"weight"}));
    weight.args.weight = {};
    EXPECT_TRUE(weight.invalid({"weight"}));
    // A bias that is null is none, whatever else its view says.
    Problem bias(op);
    bias.args.bias.data = nullptr;
    EXPECT_TRUE(bias.runs());
  }
}

TEST(LinearViews, DefaultArguments) {
  for (const Op op : kOps) {
    Problem p(op);
    p.args = {};
    EXPECT_FALSE(p.runs());
  }
  const Stream stream = Stream::cpu(1);
  const auto plan = W8A8LinearPlan<float>::select(stream, {.max_rows = 1, .in_features = 2, .out_features = 3});
  ASSERT_TRUE(accepted(plan.status()));
  std::vector<std::byte> scratch(plan->workspace_size());
  EXPECT_TRUE(invalid(plan->run(stream, {scratch.data(), scratch.size()}, {}), {"w8a8_linear"}) ||
              unsupported(plan->run(stream, {scratch.data(), scratch.size()}, {}), {"w8a8_linear"}));
}

// ---- raw or packed ----

TEST(LinearWeight, ExactlyOneOfTheTwo) {
  for (const Op op : kOps) {
    Problem p(op);
    const AnyRef raw = p.args.weight;
    p.pack(raw);
    EXPECT_TRUE(p.runs());
    p.args.weight = raw;
    EXPECT_TRUE(p.invalid({"weight", "packed_weight"}));
    p.args.packed_weight = nullptr;
    EXPECT_TRUE(p.runs());
    p.args.weight = {};
    EXPECT_TRUE(p.invalid({"weight", "packed_weight"}));
  }
}

TEST(LinearWeight, PackedOfAnotherShape) {
  for (const Op op : kOps)
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{4, 5}, {5, 3}, {6, 4}, {5, 0}, {20, 1}}) {
      Problem p(op);
      p.pack({p.at(Problem::kWeight), ElementKind::s8, {n, k}, 0});
      EXPECT_TRUE(p.invalid({"packed_weight", std::to_string(n), std::to_string(k), "5", "4"}));
    }
}

TEST(LinearWeight, PackedOfAnotherKind) {
  for (const Op op : kOps) {
    Problem u8(op);
    u8.pack({u8.at(Problem::kWeight), ElementKind::u8, {5, 4}, 0});
    EXPECT_TRUE(u8.unsupported({"packed_weight", "u8", "s8"}));
    Problem s8(op, ElementKind::f32, false, 3, 4, 5, ElementKind::s8, ElementKind::u8);
    s8.pack({s8.at(Problem::kWeight), ElementKind::s8, {5, 4}, 0});
    EXPECT_TRUE(s8.unsupported({"packed_weight", "u8", "s8"}));
  }
}

TEST(LinearWeight, PackedForAnotherInstructionSet) {
  for (const Op op : kOps) {
    Problem p(op);
    p.preference.isa = ArchSku::avx2;
    if (!p.select().ok()) GTEST_SKIP() << p.select().status().message();
    p.pack(p.args.weight);
    EXPECT_TRUE(p.runs());
    p.preference.isa = ArchSku::scalar;
    EXPECT_TRUE(p.unsupported({"packed_weight", "avx2", "scalar"}));
  }
}

// ---- parameters ----

struct ParameterView {
  const char* what;
  AnyParameter AnyLinearArgs::*member;
  std::size_t place;
  std::int64_t count;  // that it must have
};
constexpr ParameterView kActScaleView{"act_scale", &AnyLinearArgs::act_scale, Problem::kActScale, 3};
constexpr ParameterView kWeightScaleView{"weight_scale", &AnyLinearArgs::weight_scale, Problem::kWeightScale, 5};
constexpr ParameterView kActZeroPointView{"act_zero_point", &AnyLinearArgs::act_zero_point, Problem::kActZeroPoint, 3};
constexpr ParameterView kWeightZeroPointView{"weight_zero_point", &AnyLinearArgs::weight_zero_point,
                                             Problem::kWeightZeroPoint, 5};

std::vector<ParameterView> scales_of(Op op) {
  if (op == Op::w8a8) return {kActScaleView, kWeightScaleView};
  return {kWeightScaleView};
}
std::vector<ParameterView> zero_points_of(Op op) {
  if (op == Op::w8a8) return {kActZeroPointView, kWeightZeroPointView};
  return {kWeightZeroPointView};
}

TEST(LinearParameters, OfAnotherKind) {
  using enum ElementKind;
  for (const Op op : kOps)
    for (const ElementKind output : kFloatKinds) {
      for (const ParameterView& view : scales_of(op)) {
        const ElementKind right = scale_kind(output);
        for (const ElementKind wrong : {f32, f64, f16, bf16, s32, s8}) {
          if (wrong == right) continue;
          Problem p(op, output);
          p.args.*view.member = AnyParameter(AnyRef{p.at(view.place), wrong, {view.count}, 0});
          EXPECT_TRUE(p.unsupported({view.what, name(wrong), name(right)}));
        }
        Problem p(op, output);
        p.args.*view.member = right == f64 ? AnyParameter(1.0f) : AnyParameter(1.0);
        EXPECT_TRUE(p.unsupported({view.what, "f32", "f64"}));
        p.args.*view.member = AnyParameter(std::int32_t{1});
        EXPECT_TRUE(p.unsupported({view.what, "s32", name(right)}));
      }
      for (const ParameterView& view : zero_points_of(op)) {
        Problem p(op, output);
        for (const ElementKind wrong : {s8, u8, f32}) {
          p.args.*view.member = AnyParameter(AnyRef{p.at(view.place), wrong, {view.count}, 0});
          EXPECT_TRUE(p.unsupported({view.what, name(wrong), "s32"}));
        }
        p.args.*view.member = AnyParameter(1.0f);
        EXPECT_TRUE(p.unsupported({view.what, "f32", "s32"}));
      }
    }
}

TEST(LinearParameters, OfAnotherShape) {
  for (const Op op : kOps) {
    std::vector<ParameterView> all = scales_of(op);
    for (const ParameterView& view : zero_points_of(op)) all.push_back(view);
    for (const ParameterView& view : all) {
      const ElementKind kind = (Problem(op).args.*view.member).kind();
      for (const Shape& shape :
           {Shape{4}, Shape{2}, Shape{0}, Shape{3, 4}, Shape{5, 4}, Shape{2, 3}, Shape{-3}, Shape{-5}}) {
        Problem p(op);
        p.args.*view.member = AnyParameter(AnyRef{p.at(view.place), kind, shape, 0});
        EXPECT_TRUE(p.invalid({view.what, shape.to_string(), std::to_string(view.count)}));
      }
    }
  }
  // As long as the other side.
  Problem swapped(Op::w8a8);
  std::swap(swapped.args.act_scale, swapped.args.weight_scale);
  EXPECT_TRUE(swapped.invalid({"scale", "[5]"}) || swapped.invalid({"scale", "[3]"}));
}

TEST(LinearParameters, MustBeDense) {
  for (const Op op : kOps) {
    std::vector<ParameterView> all = scales_of(op);
    for (const ParameterView& view : zero_points_of(op)) all.push_back(view);
    for (const ParameterView& view : all)
      for (const std::int64_t stride : {std::int64_t{1}, std::int64_t{9}, std::int64_t{-1}}) {
        Problem p(op);
        const ElementKind kind = (p.args.*view.member).kind();
        p.args.*view.member = AnyParameter(AnyRef{p.at(view.place), kind, {view.count}, stride});
        EXPECT_TRUE(p.invalid({view.what, "stride", std::to_string(stride)}));
        p.args.*view.member = AnyParameter(AnyRef{p.at(view.place), kind, {view.count}, view.count});
        EXPECT_TRUE(p.runs());
      }
  }
}

TEST(LinearParameters, Null) {
  for (const Op op : kOps) {
    std::vector<ParameterView> all = scales_of(op);
    for (const ParameterView& view : zero_points_of(op)) all.push_back(view);
    for (const ParameterView& view : all) {
      Problem p(op);
      const ElementKind kind = (p.args.*view.member).kind();
      p.args.*view.member = AnyParameter(AnyRef{nullptr, kind, {view.count}, 0});
      EXPECT_TRUE(p.invalid({view.what, "null"}));
      p.args.*view.member = AnyParameter(AnyRef{nullptr, kind, {}, 0});  // the default of a scale: none given
      EXPECT_TRUE(p.invalid({view.what}));
    }
  }
}

TEST(LinearParameters, ScalesThatAreNumbers) {
  for (const Op op : kOps)
    for (const ParameterView& view : scales_of(op)) {
      for (const float scale : {0.0f, -0.0f, -2.5f, std::numeric_limits<float>::quiet_NaN(),
                                std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
        Problem p(op);
        p.args.*view.member = AnyParameter(scale);
        EXPECT_TRUE(p.invalid({view.what})) << scale;
        Problem f64(op, ElementKind::f64);
        f64.args.*view.member = AnyParameter(static_cast<double>(scale));
        EXPECT_TRUE(f64.invalid({view.what})) << scale;
      }
      Problem p(op);
      p.args.*view.member = AnyParameter(-2.5f);
      EXPECT_TRUE(p.invalid({view.what, "-2.5"}));
      for (const float scale : {1e-45f, 3e38f, 1.0f}) {
        p.args.*view.member = AnyParameter(scale);
        EXPECT_TRUE(p.runs()) << scale;
      }
      // Entries of a tensor are not scanned.
      p.args.*view.member = AnyParameter(AnyRef{p.at(view.place), ElementKind::f32, {view.count}, 0});
      const float bad[] = {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN()};
      std::memcpy(p.at(view.place), bad, sizeof bad);
      EXPECT_TRUE(p.runs());
    }
}

TEST(LinearParameters, ZeroPointsThatAreNumbers) {
  constexpr std::int32_t kMax = 1 << 23, kIntMax = std::numeric_limits<std::int32_t>::max(),
                         kIntMin = std::numeric_limits<std::int32_t>::min();
  for (const ElementKind activation : kBytes) {
    Problem p(Op::w8a8, ElementKind::f32, false, 3, 4, 5, activation);
    for (const std::int32_t zero_point : {kMax + 1, -kMax - 1, kIntMax, kIntMin}) {
      p.args.act_zero_point = AnyParameter(zero_point);
      EXPECT_TRUE(p.invalid({"act_zero_point", std::to_string(zero_point)}));
    }
    for (const std::int32_t zero_point : {kMax, -kMax, 256, -129, 0}) {
      p.args.act_zero_point = AnyParameter(zero_point);
      EXPECT_TRUE(p.runs());
    }
  }
  for (const Op op : kOps)
    for (const ElementKind weight : kBytes) {
      const CodeRange range = code_range(weight);
      Problem p(op, ElementKind::f32, false, 3, 4, 5, ElementKind::s8, weight);
      for (const std::int32_t zero_point : {range.min - 1, range.max + 1, kIntMax, kIntMin}) {
        p.args.weight_zero_point = AnyParameter(zero_point);
        EXPECT_TRUE(p.invalid({"weight_zero_point", std::to_string(zero_point)}));
      }
      for (const std::int32_t zero_point : {range.min, range.max}) {
        p.args.weight_zero_point = AnyParameter(zero_point);
        EXPECT_TRUE(p.runs());
      }
      // Entries of a tensor count as the nearest.
      const std::int32_t far[] = {kIntMin, kIntMax};
      std::memcpy(p.at(Problem::kWeightZeroPoint), far, sizeof far);
      p.args.weight_zero_point = AnyParameter(AnyRef{p.at(Problem::kWeightZeroPoint), ElementKind::s32, {5}, 0});
      EXPECT_TRUE(p.runs());
    }
}

// ---- bias ----

TEST(LinearBias, OfAnotherKind) {
  using enum ElementKind;
  for (const Op op : kOps)
    for (const ElementKind output : kFloatKinds)
      for (const ElementKind kind : {f32, f64, f16, bf16, s8, u8, s4, u4, s32}) {
        Problem p(op, output);
        p.args.bias.kind = kind;
        if (kind == output || kind == scale_kind(output))
          EXPECT_TRUE(p.runs()) << name(kind) << " bias, " << name(output) << " output";
        else
          EXPECT_TRUE(p.unsupported({"bias", name(kind), name(output)}));
      }
}

TEST(LinearBias, OfAnotherShape) {
  for (const Op op : kOps)
    for (const Shape& shape : {Shape{4}, Shape{6}, Shape{3}, Shape{5, 1}, Shape{1, 5}, Shape(), Shape{0}, Shape{-5}}) {
      Problem p(op);
      p.args.bias.shape = shape;
      EXPECT_TRUE(p.invalid({"bias", shape.to_string(), "[5]"}));
    }
}

// ---- smoothing vectors, and what belongs to other plans ----

TEST(LinearSmooth, MustBeGivenWhereItWasAnnounced) {
  for (const ElementKind in : kFloatKinds)
    for (const bool is_static : {false, true}) {
      Problem p(Op::quantized, in, true);
      p.descriptor.static_scale = is_static;
      EXPECT_TRUE(p.runs());
      p.args.smooth.data = nullptr;
      EXPECT_TRUE(p.invalid({"smooth"}));
      p.args.smooth = {};
      EXPECT_FALSE(p.runs());
    }
}

TEST(LinearSmooth, MustNotBeGivenElsewhere) {
  for (const Op op : kOps) {
    Problem p(op);
    p.args.smooth = {p.at(Problem::kSmooth), ElementKind::f32, {4}, 0};
    EXPECT_TRUE(p.invalid({"smooth"}));
    p.args.smooth = {};
    EXPECT_TRUE(p.runs());
  }
}

TEST(LinearSmooth, OfAnotherShapeOrKind) {
  for (const Shape& shape : {Shape{3}, Shape{5}, Shape{4, 2}, Shape{0}, Shape{-4}, Shape()}) {
    Problem p(Op::quantized, ElementKind::f32, true);
    p.args.smooth.shape = shape;
    EXPECT_TRUE(p.invalid({"smooth", shape.to_string(), "4"}));
  }
  for (const ElementKind in : kFloatKinds)
    for (const ElementKind kind :
         {ElementKind::f32, ElementKind::f64, ElementKind::f16, ElementKind::bf16, ElementKind::s8, ElementKind::s32}) {
      if (kind == scale_kind(in)) continue;
      Problem p(Op::quantized, in, true);
      p.args.smooth.kind = kind;
      EXPECT_TRUE(p.unsupported({"smooth", name(kind), name(scale_kind(in))}));
    }
}

// act_scale and act_zero_point are arguments of w8a8_linear alone.
TEST(LinearArguments, OfAnotherPlan) {
  for (const Op op : {Op::smoothquant, Op::quantized}) {
    Problem p(op);
    p.args.act_scale = AnyParameter(0.5f);
    EXPECT_TRUE(p.invalid({"act_scale"}));
    p.args.act_scale = AnyParameter(AnyRef{p.at(Problem::kActScale), ElementKind::f32, {3}, 0});
    EXPECT_TRUE(p.invalid({"act_scale"}));
    p.args.act_scale = AnyParameter(AnyRef{});
    EXPECT_TRUE(p.runs());
    p.args.act_zero_point = AnyParameter(std::int32_t{7});
    EXPECT_TRUE(p.invalid({"act_zero_point"}));
    p.args.act_zero_point = AnyParameter(AnyRef{p.at(Problem::kActZeroPoint), ElementKind::s32, {3}, 0});
    EXPECT_TRUE(p.invalid({"act_zero_point"}));
    p.args.act_zero_point = AnyParameter(std::int32_t{0});
    EXPECT_TRUE(p.runs());
  }
}

// ---- overlap ----

struct Neighbour {
  std::string_view what;  // how a sentence may name it
  std::size_t place;
  std::size_t bytes;
};

// Everything that a problem of f32 outputs reads.
std::vector<Neighbour> neighbours(Op op, bool smooth) {
  std::vector<Neighbour> all = {{"weight", Problem::kWeight, 20},
                                {"weight_scale", Problem::kWeightScale, 20},
                                {"weight_zero_point", Problem::kWeightZeroPoint, 20},
                                {"bias", Problem::kBias, 20}};
  all.push_back({op == Op::quantized ? "" : "activation", Problem::kActivation, op == Op::quantized ? 48u : 12u});
  if (op == Op::w8a8) {
    all.push_back({"act_scale", Problem::kActScale, 12});
    all.push_back({"act_zero_point", Problem::kActZeroPoint, 12});
  }
  if (smooth) all.push_back({"smooth", Problem::kSmooth, 16});
  return all;
}

// From both sides by one byte, and then just beside it.
TEST(LinearOverlap, OfTheOutputWithAnyInput) {
  constexpr std::size_t kOutputBytes = 60;
  for (const Op op : kOps)
    for (const bool smooth : {false, true}) {
      if (smooth && op != Op::quantized) continue;
      for (const Neighbour& other : neighbours(op, smooth)) {
        Problem p(op, ElementKind::f32, smooth);
        for (const std::size_t at : {other.place - kOutputBytes + 1, other.place, other.place + other.bytes - 1}) {
          p.args.output.data = p.at(at);
          EXPECT_TRUE(p.invalid({"output", "overlap", other.what})) << at;
        }
        for (const std::size_t at : {other.place - kOutputBytes, other.place + other.bytes}) {
          p.args.output.data = p.at(at);
          EXPECT_TRUE(p.runs()) << "beside " << other.what << " at " << at;
        }
      }
    }
}

// Columns of one matrix are no overlap: codes in the gaps between rows of floats.
TEST(LinearOverlap, NotInTheGaps) {
  Problem p(Op::w8a8);
  p.args.output.row_stride = 8;  // 20 bytes of outputs, 12 free
  p.args.activation.row_stride = 32;
  for (const std::size_t at : {20u, 28u}) {
    p.args.activation.data = p.at(Problem::kOutput + at);
    EXPECT_TRUE(p.runs()) << at;
  }
  for (const std::size_t at : {19u, 29u}) {
    p.args.activation.data = p.at(Problem::kOutput + at);
    EXPECT_TRUE(p.invalid({"output", "overlap", "activation"})) << at;
  }
}

// The scratch in front of, on and behind each view, one byte too near and just beside it.
TEST(LinearOverlap, OfTheWorkspace) {
  for (const Op op : kOps) {
    const bool smooth = op == Op::quantized;
    const Problem model(op, ElementKind::f32, smooth);
    const auto plan = model.select();
    ASSERT_TRUE(accepted(plan.status()));
    const std::size_t needed = plan->workspace_size();
    if (needed == 0) continue;  // nothing can overlap
    std::vector<Neighbour> all = neighbours(op, smooth);
    all.push_back({"output", Problem::kOutput, 60});
    for (const Neighbour& other : all) {
      Problem p(op, ElementKind::f32, smooth);
      // A buffer of its own, with room for the scratch on either side.
      std::vector<std::byte> memory(2 * needed + other.bytes, std::byte{0x3C});
      std::byte* view = memory.data() + needed;
      switch (other.place) {
        case Problem::kActivation: p.args.activation.data = view; break;
        case Problem::kWeight: p.args.weight.data = view; break;
        case Problem::kBias: p.args.bias.data = view; break;
        case Problem::kSmooth: p.args.smooth.data = view; break;
        case Problem::kOutput: p.args.output.data = view; break;
        case Problem::kActScale: p.args.act_scale = AnyParameter(AnyRef{view, ElementKind::f32, {3}, 0}); break;
        case Problem::kActZeroPoint:
          p.args.act_zero_point = AnyParameter(AnyRef{view, ElementKind::s32, {3}, 0});
          break;
        case Problem::kWeightScale: p.args.weight_scale = AnyParameter(AnyRef{view, ElementKind::f32, {5}, 0}); break;
        default: p.args.weight_zero_point = AnyParameter(AnyRef{view, ElementKind::s32, {5}, 0}); break;
      }
      const Stream stream = Stream::cpu(1);
      EXPECT_TRUE(accepted(plan->can_implement(p.args)));
      const std::vector<std::byte> before = memory;
      for (const std::size_t at : {std::size_t{1}, needed, needed + other.bytes - 1})
        EXPECT_TRUE(invalid(plan->run(stream, {memory.data() + at, needed}, p.args),
                            {label(op), "workspace", "overlap", other.what}))
            << other.what << " at " << at << " of " << needed;
      EXPECT_EQ(memory, before);
      for (const std::size_t at : {std::size_t{0}, needed + other.bytes})
        EXPECT_TRUE(accepted(plan->run(stream, {memory.data() + at, needed}, p.args)))
            << other.what << " at " << at << " of " << needed;
    }
  }
}

// ---- workspace and streams ----

TEST(LinearWorkspace, TooSmall) {
  for (const Op op : kOps)
    for (const bool smooth : {false, true}) {
      if (smooth && op != Op::quantized) continue;
      const Problem p(op, ElementKind::f32, smooth);
      const auto plan = p.select();
      ASSERT_TRUE(accepted(plan.status()));
      const std::size_t needed = plan->workspace_size();
      if (op == Op::quantized) {
        EXPECT_GT(needed, 0u) << "codes and scales have to be somewhere";
      }
      if (needed == 0) continue;  // nothing can be too small
      const Stream stream = Stream::cpu(1);
      std::vector<std::byte> scratch(needed + 64);
      const std::vector<std::byte> before = p.memory;
      EXPECT_TRUE(accepted(plan->can_implement(p.args)));
      for (const std::size_t size : {std::size_t{0}, std::size_t{1}, needed - 1}) {
        if (size >= needed) continue;
        EXPECT_TRUE(refused(plan->run(stream, {scratch.data(), size}, p.args), StatusCode::WorkspaceTooSmall,
                            {label(op), "workspace", std::to_string(size), std::to_string(needed)}));
      }
      EXPECT_TRUE(refused(plan->run(stream, {}, p.args), StatusCode::WorkspaceTooSmall,
                          {label(op), "workspace", " 0 ", std::to_string(needed)}));
      // Enough bytes that are nowhere.
      EXPECT_TRUE(invalid(plan->run(stream, {nullptr, needed}, p.args),
                          {label(op), "workspace", "null", std::to_string(needed)}));
      EXPECT_EQ(p.memory, before);
      // More than needed is fine, at any address.
      for (const std::size_t shift : {0u, 1u, 7u, 33u})
        EXPECT_TRUE(accepted(plan->run(stream, {scratch.data() + shift, needed}, p.args))) << shift;
      EXPECT_TRUE(accepted(plan->run(stream, {scratch.data(), needed + 64}, p.args)));
    }
}

TEST(LinearStream, ThatIsNotUsable) {
  const Stream bad = Stream::cpu(0);
  for (const Op op : kOps) {
    const Problem p(op);
    EXPECT_TRUE(invalid(p.descriptor.select(op, bad, {}).status(), {"0 threads"}));
    const auto plan = p.select();
    ASSERT_TRUE(accepted(plan.status()));
    const std::vector<std::byte> before = p.memory;
    std::vector<std::byte> scratch(plan->workspace_size());
    EXPECT_TRUE(invalid(plan->run(bad, {scratch.data(), scratch.size()}, p.args), {"0 threads"}));
    EXPECT_EQ(p.memory, before);
  }
  EXPECT_TRUE(invalid(W8A8LinearPlan<float>::select(bad, {}).status(), {"0 threads"}));
  EXPECT_TRUE(invalid(SmoothQuantLinearPlan<float>::select(bad, {.act_scale = 1}).status(), {"0 threads"}));
  EXPECT_TRUE(invalid(QuantizedLinearPlan<float>::select(bad, {}).status(), {"0 threads"}));
  const std::int8_t w[4] = {};
  const auto packed = PackedWeight::pack(Stream::cpu(1), TensorRef<std::int8_t>(w, {2, 2}));
  ASSERT_TRUE(accepted(packed.status()));
  EXPECT_TRUE(invalid(PackedWeight::pack(bad, TensorRef<std::int8_t>(w, {2, 2})).status(), {"0 threads"}));
  EXPECT_TRUE(invalid(PackedWeight::packed_size(bad, 2, 2).status(), {"0 threads"}));
  EXPECT_TRUE(invalid(PackedWeight::from_bytes(bad, packed->bytes()).status(), {"0 threads"}));
}

// ---- nothing to do ----

// Without rows or outputs nothing is written and nothing need be there; shapes and kinds are checked all the same.
TEST(LinearLegal, NoRowsOrNoOutputs) {
  for (const Op op : kOps) {
    Problem rows(op, ElementKind::f32, false, 0, 4, 5);
    rows.args.activation.data = nullptr;
    rows.args.output.data = nullptr;
    EXPECT_TRUE(rows.runs());
    rows.args.output.shape = {0, 4};
    EXPECT_TRUE(rows.invalid({"output", "[0, 4]", "[0, 5]"}));
    // A plan for many rows, run with none.
    Problem none(op);
    none.args.activation.shape = {0, 4};
    none.args.output.shape = {0, 5};
    none.args.activation.data = nullptr;
    none.args.output.data = nullptr;
    if (op == Op::w8a8) {
      none.args.act_scale = AnyParameter(0.5f);
      none.args.act_zero_point = AnyParameter(std::int32_t{0});
    }
    const std::vector<std::byte> before = none.memory;
    EXPECT_TRUE(none.runs());
    EXPECT_EQ(none.memory, before);

    Problem outputs(op, ElementKind::f32, false, 3, 4, 0);
    outputs.args.output.data = nullptr;
    const std::vector<std::byte> untouched = outputs.memory;
    EXPECT_TRUE(outputs.runs());
    EXPECT_EQ(outputs.memory, untouched);

    Problem features(op, ElementKind::f32, false, 3, 0, 5);
    features.args.activation.data = nullptr;
    EXPECT_TRUE(features.runs());
    features.args.output.data = nullptr;  // the bias has to go somewhere
    EXPECT_TRUE(features.invalid({"output", "null"}));
  }
}

// ---- packed weights ----

TEST(PackedWeightRefusal, Kinds) {
  using enum ElementKind;
  const std::byte w[64] = {};
  for (const ElementKind kind : {f32, f64, f16, bf16, s4, u4, s32})
    EXPECT_TRUE(
        unsupported(PackedWeight::pack(Stream::cpu(1), {w, kind, {2, 2}, 0}).status(), {"packed_weight", name(kind)}));
  for (const ElementKind kind : kBytes)
    EXPECT_TRUE(accepted(PackedWeight::pack(Stream::cpu(1), {w, kind, {2, 2}, 0}).status()));
}

TEST(PackedWeightRefusal, Shapes) {
  const std::byte w[64] = {};
  for (const Shape& shape :
       {Shape(), Shape{4}, Shape{2, 2, 1}, Shape{-2, 2}, Shape{2, -2}, Shape{-2, -2}, Shape{kHuge, kHuge}})
    EXPECT_TRUE(invalid(PackedWeight::pack(Stream::cpu(1), {w, ElementKind::s8, shape, 0}).status(),
                        {"packed_weight", shape.to_string()}));
}

TEST(PackedWeightRefusal, Strides) {
  const std::byte w[64] = {};
  for (const std::int64_t stride : {std::int64_t{3}, std::int64_t{1}, std::int64_t{-4},
                                    std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()})
    EXPECT_TRUE(invalid(PackedWeight::pack(Stream::cpu(1), {w, ElementKind::s8, {5, 4}, stride}).status(),
                        {"packed_weight", "stride", std::to_string(stride)}));
  for (const std::int64_t stride : {0, 4, 9})
    EXPECT_TRUE(accepted(PackedWeight::pack(Stream::cpu(1), {w, ElementKind::s8, {5, 4}, stride}).status()));
}

TEST(PackedWeightRefusal, Null) {
  EXPECT_TRUE(invalid(PackedWeight::pack(Stream::cpu(1), {nullptr, ElementKind::s8, {5, 4}, 0}).status(),
                      {"packed_weight", "null", "[5, 4]"}));
  for (const Shape& shape : {Shape{0, 4}, Shape{5, 0}, Shape{0, 0}})
    EXPECT_TRUE(accepted(PackedWeight::pack(Stream::cpu(1), {nullptr, ElementKind::s8, shape, 0}).status()));
}

TEST(PackedWeightRefusal, Sizes) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const Stream stream = Stream::cpu(1);
  for (const std::int64_t size : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    EXPECT_TRUE(invalid(PackedWeight::packed_size(stream, size, 4).status(), {"packed_weight", std::to_string(size)}));
    EXPECT_TRUE(invalid(PackedWeight::packed_size(stream, 4, size).status(), {"packed_weight", std::to_string(size)}));
  }
  for (const auto& [n, k] : {std::pair{kHuge, kHuge},
                             {kMax, std::int64_t{2}},
                             {std::int64_t{2}, kMax},
                             {kMax, kMax},
                             {kMax, std::int64_t{1}},
                             {std::int64_t{1}, kMax}})
    EXPECT_TRUE(invalid(PackedWeight::packed_size(stream, n, k).status(),
                        {"packed_weight", std::to_string(n), std::to_string(k)}));
  EXPECT_TRUE(accepted(PackedWeight::packed_size(stream, 0, 0).status()));
  EXPECT_TRUE(accepted(PackedWeight::packed_size(stream, 1 << 17, 1 << 15).status()));
}

TEST(PackedWeightRefusal, Preferences) {
  const std::int8_t w[4] = {};
  const TensorRef<std::int8_t> weight(w, {2, 2});
  EXPECT_TRUE(unsupported(PackedWeight::pack(Stream::cpu(1), weight, {.backend = BackendKind::cuda}).status(),
                          {"packed_weight", "cuda"}));
  EXPECT_TRUE(unsupported(PackedWeight::packed_size(Stream::cpu(1), 2, 2, {.backend = BackendKind::cuda}).status(),
                          {"packed_weight", "cuda"}));
  const ScopedVariable forced("KVANT_FORCE_ISA", "sse9");
  EXPECT_TRUE(
      unsupported(PackedWeight::pack(Stream::cpu(1), weight).status(), {"packed_weight", "KVANT_FORCE_ISA", "sse9"}));
  EXPECT_TRUE(unsupported(PackedWeight::packed_size(Stream::cpu(1), 2, 2).status(),
                          {"packed_weight", "KVANT_FORCE_ISA", "sse9"}));
}

// A buffer that is no packed weight, or one of another size; damage of every other kind is in linear_test.
TEST(PackedWeightRefusal, ForeignBytes) {
  const Stream stream = Stream::cpu(1);
  const std::int8_t w[4] = {1, 2, 3, 4};
  const auto packed = PackedWeight::pack(stream, TensorRef<std::int8_t>(w, {2, 2}));
  ASSERT_TRUE(accepted(packed.status()));
  std::vector<std::byte> bytes(packed->bytes().begin(), packed->bytes().end());
  EXPECT_TRUE(accepted(PackedWeight::from_bytes(stream, bytes).status()));
  EXPECT_TRUE(invalid(PackedWeight::from_bytes(stream, {}).status(), {"packed_weight", "0"}));
  EXPECT_TRUE(invalid(PackedWeight::from_bytes(stream, std::span(bytes).first(3)).status(), {"packed_weight", "3"}));
  const std::size_t less = bytes.size() - 1, more = bytes.size() + 1;
  EXPECT_TRUE(invalid(PackedWeight::from_bytes(stream, std::span(bytes).first(less)).status(),
                      {"packed_weight", std::to_string(less)}));
  bytes.push_back(std::byte{0});
  EXPECT_TRUE(invalid(PackedWeight::from_bytes(stream, bytes).status(), {"packed_weight", std::to_string(more)}));
  bytes.assign(less + 1, std::byte{'x'});
  EXPECT_FALSE(PackedWeight::from_bytes(stream, bytes).ok());
}

}  // namespace
}  // namespace kvant::tests
