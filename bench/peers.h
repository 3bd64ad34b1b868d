// Other libraries that multiply the same 8-bit (or dequantized) matrices, timed beside kvant. Each is built only where
// its package was found.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvant::bench {

// Must outlive the peers made for it.
struct PeerLayer {
  std::int64_t in_features = 0;         // K
  std::int64_t out_features = 0;        // N
  const std::int8_t* weight = nullptr;  // [N, K]
  const float* weight_scale = nullptr;  // [N]
};

// Multiplies by one layer. None has scales per token: a peer does a little less than kvant.
class Peer {
 public:
  Peer() = default;
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  virtual ~Peer() = default;

  virtual std::string name() const = 0;
  // Whether it multiplies codes, with sums that ought to be exact.
  virtual bool multiplies_codes() const = 0;
  // What it adds to each activation code: 128 where it takes u8.
  virtual int activation_offset() const { return 0; }
  // Takes over `rows` rows of s8 codes; run() will write output [rows, N].
  virtual void prepare(std::int64_t rows, const std::int8_t* activation, float* output) = 0;
  virtual void set_threads(int threads) = 0;
  virtual void run() = 0;
};

std::vector<std::unique_ptr<Peer>> make_peers(const PeerLayer& layer);

// Null if the library cannot be used here.
std::unique_ptr<Peer> make_onednn_u8s8(const PeerLayer& layer);
std::unique_ptr<Peer> make_onednn_s8s8(const PeerLayer& layer);
std::unique_ptr<Peer> make_openblas_sgemm(const PeerLayer& layer);

// Starts this program again with idle threads of the peers asleep, unless it is already so. By default they spin for
// milliseconds after each call, on the core that kvant's second thread then lacks. Their libraries read the environment
// when they are loaded, before main(), so setting it there would be too late.
void put_idle_peers_to_sleep(char** argv);

}  // namespace kvant::bench
