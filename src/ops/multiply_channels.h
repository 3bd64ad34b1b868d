// The product of each channel of a tensor with a factor of its own, as a plan: all that can be refused comes before
// anything is written.
//
// There is no kernel for it alone. The backward pass of dequantize computes dq = dy * scale, rounded once, with a scale
// for each channel, and reads no codes: given the tensor for dy and the factors for scales it is this product.
#pragma once

#include <cstdint>
#include <utility>

#include "kvant/elementwise.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "kvant/tensor.h"

namespace kvant::ops {

class MultiplyChannelsPlan {
 public:
  // `kind` is floating point.
  static Result<MultiplyChannelsPlan> select(const Stream& stream, const Shape& shape, int axis, ElementKind kind);

  // tensor = tensor * factors[channel], in place. The factors have the tensor's scale kind.
  Status run(const Stream& stream, const AnyMut& tensor, const AnyRef& factors) const;

 private:
  explicit MultiplyChannelsPlan(ElementwisePlan plan) : plan_(std::move(plan)) {}
  ElementwisePlan plan_;
};

}  // namespace kvant::ops
