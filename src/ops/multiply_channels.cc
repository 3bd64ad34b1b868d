// A product as the backward pass of dequantize; see multiply_channels.h.
#include "ops/multiply_channels.h"

namespace kvant::ops {

Result<MultiplyChannelsPlan> MultiplyChannelsPlan::select(const Stream& stream, const Shape& shape, int axis,
                                                          ElementKind kind) {
  auto plan = ElementwisePlan::select(stream, {.op = QuantizeKind::dequantize_backward,
                                               .shape = shape,
                                               .granularity = PerChannel{axis},
                                               .input = ElementKind::s8,  // of codes, which it does not read
                                               .output = kind});
  if (!plan.ok()) return plan.status();
  return MultiplyChannelsPlan(*std::move(plan));
}

Status MultiplyChannelsPlan::run(const Stream& stream, const AnyMut& tensor, const AnyRef& factors) const {
  ElementwiseArgs args;
  args.grad_output = tensor;
  args.output = tensor;
  args.scale = AnyParameter(factors);
  return plan_.run(stream, {}, args);
}

}  // namespace kvant::ops
