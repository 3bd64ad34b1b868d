// The section "normalizer": what becomes of a text before it is cut.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kvant/status.h"
#include "model/tokenizer/section.h"

namespace kvant::model::tokenizer {

class Normalizer {
 public:
  using Step = std::function<Status(std::string& text)>;

  // Does nothing.
  Normalizer() = default;
  static Result<Normalizer> read(const Section& section);

  Status apply(std::string& text) const;
  // What a step puts in the place of spaces; empty where none does.
  const std::string& space_marker() const { return space_marker_; }

 private:
  Status add(const Section& section);

  std::vector<Step> steps_;
  std::string space_marker_;
};

}  // namespace kvant::model::tokenizer
