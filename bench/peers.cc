#include "bench/peers.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace kvant::bench {

std::vector<std::unique_ptr<Peer>> make_peers([[maybe_unused]] const PeerLayer& layer) {
  std::vector<std::unique_ptr<Peer>> peers;
  [[maybe_unused]] const auto add_if_usable = [&](std::unique_ptr<Peer> peer) {
    if (peer) peers.push_back(std::move(peer));
  };
#if defined(KVANT_BENCH_ONEDNN)
  add_if_usable(make_onednn_u8s8(layer));
  add_if_usable(make_onednn_s8s8(layer));
#endif
#if defined(KVANT_BENCH_OPENBLAS)
  add_if_usable(make_openblas_sgemm(layer));
#endif
  return peers;
}

void put_idle_peers_to_sleep([[maybe_unused]] char** argv) {
#if defined(KVANT_BENCH_ONEDNN) || defined(KVANT_BENCH_OPENBLAS)
  constexpr const char* kOpenMp = "OMP_WAIT_POLICY";            // oneDNN's threads are OpenMP's
  constexpr const char* kOpenBlas = "OPENBLAS_THREAD_TIMEOUT";  // spins for 2^this cycles; 4 is the least it takes
  const char* policy = std::getenv(kOpenMp);
  const char* timeout = std::getenv(kOpenBlas);
  if (policy != nullptr && std::strcmp(policy, "passive") == 0 && timeout != nullptr && std::strcmp(timeout, "4") == 0)
    return;
  if (setenv(kOpenMp, "passive", 1) != 0 || setenv(kOpenBlas, "4", 1) != 0) return;
  execv("/proc/self/exe", argv);  // returns only if it fails: then the peers spin
#endif
}

}  // namespace kvant::bench
