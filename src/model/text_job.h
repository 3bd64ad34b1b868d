// Models that run over one text, one after the other: how much of them is in memory, and the folder where they are
// saved.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "io/scratch_folder.h"
#include "kvant/status.h"
#include "model/model_run.h"
#include "model/token_text.h"

namespace kvant::model {

// What a person decides about a run. Results do not depend on it.
struct RunSettings {
  int threads = 0;               // 0: all
  std::uint64_t max_memory = 0;  // 0: three quarters of what is available
  // A folder for what is known after each block, which is removed at the end. Empty: it is only in memory, and a run
  // that is stopped begins again.
  std::filesystem::path scratch = {};
  bool resume = false;  // after the last block that an earlier run of the same finished
};

class TextJob {
 public:
  struct Options {
    RunSettings run = {};
    std::uint64_t beside_block = 0;  // what the caller holds while a block runs
    std::uint64_t at_the_end = 0;    // what it needs at least when all blocks have run
    std::string purpose = {};        // states that were saved for another are not taken
  };
  // More tokens at a time make nothing faster.
  static constexpr std::int64_t kMaxRows = 2048;

  // Decides what is in memory, opens the folder, and starts the runs (ModelRun::start()). The states of all runs are
  // kept to the end. Refuses a limit of memory that is too small, with what would do.
  static Result<TextJob> begin(const Stream& stream, std::vector<ModelRun>& runs, const TokenText& text,
                               const Options& options);

  // Null: nothing is saved.
  const io::ScratchFolder* folder() const { return folder_.get(); }
  // What the caller may take when all blocks have run.
  std::uint64_t memory_at_the_end() const { return memory_at_the_end_; }

  // The work is done: removes what was saved.
  Status finish();

 private:
  TextJob() = default;
  std::unique_ptr<io::ScratchFolder> folder_;
  std::uint64_t memory_at_the_end_ = 0;
};

}  // namespace kvant::model
