// One model on its way through a text: its weights, its network, and the states of all tokens, in bounded memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "io/scratch_folder.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "model/forward.h"
#include "model/network.h"
#include "model/states.h"
#include "model/token_text.h"
#include "model/weights.h"

namespace kvant::model {

// How much of a run is in memory at a time. Results do not depend on it.
struct RunMemory {
  std::int64_t batch_rows = 0;  // tokens that run through a block together
  bool states_in_memory = true;
};

class ModelRun {
 public:
  // Refuses what cannot be run. Reads only what is small. `text` must outlive it.
  static Result<ModelRun> open(const Stream& stream, const std::filesystem::path& path, const TokenText& text);

  const Weights& weights() const { return *weights_; }
  const Network& network() const { return *network_; }
  Forward& forward() { return *forward_; }
  std::int64_t vocabulary() const { return forward_->vocabulary(); }

  // What run_blocks() and the head take.
  const Forward::Memory& memory() const { return memory_; }
  std::uint64_t states_bytes() const;

  // Before run_blocks(). With a folder the states of every finished block are saved as "NAME…"; with `resume` those of
  // an earlier run of the same files and text, and for the same purpose, are taken.
  Status start(const RunMemory& memory, const io::ScratchFolder* folder, const std::string& name,
               std::string_view purpose, bool resume);
  std::size_t blocks_done() const { return static_cast<std::size_t>(states_->blocks_done().value_or(0)); }
  // Forgets the states that start() found.
  void begin_again() { states_->forget(); }
  // Tokens times blocks: what run_blocks() will advance the progress by.
  std::uint64_t work() const;
  // What a block is replaced by after the observer has seen it, and before the next one sees what it makes.
  using Replacement = std::function<Result<std::unique_ptr<const Weights>>(std::size_t block)>;
  // From the embeddings, or from where an earlier run ended, to the last block. Gives up the weights. With a
  // replacement each block runs twice, for the observer and for its states.
  Status run_blocks(base::Progress& progress, InputObserver* observer = nullptr, const Replacement& replace = {});

  // What the head reads of rows [first, first + count), [count, hidden]. Valid until the next call.
  Result<const float*> final_rows(std::int64_t first, std::int64_t count);

 private:
  ModelRun() = default;
  Result<std::uint64_t> key(std::string_view purpose) const;
  // Calls each(batch, states) for all batches, then finish(), and keeps the states that they leave.
  // The observer sees a block, and the states stay what they are.
  Status look(InputObserver& observer, base::Progress& progress);
  template <class Each, class Finish>
  Status pass(const Each& each, const Finish& finish);

  const TokenText* text_ = nullptr;
  std::unique_ptr<const Weights> weights_;
  std::unique_ptr<const Network> network_;
  std::unique_ptr<Forward> forward_;
  std::optional<Stream> stream_;
  Forward::Memory memory_;
  std::int64_t batch_rows_ = 0;
  std::optional<States> states_;
  std::vector<float> final_rows_;  // or those of a batch that is only looked at
};

}  // namespace kvant::model
