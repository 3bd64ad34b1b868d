// What a plan says to arguments that it must refuse, or must not.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvant/plan.h"
#include "kvant/sku.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "tests/support/refusals.h"

namespace kvant::tests {

// can_implement() and run() refuse alike, with a sentence that begins with `prefix`, and run() changes nothing in
// `watched` or in its workspace.
template <class Plan, class Args>
testing::AssertionResult refuses(const Plan& plan, const Args& args, std::span<const std::byte> watched,
                                 StatusCode code, Parts parts, std::string_view prefix = "") {
  const std::vector<std::byte> before(watched.begin(), watched.end());
  std::vector<std::byte> scratch(plan.workspace_size(), std::byte{0x77});
  const Status asked = plan.can_implement(args);
  const Status ran = plan.run(Stream::cpu(1), {scratch.data(), scratch.size()}, args);
  if (testing::AssertionResult result = refused(ran, code, parts); !result) return result << " (run)";
  if (asked.code() != ran.code() || asked.message() != ran.message())
    return testing::AssertionFailure() << "can_implement says \"" << asked.message() << "\", run \"" << ran.message()
                                       << "\"";
  if (!std::equal(before.begin(), before.end(), watched.begin()) ||
      scratch != std::vector<std::byte>(scratch.size(), std::byte{0x77}))
    return testing::AssertionFailure() << "a refused run wrote: " << ran.message();
  if (!ran.message().starts_with(prefix))
    return testing::AssertionFailure() << "\"" << ran.message() << "\" does not begin with \"" << prefix << "\"";
  return testing::AssertionSuccess();
}
template <class Plan, class Args>
testing::AssertionResult refuses(const Result<Plan>& plan, const Args& args, std::span<const std::byte> watched,
                                 StatusCode code, Parts parts, std::string_view prefix = "") {
  if (!plan.ok()) return accepted(plan.status()) << " (select)";
  return refuses(*plan, args, watched, code, parts, prefix);
}

// select(), can_implement() and run() all accept.
template <class Plan, class Args>
testing::AssertionResult runs(const Result<Plan>& plan, const Args& args) {
  if (!plan.ok()) return accepted(plan.status()) << " (select)";
  if (testing::AssertionResult result = accepted(plan->can_implement(args)); !result) return result;
  std::vector<std::byte> scratch(plan->workspace_size());
  return accepted(plan->run(Stream::cpu(1), {scratch.data(), scratch.size()}, args));
}

// What select() makes of preferences, in the name of `who`. A problem has a preference, select() and runs().
template <class Problem>
void expect_preferences(Problem& p, std::string_view who) {
  p.preference.backend = BackendKind::cuda;
  EXPECT_TRUE(unsupported(p.select().status(), {who, "cuda"}));
  p.preference.backend = BackendKind::cpu;
  EXPECT_TRUE(p.runs());
  {
    const ScopedVariable forced("KVANT_FORCE_ISA", "sse9");
    EXPECT_TRUE(unsupported(p.select().status(), {who, "KVANT_FORCE_ISA", "sse9"}));
    p.preference.isa = ArchSku::scalar;
    EXPECT_TRUE(p.runs());
    p.preference.isa.reset();
  }
  const ScopedVariable forced("KVANT_FORCE_ISA", "scalar");
  const auto plan = p.select();
  ASSERT_TRUE(accepted(plan.status()));
  EXPECT_EQ(plan->sku().arch, ArchSku::scalar);
}

// AVX2 is served, or refused by name: never another instruction set instead.
template <class Problem>
void expect_avx2_or_its_name(Problem& p, std::string_view who) {
  for (const bool by_variable : {false, true}) {
    const ScopedVariable forced("KVANT_FORCE_ISA", by_variable ? "avx2" : nullptr);
    p.preference.isa = by_variable ? std::nullopt : std::optional(ArchSku::avx2);
    const auto plan = p.select();
    if (plan.ok()) {
      EXPECT_EQ(plan->sku().arch, ArchSku::avx2);
      continue;
    }
    const std::string_view asked_by = by_variable ? "KVANT_FORCE_ISA" : "PlanPreference";
    EXPECT_TRUE(unsupported(plan.status(), {who, asked_by, " asks for avx2, which this "}));
  }
}

}  // namespace kvant::tests
