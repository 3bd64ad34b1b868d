#include "kvant/network_steps.h"

#include "core/network_steps_kernel.h"
#include "ops/preference.h"
#include "ops/registry.h"

namespace kvant {
namespace {

constexpr const char* kNetworkSteps = "network_steps";

}  // namespace

Result<NetworkSteps> NetworkSteps::select(const Stream& stream, const PlanPreference& preference) {
  if (Status s = ops::check_cpu_stream(kNetworkSteps, stream, "copy the activations to the host"); !s.ok()) return s;
  const auto target = ops::target_of(kNetworkSteps, stream, preference);
  if (!target.ok()) return target.status();
  return NetworkSteps(ops::select_kernel<detail::NetworkStepsKernel>(QuantizeKind::network_steps, ElementKind::f32,
                                                                     ElementKind::f32, *target)
                          .kernel);
}

KernelSku NetworkSteps::sku() const { return kernel_->sku; }

void NetworkSteps::rms_norm(const float* x, const float* weight, float epsilon, std::size_t n, float* y) const {
  kernel_->rms_norm(x, weight, epsilon, n, y);
}

void NetworkSteps::layer_norm(const float* x, const float* weight, const float* bias, float epsilon, std::size_t n,
                              float* y) const {
  kernel_->layer_norm(x, weight, bias, epsilon, n, y);
}

void NetworkSteps::softmax(float* x, std::size_t n) const { kernel_->softmax(x, n); }

void NetworkSteps::scale(float* x, float factor, std::size_t n) const { kernel_->scale(x, factor, n); }

void NetworkSteps::add(float* x, const float* y, std::size_t n) const { kernel_->add(x, y, n); }

void NetworkSteps::multiply_add(float* x, float factor, const float* y, std::size_t n) const {
  kernel_->multiply_add(x, factor, y, n);
}

void NetworkSteps::activate(Activation activation, float* x, std::size_t n) const {
  kernel_->activate[static_cast<std::size_t>(activation)](x, n);
}

void NetworkSteps::gated(Activation activation, const float* gate, const float* up, std::size_t n, float* y) const {
  kernel_->gated[static_cast<std::size_t>(activation)](gate, up, n, y);
}

void NetworkSteps::rotate_half(float* x, const float* cosines, const float* sines, std::size_t half) const {
  kernel_->rotate_half(x, cosines, sines, half);
}

void NetworkSteps::chain_products(const float* x, std::size_t x_stride, const float* m, std::size_t m_stride,
                                  std::size_t rows, std::size_t depth, std::size_t columns, float* out,
                                  std::size_t out_stride) const {
  kernel_->chain_products(x, x_stride, m, m_stride, rows, depth, columns, out, out_stride);
}

void NetworkSteps::chain_products(const double* x, std::size_t x_stride, const double* m, std::size_t m_stride,
                                  std::size_t rows, std::size_t depth, std::size_t columns, double* out,
                                  std::size_t out_stride) const {
  kernel_->chain_products_f64(x, x_stride, m, m_stride, rows, depth, columns, out, out_stride);
}

void NetworkSteps::transpose(const float* x, std::size_t x_stride, std::size_t rows, std::size_t columns, float* out,
                             std::size_t out_stride) const {
  kernel_->transpose(x, x_stride, rows, columns, out, out_stride);
}

NetworkSteps::Distribution NetworkSteps::distribution(const float* logits, std::size_t n) const {
  return kernel_->distribution(logits, n);
}

double NetworkSteps::kl_divergence(const float* p_logits, const Distribution& p, const float* q_logits,
                                   const Distribution& q, std::size_t n) const {
  return kernel_->kl_divergence(p_logits, p.log_sum_exp, q_logits, q.log_sum_exp, n);
}

void NetworkSteps::add_channels(const float* x, std::size_t n, float* min, float* max, double* squares) const {
  kernel_->add_channels(x, n, min, max, squares);
}

}  // namespace kvant
