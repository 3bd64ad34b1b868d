// One model on its way through a text: its weights, its network, and the states of all tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/progress.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "model/forward.h"
#include "model/network.h"
#include "model/token_text.h"
#include "model/weights.h"

namespace kvant::model {

class ModelRun {
 public:
  // Refuses what cannot be run. `text` must outlive it.
  static Result<ModelRun> open(const Stream& stream, const std::filesystem::path& path, const TokenText& text);

  const Weights& weights() const { return *weights_; }
  const Network& network() const { return *network_; }
  Forward& forward() { return *forward_; }

  // Tokens times blocks: what run_blocks() will advance the progress by.
  std::uint64_t work() const;
  // From the embeddings to what the head reads.
  Status run_blocks(base::Progress& progress, InputObserver* observer = nullptr);
  // [tokens, hidden]
  const std::vector<float>& states() const { return states_; }

 private:
  ModelRun() = default;

  const TokenText* text_ = nullptr;
  std::unique_ptr<const Weights> weights_;
  std::unique_ptr<const Network> network_;
  std::unique_ptr<Forward> forward_;
  std::vector<float> states_;
};

}  // namespace kvant::model
