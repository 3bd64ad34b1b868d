// What a plan says to arguments that it must refuse, or must not.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "kvant/plan.h"
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

}  // namespace kvant::tests
