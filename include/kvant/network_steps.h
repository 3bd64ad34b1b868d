// NetworkSteps: what a transformer does between its linear layers, in f32, row by row.
//
//   rms_norm        y[i] = weight[i] * (x[i] * r)       r = 1 / sqrt(sum(x²) / n + epsilon)
//   layer_norm      y[i] = ((x[i] - mean) * r) * weight[i] + bias[i]       r likewise, of sum((x - mean)²)
//   softmax         x[i] = e[i] * (1 / sum(e))          e[i] = exp(x[i] - max)
//   scale, add, multiply_add                            x *= factor; x += y; x = fma(factor, y, x)
//   activate, gated                                     x = act(x); y = act(gate) * up
//   rotate_half     rotary positions
//   chain_products  out[r, j] = one chain of fused multiply-adds in order of k, as in f32_linear.h
//   transpose       out[c, r] = x[r, c]
//   distribution, kl_divergence                         what a row of logits says, in f64
//   add_channels    what calibration keeps of each channel
//
// Every operation is rounded once, to nearest even, in the order in which the formulas are written. In a sum, element i
// is added in lane i % 16, and the lanes are added as a tree: l and l + 8, then l and l + 4, l + 2, l + 1. Exponentials
// and the error function are formulas of this library, not the C library's. So the same bits come out on every
// instruction set, and how callers cut rows over threads changes nothing.
//
// A call takes one thread, allocates nothing and checks nothing. Buffers need no alignment. Outputs may be the inputs
// themselves (the same address) where rows are as long, but for chain_products and transpose, whose `out` overlaps
// nothing. The floating-point mode is the caller's: round to nearest, denormals kept. NaN and infinities give what IEEE
// arithmetic makes of the formulas; payloads of NaN are not specified.
//
//   const auto steps = kvant::NetworkSteps::select(kvant::Stream::cpu());
//   if (!steps.ok()) return …;
//   for (int r = 0; r < rows; ++r) steps->rms_norm(x + r * n, weight, 1e-6f, n, y + r * n);
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvant/export.h"
#include "kvant/plan.h"
#include "kvant/sku.h"
#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant {

namespace detail {
struct NetworkStepsKernel;
}

class KVANT_API NetworkSteps {
 public:
  // silu:       x / (1 + exp(-x))
  // gelu:       x/2 + x/2 erf(x / √2)
  // gelu_tanh:  x / (1 + exp(-2u)), u = √(2/π) (x + 0.044715 x³); equal to x/2 (1 + tanh u), also called gelu_new
  // relu:       x, or 0 where x < 0
  // quick_gelu: x / (1 + exp(-1.702 x))
  enum class Activation : std::uint8_t { silu, gelu, gelu_tanh, relu, quick_gelu };
  static constexpr std::size_t kActivations = 5;

  // What a row of logits says. NaN is never the largest, but makes log_sum_exp NaN. An empty row has -Inf, -Inf and -1.
  struct Distribution {
    double log_sum_exp;
    double max;
    std::int64_t argmax;  // the first of the largest; -1: there is none
  };

  // Refuses streams of CUDA, and an instruction set that cannot be had.
  static Result<NetworkSteps> select(const Stream& stream, const PlanPreference& preference = {});

  KernelSku sku() const;

  // Squares are added by fused multiply-adds.
  void rms_norm(const float* x, const float* weight, float epsilon, std::size_t n, float* y) const;
  // weight and bias may be null: 1 and 0.
  void layer_norm(const float* x, const float* weight, const float* bias, float epsilon, std::size_t n, float* y) const;

  // In place. Entries of -Inf give exactly 0; a row of nothing else gives zeros. A row with NaN becomes NaN.
  // Exponentials below 2^-126 count as 0.
  void softmax(float* x, std::size_t n) const;

  void scale(float* x, float factor, std::size_t n) const;
  void add(float* x, const float* y, std::size_t n) const;
  void multiply_add(float* x, float factor, const float* y, std::size_t n) const;

  void activate(Activation activation, float* x, std::size_t n) const;
  void gated(Activation activation, const float* gate, const float* up, std::size_t n, float* y) const;

  // (a, b) = (x[i], x[i + half]) becomes (a c - b s, b c + a s), each product rounded.
  void rotate_half(float* x, const float* cosines, const float* sines, std::size_t half) const;

  // out[r, j] = acc after, from acc = 0 and in order of k: acc = fma(x[r, k], m[k, j], acc). Strides from row to row in
  // elements. For attention: scores, with m the keys transposed, and values.
  void chain_products(const float* x, std::size_t x_stride, const float* m, std::size_t m_stride, std::size_t rows,
                      std::size_t depth, std::size_t columns, float* out, std::size_t out_stride) const;
  // The same in f64.
  void chain_products(const double* x, std::size_t x_stride, const double* m, std::size_t m_stride, std::size_t rows,
                      std::size_t depth, std::size_t columns, double* out, std::size_t out_stride) const;
  // Of x [rows, columns] into out [columns, rows].
  void transpose(const float* x, std::size_t x_stride, std::size_t rows, std::size_t columns, float* out,
                 std::size_t out_stride) const;

  // log_sum_exp = max + log(sum(exp(logits - max))), all in f64.
  Distribution distribution(const float* logits, std::size_t n) const;
  // sum(exp(lp) * (lp - lq)) for lp = p_logits - p.log_sum_exp and lq likewise, in f64; a term with exp(lp) = 0 is 0.
  double kl_divergence(const float* p_logits, const Distribution& p, const float* q_logits, const Distribution& q,
                       std::size_t n) const;

  // Of channel i: min[i] and max[i] take in x[i], which changes neither if it is NaN, and squares[i] += x[i]² in f64.
  void add_channels(const float* x, std::size_t n, float* min, float* max, double* squares) const;

 private:
  explicit NetworkSteps(const detail::NetworkStepsKernel* kernel) : kernel_(kernel) {}

  const detail::NetworkStepsKernel* kernel_;
};

}  // namespace kvant
