// The steps of a network, compiled once for each instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/inline.h"
#include "core/guarantee.h"
#include "core/network_steps_kernel.h"
#include "cpu/chain_products-inl.h"
#include "cpu/sixteen-inl.h"
#include "kvant/element.h"
#include "semantics/activation.h"
#include "semantics/elementary.h"
#include "semantics/exponential.h"
#include "semantics/network_steps.h"
#include "semantics/one_number.h"

namespace kvant::cpu {

template <class Isa>
struct NetworkStepsOf {
  using L = typename Isa::template Lanes<float>;
  using Wide = typename Isa::template Lanes<double>;
  using One = semantics::OneNumber<float>;
  using F = typename L::F;
  using Activation = NetworkSteps::Activation;
  static constexpr float kInfinity = __builtin_inff();

  // ---- Norms ----

  static void rms_norm(const float* x, const float* weight, float epsilon, std::size_t n, float* y) {
    const auto add_square = [](F sum, F v) KVANT_INLINE_LAMBDA { return L::fma(v, v, sum); };
    const float squares = sum_of<L>(x, n, 0, add_square);
    const F r = L::set(semantics::inverse_root_of_mean<One>(squares, static_cast<float>(n), epsilon));
    for_each_vector<L>(n, [&](const auto& at) KVANT_INLINE_LAMBDA {
      at.put(y, semantics::rms_normed<L>(at.get(x), r, at.get(weight)));
    });
  }

  static void layer_norm(const float* x, const float* weight, const float* bias, float epsilon, std::size_t n,
                         float* y) {
    const auto count = static_cast<float>(n);
    const auto add_number = [](F sum, F v) KVANT_INLINE_LAMBDA { return L::add(sum, v); };
    const float middle = One::div(sum_of<L>(x, n, 0, add_number), count);
    const F mean = L::set(middle);
    // Where the row has ended, numbers as large as the mean add nothing.
    const auto add_square = [&](F sum, F v) KVANT_INLINE_LAMBDA {
      const F d = L::sub(v, mean);
      return L::fma(d, d, sum);
    };
    const float squares = sum_of<L>(x, n, middle, add_square);
    const F r = L::set(semantics::inverse_root_of_mean<One>(squares, count, epsilon));
    for_each_vector<L>(n, [&](const auto& at) KVANT_INLINE_LAMBDA {
      F v = semantics::layer_normed<L>(at.get(x), mean, r);
      if (weight != nullptr) v = L::mul(v, at.get(weight));
      if (bias != nullptr) v = L::add(v, at.get(bias));
      at.put(y, v);
    });
  }

  // ---- Element by element ----

  static void scale(float* x, float factor, std::size_t n) {
    const F f = L::set(factor);
    for_each_vector<L>(n, [&](const auto& at) KVANT_INLINE_LAMBDA { at.put(x, L::mul(at.get(x), f)); });
  }

  static void add(float* x, const float* y, std::size_t n) {
    for_each_vector<L>(n, [&](const auto& at) KVANT_INLINE_LAMBDA { at.put(x, L::add(at.get(x), at.get(y))); });
  }

  static void multiply_add(float* x, float factor, const float* y, std::size_t n) {
    const F f = L::set(factor);
    for_each_vector<L>(n, [&](const auto& at) KVANT_INLINE_LAMBDA { at.put(x, L::fma(f, at.get(y), at.get(x))); });
  }

  template <Activation kActivation>
  static KVANT_INLINE F activated(F x) {
    if constexpr (kActivation == Activation::silu) return semantics::silu<L>(x);
    if constexpr (kActivation == Activation::gelu) return semantics::gelu<L>(x);
    if constexpr (kActivation == Activation::gelu_tanh) return semantics::gelu_tanh<L>(x);
    if constexpr (kActivation == Activation::relu) return semantics::relu<L>(x);
    if constexpr (kActivation == Activation::quick_gelu) return semantics::quick_gelu<L>(x);
  }

  template <Activation kActivation>
  static void activate(float* x, std::size_t n) {
    for_each_vector<L>(n, [&](const auto& at) KVANT_INLINE_LAMBDA { at.put(x, activated<kActivation>(at.get(x))); });
  }

  template <Activation kActivation>
  static void gated(const float* gate, const float* up, std::size_t n, float* y) {
    for_each_vector<L>(n, [&](const auto& at) KVANT_INLINE_LAMBDA {
      at.put(y, L::mul(activated<kActivation>(at.get(gate)), at.get(up)));
    });
  }

  static void rotate_half(float* x, const float* cosines, const float* sines, std::size_t half) {
    for_each_vector<L>(half, [&](const auto& at) KVANT_INLINE_LAMBDA {
      const auto turned = semantics::rotated<L>(at.get(x), at.get(x + half), at.get(cosines), at.get(sines));
      at.put(x, turned.first);
      at.put(x + half, turned.second);
    });
  }

  // ---- Distributions ----

