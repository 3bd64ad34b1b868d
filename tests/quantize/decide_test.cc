// What happens to experts, which loaders join into one stack: every scheme is decided, and what they do not take is
// said.
#include "quantize/decide.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/scheme.h"
#include "model/roles.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using quantize::Action;
using quantize::CheckpointPlan;
using quantize::QuantizeOptions;

// Six matrices of attention, a router, and two experts whose down_proj has `inner` input channels.
Result<CheckpointPlan> decided(const format::Scheme& scheme, const std::vector<std::string>& ignore = {},
                               std::uint64_t inner = 128) {
  CheckpointFixture model;
  model.config["model_type"] = "qwen3_moe";
  const auto add = [&](const std::string& module, std::uint64_t rows, std::uint64_t columns) {
    model.add(bf16_tensor(module + ".weight", {rows, columns}, std::vector<double>(rows * columns, 1.0)));
  };
  for (int layer = 0; layer < 6; ++layer) add("layers." + std::to_string(layer) + ".self_attn.o_proj", 128, 128);
  add("layers.0.mlp.gate", 2, 128);
  for (const std::string expert : {"layers.0.mlp.experts.0", "layers.0.mlp.experts.1"}) {
    add(expert + ".gate_proj", inner, 128);
    add(expert + ".up_proj", inner, 128);
    add(expert + ".down_proj", 128, inner);
  }
  ScratchFolder scratch;
  model.write(scratch / "m");
  QuantizeOptions options;
  options.scheme = scheme;
  options.ignore = ignore;
  return quantize::decide(opened(scratch / "m"), options, nullptr);
}

TEST(Decide, ExpertsGetEverySchemeThatLoadersTakeForThem) {
  for (const format::SchemeRow& row : format::schemes()) {
    if (row.scheme.needs_statistics()) continue;
    const auto plan = decided(row.scheme);
    if (row.against_experts.empty()) {
      EXPECT_TRUE(plan.ok()) << row.name << ": " << plan.status().message();
    } else {
      EXPECT_TRUE(unsupported(plan.status(), {"'layers.0.mlp.experts.0.gate_proj' is an expert and would be ", row.name,
                                              row.against_experts, "--override 're:.*experts.*=none'"}));
    }
  }
}

TEST(Decide, ExpertsOfALayerNeedOneScheme) {
  const auto plan = decided(w8a8(), {"layers.0.mlp.experts.1.down_proj"});
  EXPECT_TRUE(invalid(plan.status(), {"'layers.0.mlp.experts.0.gate_proj' would be w8a8 and "
                                      "'layers.0.mlp.experts.1.down_proj' not quantized (matches --ignore",
                                      "use one scheme for all of them"}));
}

TEST(Decide, ExpertsStayTogetherWhereOneDoesNotFit) {
  const auto plan = decided(w4a16(16), {}, 24);
  must(plan.status());
  for (const quantize::TensorPlan& tensor : plan->tensors) {
    const bool expert = tensor.name.find("experts") != std::string::npos;
    if (tensor.role != model::Role::linear) continue;
    EXPECT_EQ(tensor.action, expert ? Action::copy : Action::quantize) << tensor.name;
    if (!expert) continue;
    EXPECT_EQ(tensor.reason, tensor.name.find("down") != std::string::npos
                                 ? "24 input channels are not a multiple of the group size 16"
                                 : "loaders join the experts of a layer into one stack, and "
                                   "'layers.0.mlp.experts.0.down_proj' is not quantized");
  }
}

}  // namespace
}  // namespace kvant::tests
