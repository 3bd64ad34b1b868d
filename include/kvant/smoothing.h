// SmoothQuant smoothing: moves outlier channels from activations, which are quantized per token, into weights, which
// are quantized per output channel and can take them better. For the linears that one norm feeds, with W_j the column j
// of all their weights:
//
//   w_j = max(max|W_j|, 1e-5)      s_j = max(max|X_j|^alpha / w_j^(1 - alpha), 1e-5)
//
//   norm.weight[j] /= s_j          norm.bias[j] /= s_j          W[:, j] *= s_j
//
// The outputs of the linears stay the same except for rounding: x / s is multiplied by W * s. If no norm can take the
// division, QuantizedLinearPlan divides its input (linear.h, `smooth`).
//
// alpha 0.5 suits OPT and BLOOM, 0.8 to 0.9 Llama-like models.
//
//   std::vector<float> s(k);
//   const kvant::AnyRef weights[] = {q, key, v};      // [N_i, K] views
//   kvant::Status found = kvant::smooth_scales(stream, {absmax.data(), {k}}, weights, 0.5, {s.data(), {k}});
//   const kvant::AnyMut folded[] = {q_mut, key_mut, v_mut};
//   kvant::Status done = kvant::apply_smoothing(stream, {s.data(), {k}}, norm_weight, norm_bias, folded);
#pragma once

#include <span>

#include "kvant/export.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "kvant/tensor.h"

namespace kvant {

// Writes s. act_absmax [K] holds max|X_j| over the calibration data: finite and not negative. weights: at least one,
// [N_i, K] of f32, f64, f16 or bf16, rows may be strided. Their maxima are over finite values; a column without any
// counts as 0. 0 <= alpha <= 1. Powers are taken in f64 and rounded to f32 once; no s_j overflows. Writes nothing if it
// refuses. `scales` may be act_absmax itself.
KVANT_API Status smooth_scales(const Stream& stream, const TensorRef<float>& act_absmax,
                               std::span<const AnyRef> weights, double alpha, const TensorMut<float>& scales);

// Folds s in place. norm_weight [K] and norm_bias [K] of any floating-point type (norm_bias null: none); weights: at
// least one, [N_i, K]; none may overlap another, or scales. Each product or quotient is formed in f32 (f64 for f64) and
// rounded once to the tensor's type. Every s_j must be finite and positive. If a finite value would overflow its type,
// the call is refused with the channel and the numbers. Nothing is written if it refuses. Infinities stay as they are,
// NaN stays NaN.
//
// Only for norms that multiply by their weight and feed nothing but these linears: dividing the w of a norm that
// multiplies by (1 + w), as Gemma's do, is wrong.
KVANT_API Status apply_smoothing(const Stream& stream, const TensorRef<float>& scales, const AnyMut& norm_weight,
                                 const AnyMut& norm_bias, std::span<const AnyMut> weights);

}  // namespace kvant
