// The section "post_processor": which special tokens a text gets around it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvant/status.h"
#include "model/tokenizer/section.h"

namespace kvant::model::tokenizer {

class PostProcessor {
 public:
  // Adds nothing.
  PostProcessor() = default;
  // Refuses ids that are not below `size`.
  static Result<PostProcessor> read(const Section& section, std::int32_t size);

  std::vector<std::int32_t> apply(std::vector<std::int32_t> ids, bool add_special_tokens) const;

 private:
  // Special tokens, or the ids of the text (nothing).
  using Template = std::vector<std::optional<std::vector<std::int32_t>>>;
  class Reader;

  std::optional<Template> template_;
};

}  // namespace kvant::model::tokenizer
