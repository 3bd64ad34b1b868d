#include <cblas.h>

#include "bench/measure.h"
#include "bench/peers.h"

namespace kvant::bench {
namespace {

// The dequantized layer in f32: what 8 bits must beat.
class OpenBlasPeer final : public Peer {
 public:
  explicit OpenBlasPeer(const PeerLayer& layer) : k_(layer.in_features), n_(layer.out_features) {
    weight_ = reinterpret_cast<float*>(weight_buffer_.get(sizeof(float) * static_cast<std::size_t>(n_ * k_)));
    for (std::int64_t n = 0; n < n_; ++n)
      for (std::int64_t k = 0; k < k_; ++k)
        weight_[n * k_ + k] = layer.weight_scale[n] * static_cast<float>(layer.weight[n * k_ + k]);
  }

  std::string name() const override { return "openblas_sgemm"; }
  bool multiplies_codes() const override { return false; }

  void prepare(std::int64_t rows, const std::int8_t* activation, float* output) override {
    rows_ = rows;
    output_ = output;
    input_ = reinterpret_cast<float*>(input_buffer_.get(sizeof(float) * static_cast<std::size_t>(rows * k_)));
    for (std::int64_t i = 0; i < rows * k_; ++i) input_[i] = static_cast<float>(activation[i]);
  }

  void set_threads(int threads) override { openblas_set_num_threads(threads); }

  void run() override {
    const auto m = static_cast<blasint>(rows_), n = static_cast<blasint>(n_), k = static_cast<blasint>(k_);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1.0f, input_, k, weight_, k, 0.0f, output_, n);
  }

 private:
  std::int64_t k_;
  std::int64_t n_;
  std::int64_t rows_ = 0;
  Buffer weight_buffer_;
  Buffer input_buffer_;
  float* weight_ = nullptr;
  float* input_ = nullptr;
  float* output_ = nullptr;
};

}  // namespace

std::unique_ptr<Peer> make_openblas_sgemm(const PeerLayer& layer) { return std::make_unique<OpenBlasPeer>(layer); }

}  // namespace kvant::bench
