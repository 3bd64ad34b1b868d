// What NetworkSteps hands to a kernel: its own arguments, to functions of the same names.
#pragma once

#include <cstddef>
#include <string_view>

#include "kvant/network_steps.h"
#include "kvant/sku.h"

namespace kvant::detail {

struct NetworkStepsKernel {
  static constexpr std::string_view kFamily = "network steps";
  KernelSku sku;
  void (*rms_norm)(const float* x, const float* weight, float epsilon, std::size_t n, float* y);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float epsilon, std::size_t n, float* y);
  void (*softmax)(float* x, std::size_t n);
  void (*scale)(float* x, float factor, std::size_t n);
  void (*add)(float* x, const float* y, std::size_t n);
  void (*multiply_add)(float* x, float factor, const float* y, std::size_t n);
  // One for each NetworkSteps::Activation.
  void (*activate[NetworkSteps::kActivations])(float* x, std::size_t n);
  void (*gated[NetworkSteps::kActivations])(const float* gate, const float* up, std::size_t n, float* y);
  void (*rotate_half)(float* x, const float* cosines, const float* sines, std::size_t half);
  void (*chain_products)(const float* x, std::size_t x_stride, const float* m, std::size_t m_stride, std::size_t rows,
                         std::size_t depth, std::size_t columns, float* out, std::size_t out_stride);
  void (*chain_products_f64)(const double* x, std::size_t x_stride, const double* m, std::size_t m_stride,
                             std::size_t rows, std::size_t depth, std::size_t columns, double* out,
                             std::size_t out_stride);
  void (*transpose)(const float* x, std::size_t x_stride, std::size_t rows, std::size_t columns, float* out,
                    std::size_t out_stride);
  NetworkSteps::Distribution (*distribution)(const float* logits, std::size_t n);
  double (*kl_divergence)(const float* p_logits, double p_log_sum_exp, const float* q_logits, double q_log_sum_exp,
                          std::size_t n);
  void (*add_channels)(const float* x, std::size_t n, float* min, float* max, double* squares);
};

}  // namespace kvant::detail
