#include <dlfcn.h>

#include <cstring>
#include <dnnl.hpp>
#include <unordered_map>
#include <utility>

#include "bench/measure.h"
#include "bench/peers.h"

namespace kvant::bench {
namespace {

using dnnl::memory;

// oneDNN finds its OpenMP runtime in the process, whichever it was linked with; so do we, without OpenMP flags.
using SetThreads = void (*)(int);
SetThreads openmp_set_threads() { return reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads")); }

class OneDnnPeer final : public Peer {
 public:
  OneDnnPeer(const PeerLayer& layer, memory::data_type activation)
      : layer_(layer), activation_(activation), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  std::string name() const override { return is_unsigned() ? "onednn_u8s8" : "onednn_s8s8"; }
  bool multiplies_codes() const override { return true; }
  int activation_offset() const override { return is_unsigned() ? 128 : 0; }

  void prepare(std::int64_t rows, const std::int8_t* activation, float* output) override {
    const memory::dim k = layer_.in_features, n = layer_.out_features;
    const auto size = static_cast<std::size_t>(rows * k);
    std::byte* codes = codes_.get(size);
    std::memcpy(codes, activation, size);
    if (is_unsigned())
      for (std::size_t i = 0; i < size; ++i) codes[i] ^= std::byte{0x80};

    // Of the weight's orders (format_tag::any asks for a [K, N] matrix) this one is the fastest for few rows, and with
    // s8 activations for all; it is the order that the weight already has.
    const memory::desc weight_desc({k, n}, memory::data_type::s8, memory::format_tag::ba);
    const memory::desc source_desc({rows, k}, activation_, memory::format_tag::ab);
    const memory::desc target_desc({rows, n}, memory::data_type::f32, memory::format_tag::ab);
    dnnl::primitive_attr attributes;
    constexpr int kPerColumn = 1 << 1;
    attributes.set_output_scales(kPerColumn, std::vector<float>(layer_.weight_scale, layer_.weight_scale + n));
    const dnnl::matmul::primitive_desc chosen(dnnl::matmul::desc(source_desc, weight_desc, target_desc), attributes,
                                              engine_);
    matmul_ = dnnl::matmul(chosen);
    arguments_ = {{DNNL_ARG_SRC, memory(source_desc, engine_, codes)},
                  {DNNL_ARG_WEIGHTS, memory(weight_desc, engine_, const_cast<std::int8_t*>(layer_.weight))},
                  {DNNL_ARG_DST, memory(target_desc, engine_, output)}};
  }

  void set_threads(int threads) override { openmp_set_threads()(threads); }

  void run() override {
    matmul_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  bool is_unsigned() const { return activation_ == memory::data_type::u8; }

  PeerLayer layer_;
  memory::data_type activation_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  Buffer codes_;
  std::unordered_map<int, memory> arguments_;
};

std::unique_ptr<Peer> make(const PeerLayer& layer, memory::data_type activation) {
  // With other threads than OpenMP's it would have to be told their number in other ways.
  if (dnnl_version()->cpu_runtime != DNNL_RUNTIME_OMP || openmp_set_threads() == nullptr) return nullptr;
  return std::make_unique<OneDnnPeer>(layer, activation);
}

}  // namespace

std::unique_ptr<Peer> make_onednn_u8s8(const PeerLayer& layer) { return make(layer, memory::data_type::u8); }
std::unique_ptr<Peer> make_onednn_s8s8(const PeerLayer& layer) { return make(layer, memory::data_type::s8); }

}  // namespace kvant::bench
