// A granularity in the words of a test's message: "per group of 32 along axis 1".
#pragma once

#include <string>

#include "kvant/granularity.h"

namespace kvant::tests {

inline std::string granularity_text(const Granularity& g) {
  const std::string text = "per " + std::string(name(g.kind()));
  switch (g.kind()) {
    case GranularityKind::channel: return text + " along axis " + std::to_string(g.axis());
    case GranularityKind::group:
      return text + " of " + std::to_string(g.group_size()) + " along axis " + std::to_string(g.axis());
    case GranularityKind::block:
      return text + " of " + std::to_string(g.block_rows()) + " x " + std::to_string(g.block_columns());
    default: return text;
  }
}

}  // namespace kvant::tests
