// Names of modules and their components.
#include "format/module_name.h"

#include <gtest/gtest.h>

namespace kvant::tests {
namespace {

TEST(ModuleName, OfTensorsAndTheirComponents) {
  EXPECT_EQ(format::module_of("model.layers.0.mlp.up_proj.weight"), "model.layers.0.mlp.up_proj");
  EXPECT_EQ(format::module_of("a.weight.weight"), "a.weight");
  EXPECT_EQ(format::module_of("a.bias"), "");
  EXPECT_EQ(format::module_of("weight"), "");
  EXPECT_EQ(format::module_of("aweight"), "");
  EXPECT_EQ(format::module_of(""), "");
  EXPECT_EQ(format::last_component("model.layers.0.mlp.up_proj"), "up_proj");
  EXPECT_EQ(format::last_component("up_proj"), "up_proj");
  EXPECT_EQ(format::last_component("a."), "");
  EXPECT_EQ(format::last_component(""), "");
  EXPECT_EQ(format::parent_of("model.layers.0"), "model.layers");
  EXPECT_EQ(format::parent_of("model"), "");
  EXPECT_EQ(format::first_component("model.layers.0"), "model");
  EXPECT_EQ(format::first_component("model"), "model");
  for (const std::string_view number : {"0", "007", "18446744073709551616"}) EXPECT_TRUE(format::is_number(number));
  for (const std::string_view other : {"", "-1", "+1", "1x", " 1", "x"})
    EXPECT_FALSE(format::is_number(other)) << other;
}

TEST(ModuleName, OfExperts) {
  EXPECT_EQ(format::experts_of("model.layers.0.mlp.experts.3.up_proj"), "model.layers.0.mlp.experts");
  EXPECT_EQ(format::experts_of("experts.12.w2"), "experts");
  for (const std::string_view other : {"a.shared_experts.0.up_proj", "a.experts.up_proj", "a.experts.x.up_proj",
                                       "a.shared_expert.up_proj", "a.experts.0", "experts", ""})
    EXPECT_EQ(format::experts_of(other), "") << other;
}

}  // namespace
}  // namespace kvant::tests
