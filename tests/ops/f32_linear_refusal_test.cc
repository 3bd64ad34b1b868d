// Every way in which f32 linear plans and their packed weights say no, with the code and the numbers, and the
// neighbouring cases that they must not refuse. A refused run() leaves every byte as it was.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvant/kvant.h"
#include "tests/support/f32_linear_case.h"
#include "tests/support/plan_refusals.h"

namespace kvant::tests {
namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 40;
constexpr StatusCode kInvalid = StatusCode::InvalidProblem, kUnsupported = StatusCode::Unsupported;

// A problem that is in order, with all of its views in one buffer. A test changes one thing and says what must be
// refused. Places are far enough apart that moving one by its own size meets no other.
struct Problem {
  static constexpr std::size_t kStep = 512;
  static constexpr std::size_t kInput = 1 * kStep, kWeight = 2 * kStep, kBias = 3 * kStep, kOutput = 4 * kStep;

  F32LinearDescriptor descriptor{.max_rows = 3, .in_features = 4, .out_features = 5, .weight = ElementKind::f32};
  PlanPreference preference;
  std::vector<std::byte> memory = std::vector<std::byte>(6 * kStep, std::byte{0x3C});
  AnyF32LinearArgs args;
  std::optional<PackedF32Weight> packed;

  explicit Problem(ElementKind weight = ElementKind::f32) {
    descriptor.weight = weight;
    args.input = {at(kInput), ElementKind::f32, {3, 4}, 0};
    args.weight = {at(kWeight), weight, {5, 4}, 0};
    args.bias = {at(kBias), ElementKind::f32, {5}, 0};
    args.output = {at(kOutput), ElementKind::f32, {3, 5}, 0};
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  std::byte* at(std::size_t place) { return memory.data() + place; }

  // A packed weight in place of the raw one.
  void pack(const AnyRef& weight, const PlanPreference& how = {}) {
    const auto made = PackedF32Weight::pack(Stream::cpu(1), weight, how);
    ASSERT_TRUE(made.ok()) << made.status().message();
    packed = *made;
    args.packed_weight = &*packed;
    args.weight = {};
  }

  Result<AnyF32LinearPlan> select() const { return AnyF32LinearPlan::select(Stream::cpu(1), descriptor, preference); }
  testing::AssertionResult select_refuses(StatusCode code, Parts parts) const {
    const Status status = select().status();
    if (testing::AssertionResult result = refused(status, code, parts); !result) return result;
    return refused(status, code, {"f32_linear"});
  }

  testing::AssertionResult refuses(StatusCode code, Parts parts) const {
    return tests::refuses(select(), args, memory, code, parts, "f32_linear");
  }
  testing::AssertionResult runs() const { return tests::runs(select(), args); }
};

// The baseline of everything below: what is not changed is not refused.
TEST(F32LinearBaseline, EverythingRuns) {
  for (const ElementKind weight : kF32WeightKinds) {
    Problem p(weight);
    EXPECT_TRUE(p.runs());
    p.args.bias = {};
    EXPECT_TRUE(p.runs());
    p.pack(p.args.weight);
    EXPECT_TRUE(p.runs());
    p.descriptor.max_rows = 1000;
    EXPECT_TRUE(p.runs());
  }
}

// ---- select() ----

TEST(F32LinearSelect, NegativeSizes) {
  for (const std::int64_t size : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    const std::string number = std::to_string(size);
    Problem rows, in, out;
    rows.descriptor.max_rows = size;
    EXPECT_TRUE(rows.select_refuses(kInvalid, {"max_rows", number}));
    in.descriptor.in_features = size;
    EXPECT_TRUE(in.select_refuses(kInvalid, {"in_features", number}));
    out.descriptor.out_features = size;
    EXPECT_TRUE(out.select_refuses(kInvalid, {"out_features", number}));
  }
}

TEST(F32LinearSelect, SizesThatOverflow) {
  struct Sizes {
    std::int64_t m, k, n;
  };
  for (const Sizes& sizes : {Sizes{1, kHuge, kHuge}, Sizes{kHuge, kHuge, 1}, Sizes{kHuge, 1, kHuge}}) {
    Problem p;
    p.descriptor.max_rows = sizes.m;
    p.descriptor.in_features = sizes.k;
    p.descriptor.out_features = sizes.n;
    EXPECT_TRUE(p.select_refuses(kInvalid, {std::to_string(kHuge)}));
  }
}

TEST(F32LinearSelect, Kinds) {
  using enum ElementKind;
  for (const ElementKind kind : {f64, s8, u8, s4, u4, s32}) {
    Problem p;
    p.descriptor.weight = kind;
    EXPECT_TRUE(p.select_refuses(kUnsupported, {"weight", name(kind), "f32, f16, bf16"}));
  }
  Problem p;
  p.descriptor.weight.reset();
  EXPECT_TRUE(p.select_refuses(kInvalid, {"weight"}));
  // The typed plan fills it in, and refuses another one.
  EXPECT_TRUE(F32LinearPlan<Half>::select(Stream::cpu(1), p.descriptor).ok());
  p.descriptor.weight = bf16;
  EXPECT_TRUE(refused(F32LinearPlan<Half>::select(Stream::cpu(1), p.descriptor).status(), kUnsupported,
                      {"f32_linear", "bf16", "f16", "weight"}));
}

TEST(F32LinearSelect, Preferences) {
  Problem p;
  p.preference.backend = BackendKind::cuda;
  EXPECT_TRUE(p.select_refuses(kUnsupported, {"cuda"}));
  p.preference.backend = BackendKind::cpu;
  p.preference.isa = ArchSku::sm_80;
  EXPECT_TRUE(p.select_refuses(kUnsupported, {"sm_80"}));
  p.preference.isa.reset();
  const ScopedVariable forced("KVANT_FORCE_ISA", "scalar");
  ASSERT_TRUE(p.select().ok());
  EXPECT_EQ(p.select()->sku().arch, ArchSku::scalar);
  const ScopedVariable unknown("KVANT_FORCE_ISA", "mmx");
  EXPECT_TRUE(p.select_refuses(kUnsupported, {"KVANT_FORCE_ISA=mmx"}));
}

TEST(F32LinearSelect, StreamsThatAreNotUsable) {
  const Stream bad = Stream::cpu(0);
  Problem p;
  EXPECT_TRUE(refused(AnyF32LinearPlan::select(bad, p.descriptor).status(), kInvalid, {"0 threads"}));
  EXPECT_TRUE(refused(F32LinearPlan<>::select(bad, {}).status(), kInvalid, {"0 threads"}));
  const auto plan = p.select();
  ASSERT_TRUE(plan.ok());
  std::vector<std::byte> scratch(plan->workspace_size());
  EXPECT_TRUE(refused(plan->run(bad, {scratch.data(), scratch.size()}, p.args), kInvalid, {"0 threads"}));
  // Without CUDA or without a device the stream itself says why; with one, the plan does.
  const Stream gpu = Stream::cuda(nullptr);
  const Status status = AnyF32LinearPlan::select(gpu, p.descriptor).status();
  if (gpu.status().ok())
    EXPECT_TRUE(refused(status, kUnsupported, {"f32_linear", "cpu", "cuda"}));
  else
    EXPECT_EQ(status.code(), gpu.status().code());
}

// ---- Views ----

TEST(F32LinearViews, OfAnotherKind) {
  for (const ElementKind kind : {ElementKind::f64, ElementKind::f16, ElementKind::bf16, ElementKind::s8}) {
    Problem input, output, bias, weight;
    input.args.input.kind = kind;
    EXPECT_TRUE(input.refuses(kUnsupported, {"input", name(kind), "f32"}));
    output.args.output.kind = kind;
    EXPECT_TRUE(output.refuses(kUnsupported, {"output", name(kind), "f32"}));
    bias.args.bias.kind = kind;
    EXPECT_TRUE(bias.refuses(kUnsupported, {"bias", name(kind), "f32"}));
    weight.args.weight.kind = kind;
    EXPECT_TRUE(weight.refuses(kUnsupported, {"weight", name(kind), "f32"}));
  }
}

TEST(F32LinearViews, OfAnotherShape) {
  for (const Shape& shape : {Shape{}, Shape{3, 5}, Shape{3, 4, 1}, Shape{3, -4}, Shape{kHuge, kHuge, 4}}) {
    Problem p;
    p.args.input.shape = shape;
    EXPECT_TRUE(p.refuses(kInvalid, {"input", shape.to_string(), "4"}));
  }
  for (const Shape& shape : {Shape{3, 4}, Shape{2, 5}, Shape{15}, Shape{3, 5, 1}}) {
    Problem p;
    p.args.output.shape = shape;
    EXPECT_TRUE(p.refuses(kInvalid, {"output", shape.to_string(), "[3, 5]"}));
  }
  for (const Shape& shape : {Shape{4, 5}, Shape{20}, Shape{5, 4, 1}, Shape{6, 4}}) {
    Problem p;
    p.args.weight.shape = shape;
    EXPECT_TRUE(p.refuses(kInvalid, {"weight", shape.to_string(), "[5, 4]"}));
  }
  for (const Shape& shape : {Shape{}, Shape{4}, Shape{1, 5}}) {
    Problem p;
    p.args.bias.shape = shape;
    EXPECT_TRUE(p.refuses(kInvalid, {"bias", shape.to_string(), "[5]"}));
  }
  Problem rows;
  rows.descriptor.max_rows = 2;
  EXPECT_TRUE(rows.refuses(kInvalid, {"input", "3 rows", "max_rows 2"}));
}

TEST(F32LinearViews, RowStrides) {
  Problem input, output, weight;
  input.args.input.row_stride = 3;
  EXPECT_TRUE(input.refuses(kInvalid, {"input", "stride 3", "4"}));
  output.args.output.row_stride = 4;
  EXPECT_TRUE(output.refuses(kInvalid, {"output", "stride 4", "5"}));
  weight.args.weight.row_stride = -1;
  EXPECT_TRUE(weight.refuses(kInvalid, {"weight", "stride -1", "4"}));
  weight.args.weight.row_stride = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(weight.refuses(kInvalid, {"weight", "63 bits"}));
}

TEST(F32LinearViews, Null) {
  Problem input, output;
  input.args.input.data = nullptr;
  EXPECT_TRUE(input.refuses(kInvalid, {"input", "null", "[3, 4]"}));
  output.args.output.data = nullptr;
  EXPECT_TRUE(output.refuses(kInvalid, {"output", "null", "[3, 5]"}));
  Problem nothing;
  nothing.args = {};
  EXPECT_TRUE(nothing.refuses(kInvalid, {"input", "[]"}));
}

// ---- Weights ----

TEST(F32LinearWeight, ExactlyOneOfTheTwo) {
  Problem p;
  const AnyRef weight = p.args.weight;
  p.args.weight = {};
  EXPECT_TRUE(p.refuses(kInvalid, {"neither weight nor packed_weight"}));
  p.pack(weight);
  p.args.weight = weight;
  EXPECT_TRUE(p.refuses(kInvalid, {"both weight and packed_weight"}));
  p.args.packed_weight = nullptr;
  p.args.weight.data = nullptr;
  EXPECT_TRUE(p.refuses(kInvalid, {"weight", "null"}));
}

TEST(F32LinearWeight, PackedOfAnotherShapeKindOrInstructionSet) {
  Problem p;
  p.pack({p.at(Problem::kWeight), ElementKind::f32, {4, 5}, 0});
  EXPECT_TRUE(p.refuses(kInvalid, {"packed_weight", "[4, 5]", "[5, 4]"}));
  p.pack({p.at(Problem::kWeight), ElementKind::bf16, {5, 4}, 0});
  EXPECT_TRUE(p.refuses(kUnsupported, {"packed_weight", "bf16", "f32"}));
  for (const ArchSku packed_for : runnable_isas())
    for (const ArchSku planned_for : runnable_isas()) {
      p.pack({p.at(Problem::kWeight), ElementKind::f32, {5, 4}, 0}, {.isa = packed_for});
      p.preference.isa = planned_for;
      if (packed_for == planned_for)
        EXPECT_TRUE(p.runs());
      else
        EXPECT_TRUE(p.refuses(kUnsupported, {"packed_weight", name(packed_for), name(planned_for)}));
    }
}

// ---- Overlaps and workspace ----

TEST(F32LinearOverlap, OfTheOutputWithAnyInput) {
  const std::pair<const char*, std::size_t> places[] = {
      {"input", Problem::kInput}, {"weight", Problem::kWeight}, {"bias", Problem::kBias}};
  for (const auto& [what, place] : places)
    for (const std::size_t shift : {std::size_t{0}, std::size_t{4}, std::size_t{16}}) {
      Problem p;
      p.args.output.data = p.at(place + shift);
      EXPECT_TRUE(p.refuses(kInvalid, {"output overlaps", what}));
    }
  Problem p;
  p.pack(p.args.weight);
  p.args.output.data = const_cast<std::byte*>(p.packed->bytes().data()) + 64;
  EXPECT_TRUE(p.refuses(kInvalid, {"output overlaps packed_weight"}));
}

TEST(F32LinearOverlap, NotInTheGaps) {
  Problem p;
  p.args.input.row_stride = 9;
  p.args.output.row_stride = 9;
  p.args.output.data = p.at(Problem::kInput + 16);  // after the four floats of the input
  EXPECT_TRUE(p.runs());
  p.args.output.data = p.at(Problem::kInput + 12);
  EXPECT_TRUE(p.refuses(kInvalid, {"output overlaps input"}));
}

TEST(F32LinearWorkspace, OverlapsNothing) {
  Problem p;
  const auto plan = p.select();
  ASSERT_TRUE(plan.ok());
  const std::pair<const char*, std::size_t> places[] = {
      {"input", Problem::kInput}, {"weight", Problem::kWeight}, {"bias", Problem::kBias}, {"output", Problem::kOutput}};
  const std::vector<std::byte> before = p.memory;
  for (const auto& [what, place] : places) {
    const Status done = plan->run(Stream::cpu(1), {p.at(place) + 8, plan->workspace_size()}, p.args);
    EXPECT_TRUE(refused(done, kInvalid, {"f32_linear", "workspace overlaps", what}));
  }
  EXPECT_EQ(p.memory, before);
}

TEST(F32LinearWorkspace, TooSmall) {
  Problem p;
  const auto plan = p.select();
  ASSERT_TRUE(plan.ok());
  const std::size_t needed = plan->workspace_size();
  ASSERT_EQ(needed, 3u * 4 * 4 + 64);
  std::vector<std::byte> scratch(needed);
  const std::vector<std::byte> before = p.memory;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, needed - 1})
    EXPECT_TRUE(refused(plan->run(Stream::cpu(1), {scratch.data(), size}, p.args), StatusCode::WorkspaceTooSmall,
                        {"f32_linear", std::to_string(size), std::to_string(needed)}));
  EXPECT_TRUE(refused(plan->run(Stream::cpu(1), {nullptr, needed}, p.args), kInvalid,
                      {"f32_linear", "workspace is null", std::to_string(needed)}));
  EXPECT_EQ(p.memory, before);
  EXPECT_TRUE(plan->run(Stream::cpu(1), {scratch.data(), needed}, p.args).ok());
}

