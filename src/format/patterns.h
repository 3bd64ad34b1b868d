// How --ignore, --include and the lists of quantization_config name modules.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/status.h"

namespace kvant::format {

// A list of patterns as --ignore takes them and as compressed-tensors writes them: an exact module name, or "re:" and a
// regular expression that is matched from the start of the name.
class Patterns {
 public:
  // Refuses a regular expression that does not compile, has a back-reference or more than 1024 bytes, naming it.
  static Result<Patterns> parse(std::span<const std::string> patterns);

  // The first pattern that matches; null if none does. Nothing matches a name of more than 4096 bytes.
  const std::string* match(std::string_view module) const;
  // All that match, in their order.
  std::vector<const std::string*> matches(std::string_view module) const;

 private:
  struct Pattern;
  bool fits(std::size_t pattern, std::string_view module) const;
  std::vector<std::string> patterns_;
  std::shared_ptr<const std::vector<Pattern>> compiled_;
};

}  // namespace kvant::format
