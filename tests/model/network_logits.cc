// network_logits MODEL SEQUENCE_LENGTH < ids > logits: the logits (or, of an encoder, the hidden states) of sequences
// of that length as raw f32, for tests/interop. Ids are separated by white space.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "model/forward.h"

namespace {

kvant::Status run(const char* path, std::int64_t length) {
  using namespace kvant;
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; std::cin >> id;) ids.push_back(id);
  const Stream stream = Stream::cpu();
  const auto weights = model::Weights::open(path);
  if (!weights.ok()) return weights.status();
  const auto network = model::make_network(weights->config(), weights->modules());
  if (!network.ok()) return network.status();
  std::vector<std::int64_t> lengths;
  for (std::int64_t left = static_cast<std::int64_t>(ids.size()); left > 0; left -= length)
    lengths.push_back(std::min(left, length));
  const std::int64_t rows = model::rows_of(lengths);
  auto forward = model::Forward::make(stream, *weights, *network, rows);
  if (!forward.ok()) return forward.status();
  std::vector<float> residual(static_cast<std::size_t>(rows * network->hidden));
  if (Status s = forward->check_text(ids, lengths); !s.ok()) return s;
  if (Status s = forward->embed(ids, lengths, residual.data()); !s.ok()) return s;
  for (std::size_t block = 0; block < network->blocks.size(); ++block) {
    if (Status s = forward->load_block(block); !s.ok()) return s;
    if (Status s = forward->run_block(lengths, residual.data()); !s.ok()) return s;
  }
  if (Status s = forward->finish(residual.data(), rows); !s.ok()) return s;
  if (network->head) {
    if (Status s = forward->load_head(rows); !s.ok()) return s;
    std::vector<float> logits(static_cast<std::size_t>(rows * forward->vocabulary()));
    if (Status s = forward->run_head(residual.data(), rows, logits.data()); !s.ok()) return s;
    residual = std::move(logits);
  }
  std::fwrite(residual.data(), sizeof(float), residual.size(), stdout);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const kvant::Status status = run(argv[1], std::strtoll(argv[2], nullptr, 10));
  if (!status.ok()) std::fprintf(stderr, "network_logits: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