// ---- Nothing to do ----

// Without rows or outputs nothing is written and nothing need be there; shapes are checked all the same.
TEST(F32LinearLegal, NoRowsOrNoOutputs) {
  Problem rows;
  rows.args.input = {nullptr, ElementKind::f32, {0, 4}, 0};
  rows.args.output = {nullptr, ElementKind::f32, {0, 5}, 0};
  EXPECT_TRUE(rows.runs());
  rows.args.output.shape = {0, 6};
  EXPECT_TRUE(rows.refuses(kInvalid, {"output", "[0, 6]"}));
  Problem outputs;
  outputs.descriptor.out_features = 0;
  outputs.args.weight = {nullptr, ElementKind::f32, {0, 4}, 0};
  outputs.args.bias = {};
  outputs.args.output = {nullptr, ElementKind::f32, {3, 0}, 0};
  EXPECT_TRUE(outputs.runs());
  Problem depth;
  depth.descriptor.in_features = 0;
  depth.args.input = {nullptr, ElementKind::f32, {3, 0}, 0};
  depth.args.weight = {nullptr, ElementKind::f32, {5, 0}, 0};
  EXPECT_TRUE(depth.runs());
}

// ---- PackedF32Weight ----

TEST(PackedF32WeightRefusal, WeightsThatCannotBePacked) {
  const Stream stream = Stream::cpu(1);
  std::vector<float> w(20);
  const AnyRef good{w.data(), ElementKind::f32, {5, 4}, 0};
  ASSERT_TRUE(PackedF32Weight::pack(stream, good).ok());
  const auto no = [&](const AnyRef& weight, StatusCode code, Parts parts) {
    const Status status = PackedF32Weight::pack(stream, weight).status();
    if (testing::AssertionResult result = refused(status, code, parts); !result) return result;
    return refused(status, code, {"packed_f32_weight"});
  };
  using enum ElementKind;
  for (const ElementKind kind : {f64, s8, u8, s4, u4, s32}) {
    EXPECT_TRUE(no({w.data(), kind, {5, 4}, 0}, kUnsupported, {name(kind), "f32, f16, bf16"}));
    EXPECT_TRUE(refused(PackedF32Weight::packed_size(stream, kind, 5, 4).status(), kUnsupported, {name(kind)}));
  }
  for (const Shape& shape : {Shape{}, Shape{20}, Shape{1, 5, 4}})
    EXPECT_TRUE(no({w.data(), f32, shape, 0}, kInvalid, {shape.to_string(), "two dimensions"}));
  EXPECT_TRUE(no({w.data(), f32, {-5, 4}, 0}, kInvalid, {"[-5, 4]"}));
  EXPECT_TRUE(no({w.data(), f32, {kHuge, kHuge}, 0}, kInvalid, {std::to_string(kHuge)}));
  EXPECT_TRUE(no({w.data(), f32, {5, 4}, 3}, kInvalid, {"stride 3", "4"}));
  EXPECT_TRUE(no({nullptr, f32, {5, 4}, 0}, kInvalid, {"null", "[5, 4]"}));
  EXPECT_TRUE(refused(PackedF32Weight::packed_size(stream, f32, -1, 4).status(), kInvalid, {"out_features -1"}));
  EXPECT_TRUE(refused(PackedF32Weight::pack(stream, good, {.isa = ArchSku::sm_80}).status(), kUnsupported, {"sm_80"}));
  const Stream bad = Stream::cpu(0);
  EXPECT_TRUE(refused(PackedF32Weight::pack(bad, good).status(), kInvalid, {"0 threads"}));
  EXPECT_TRUE(refused(PackedF32Weight::packed_size(bad, f32, 5, 4).status(), kInvalid, {"0 threads"}));
}

