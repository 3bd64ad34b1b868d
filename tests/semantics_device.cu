// Compiles every formula of semantics/ as device code, so that the CPU's arithmetic stays usable on the GPU. Not run.
#include "cuda/lanes.h"
#include "semantics/dynamic_range.h"
#include "semantics/quantize.h"

namespace {

template <class C>
__global__ void every_formula(const C* x, const C* dy, C scale, int zero_point, int q_min, int q_max, int* codes,
                              C* out, int n) {
  using L = kvant::cuda::DeviceLanes<C>;
  namespace s = kvant::semantics;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const s::Prepared<L> p = s::prepare<L>(scale, zero_point, q_min, q_max);
  const s::Divide<L> divide{p.scale};
  const s::Multiply<L> multiply{p.inverse};
  const s::CorrectedMultiply<L> corrected{p.scale, p.inverse};
  codes[3 * i] = s::quantize<L>(x[i], divide, p.zero_point, q_min, q_max);
  codes[3 * i + 1] = s::quantize<L>(x[i], multiply, p.zero_point, q_min, q_max);
  codes[3 * i + 2] = s::rounded_quotient_of_clamped_input<L>(x[i], corrected, p.input_bounds) + p.zero_point;
  out[6 * i] = s::dequantize<L>(codes[i], p.scale, p.zero_point);
  out[6 * i + 1] = s::fake_quantize<L>(x[i], p.scale, divide, p.bounds);
  out[6 * i + 2] = s::fake_quantize_clamped_input<L>(x[i], p.scale, corrected, p.input_bounds);
  out[6 * i + 3] = s::quantize_backward<L>(x[i], dy[i], corrected, divide, p.bounds);
  out[6 * i + 4] = s::fake_quantize_backward<L>(x[i], dy[i], multiply, p.bounds);
  out[6 * i + 5] = s::dequantize_backward<L>(dy[i], p.scale);
}

template <class C>
__global__ void parameters_of_range(const C* x, kvant::semantics::RangeRules rules, C* scale, int* zero_point, int n) {
  using L = kvant::cuda::DeviceLanes<C>;
  namespace s = kvant::semantics;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i + 1 >= n) return;
  s::Range<L> r = s::Range<L>::empty().with(x[i]).with_finite(x[i + 1]);
  if (!r.finite()) r = s::Range<L>::empty().with(r);
  const s::ScaleAndZeroPoint<L> p = s::parameters_of_range<L>(r, rules);
  scale[i] = s::positive_zero<L>(p.scale);
  zero_point[i] = p.zero_point;
}

template __global__ void parameters_of_range<float>(const float*, kvant::semantics::RangeRules, float*, int*, int);
template __global__ void parameters_of_range<double>(const double*, kvant::semantics::RangeRules, double*, int*, int);
template __global__ void every_formula<float>(const float*, const float*, float, int, int, int, int*, float*, int);
template __global__ void every_formula<double>(const double*, const double*, double, int, int, int, int*, double*, int);

}  // namespace
