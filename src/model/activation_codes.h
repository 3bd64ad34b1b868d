// Activations through the codes of a scheme and back: what a linear reads after a loader has quantized its input. For
// schemes whose products kvant makes in floating point.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/scheme.h"
#include "kvant/plan.h"
#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant::model {

class ActivationCodes {
 public:
  // `scale` and `zero_point` of static activations, `scale` the global one of local ones.
  ActivationCodes(const format::ActivationScheme& scheme, std::int64_t in_features, float scale,
                  std::int32_t zero_point)
      : scheme_(scheme), in_(in_features), scale_(scale), zero_point_(zero_point) {}

  // Refuses codes and scales that no plan takes together.
  Status check(const Stream& stream) const;

  // Bytes for up to `rows` rows.
  Result<std::size_t> workspace_size(const Stream& stream, std::int64_t rows) const;
  // Rows of `x` (`stride` elements apart) as their codes give them back, dense.
  Status run(const Stream& stream, Workspace workspace, const float* x, std::int64_t stride, std::int64_t rows,
             float* to) const;

 private:
  bool is_static() const { return scheme_.dynamic == format::Dynamic::no; }

  format::ActivationScheme scheme_;
  std::int64_t in_;
  float scale_;
  std::int32_t zero_point_;
};

}  // namespace kvant::model