TEST(PackedF32WeightRefusal, ForeignBytes) {
  const Stream stream = Stream::cpu(1);
  const std::vector<float> w(20);
  const auto packed = PackedF32Weight::pack(stream, TensorRef<float>(w.data(), {5, 4}));
  ASSERT_TRUE(packed.ok());
  const std::vector<std::byte> good(packed->bytes().begin(), packed->bytes().end());
  const auto no = [&](std::span<const std::byte> bytes, StatusCode code, Parts parts) {
    return refused(PackedF32Weight::from_bytes(stream, bytes).status(), code, parts);
  };
  EXPECT_TRUE(no(std::span(good).first(10), kInvalid, {"10 bytes", "64"}));
  EXPECT_TRUE(no(std::span(good).first(good.size() - 1), kInvalid,
                 {std::to_string(good.size() - 1), "[5, 4]", std::to_string(good.size())}));
  const auto changed = [&](std::size_t at, std::string_view text) {
    std::vector<std::byte> bytes = good;
    for (std::size_t i = 0; i < text.size(); ++i) bytes[at + i] = static_cast<std::byte>(text[i]);
    return bytes;
  };
  EXPECT_TRUE(no(changed(6, "99"), kInvalid, {"are not a packed weight of this version"}));
  EXPECT_TRUE(no(changed(8, "vax"), kUnsupported, {"'vax", "does not know"}));
  EXPECT_TRUE(no(changed(24, "s32"), kInvalid, {"'s32'", "f32, f16, bf16"}));
  EXPECT_TRUE(no(changed(good.size() - 1, "?"), kInvalid, {"[5, 4]", "damaged"}));
}

}  // namespace
}  // namespace kvant::tests