  static void softmax(float* x, std::size_t n) {
    const F shift = L::set(semantics::shift_of(greatest_of<L>(x, n)));
    auto sums = Sixteen<L>::set(0);
    for_each_sixteen<L>(n, [&](const auto& at) KVANT_INLINE_LAMBDA {
      const auto shifted = [&](F v) KVANT_INLINE_LAMBDA { return semantics::exponential<L>(L::sub(v, shift)); };
      const auto e = Sixteen<L>::map(shifted, at.get(x, -kInfinity));
      at.put(x, e);
      sums = Sixteen<L>::map([](F sum, F v) KVANT_INLINE_LAMBDA { return L::add(sum, v); }, sums, e);
    });
    scale(x, semantics::share_of(sums.total()), n);
  }

  static NetworkSteps::Distribution distribution(const float* logits, std::size_t n) {
    // By blocks, so that only one of them is searched for the place.
    constexpr std::size_t kBlock = 512;
    float most = -kInfinity;
    std::size_t place = 0;
    for (std::size_t i = 0; i < n; i += kBlock) {
      const float of_block = greatest_of<L>(logits + i, n - i < kBlock ? n - i : kBlock);
      if (!(of_block > most)) continue;
      most = of_block;
      place = i;
    }
    while (place < n && logits[place] != most) ++place;

    const auto shift = static_cast<double>(semantics::shift_of(most));
    const auto add_exponential = [&](auto sum, auto v) KVANT_INLINE_LAMBDA {
      return Wide::add(sum, semantics::exponential<Wide>(Wide::sub(v, Wide::set(shift))));
    };
    const double sum = sum_of<Wide>(logits, n, -__builtin_inf(), add_exponential);
    return {shift + semantics::logarithm(sum), static_cast<double>(most),
            place < n ? static_cast<std::int64_t>(place) : -1};
  }

  static double kl_divergence(const float* p_logits, double p_log_sum_exp, const float* q_logits, double q_log_sum_exp,
                              std::size_t n) {
    auto sums = Sixteen<Wide>::set(0);
    for_each_sixteen<Wide>(n, [&](const auto& at) KVANT_INLINE_LAMBDA {
      const auto add_term = [&](auto sum, auto p, auto q) KVANT_INLINE_LAMBDA {
        const auto log_p = Wide::sub(p, Wide::set(p_log_sum_exp)), log_q = Wide::sub(q, Wide::set(q_log_sum_exp));
        return Wide::add(sum, semantics::divergence<Wide>(log_p, log_q));
      };
      sums = Sixteen<Wide>::map(add_term, sums, at.get(p_logits, -__builtin_inf()), at.get(q_logits, 0));
    });
    return sums.total();
  }

  // ---- Calibration ----

  static void add_channels(const float* x, std::size_t n, float* min, float* max, double* squares) {
    for_each_vector<L>(n, [&](const auto& at) KVANT_INLINE_LAMBDA {
      const F v = at.get(x);
      at.put(min, L::min(v, at.get(min)));
      at.put(max, L::max(v, at.get(max)));
    });
    for_each_vector<Wide>(n, [&](const auto& at) KVANT_INLINE_LAMBDA {
      const auto v = at.get(x);  // its square is exact
      at.put(squares, Wide::fma(v, v, at.get(squares)));
    });
  }
};

template <class Isa>
constexpr auto make_network_steps_kernels() {
  using Steps = NetworkStepsOf<Isa>;
  using Activation = NetworkSteps::Activation;
  detail::NetworkStepsKernel kernel = {};
  kernel.sku =
      detail::bit_stable_sku<float>(Isa::kArch, QuantizeKind::network_steps, ElementKind::f32, ElementKind::f32);
  kernel.rms_norm = &Steps::rms_norm;
  kernel.layer_norm = &Steps::layer_norm;
  kernel.softmax = &Steps::softmax;
  kernel.scale = &Steps::scale;
  kernel.add = &Steps::add;
  kernel.multiply_add = &Steps::multiply_add;
  const auto put = [&]<Activation kActivation>() {
    constexpr auto kIndex = static_cast<std::size_t>(kActivation);
    kernel.activate[kIndex] = &Steps::template activate<kActivation>;
    kernel.gated[kIndex] = &Steps::template gated<kActivation>;
  };
  put.template operator()<Activation::silu>();
  put.template operator()<Activation::gelu>();
  put.template operator()<Activation::gelu_tanh>();
  put.template operator()<Activation::relu>();
  put.template operator()<Activation::quick_gelu>();
  kernel.rotate_half = &Steps::rotate_half;
  kernel.chain_products = &ChainProducts<typename Steps::L>::run;
  kernel.chain_products_f64 = &ChainProducts<typename Steps::Wide>::run;
  kernel.transpose = &transpose_rows<typename Steps::L>;
  kernel.distribution = &Steps::distribution;
  kernel.kl_divergence = &Steps::kl_divergence;
  kernel.add_channels = &Steps::add_channels;
  return std::array{kernel};
}

}  // namespace kvant::cpu
