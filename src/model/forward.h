// The forward pass of a network, block by block: weights of one block are in memory at a time, and the residuals of all
// tokens belong to the caller. So a model that is larger than the memory runs as well.
//
// The same bits come out for any number of threads, any batch and any instruction set: linears and steps promise it
// (f32_linear.h, network_steps.h), and a row never depends on rows of other sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvant/network_steps.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "model/linear_layer.h"
#include "model/network.h"
#include "model/weights.h"

namespace kvant::model {

// Sequences of tokens, one after the other as rows; each begins at position 0.
using Lengths = std::span<const std::int64_t>;
std::int64_t rows_of(Lengths lengths);

// Sees what linears and attention read, before they run: for calibration. Called on one thread.
class InputObserver {
 public:
  virtual ~InputObserver() = default;
  virtual Status see(const LinearModule& linear, const float* x, std::int64_t stride, std::int64_t rows) = 0;
  // Sees keys and values as a cache would hold them, kv_heads * head_size of each in a row.
  virtual Status see_cache(const AttendStep& /*step*/, const float* /*keys*/, const float* /*values*/,
                           std::int64_t /*stride*/, std::int64_t /*rows*/) {
    return {};
  }
  // All tokens have passed the block.
  virtual Status finish_block(std::size_t /*block*/) { return {}; }
};

class Forward {
 public:
  // For up to `max_rows` rows in a call. `weights` and `network` must outlive it. Reads only what is small.
  static Result<Forward> make(const Stream& stream, const Weights& weights, const Network& network,
                              std::int64_t max_rows);

  // How much memory parts of a run take, in bytes.
  struct Memory {
    std::uint64_t block = 0;  // the largest, while it is loaded
    std::uint64_t row = 0;    // in run_block(), for each row
    std::uint64_t head = 0;   // while it is loaded; 0: there is none
  };
  static Result<Memory> memory(const Stream& stream, const Weights& weights, const Network& network,
                               std::int64_t longest_sequence);

  // Refuses ids and positions that the tables of embeddings do not have.
  Status check_text(std::span<const std::int32_t> ids, Lengths lengths) const;
  // residual [rows, hidden] = embeddings, of a text that was checked.
  Status embed(std::span<const std::int32_t> ids, Lengths lengths, float* residual) const;

  // Reads the weights of a block and gives up those of the one before. `weights`: of another checkpoint of the same
  // network, of which only this block must be there; null: those of the model.
  Status load_block(std::size_t block, const Weights* weights = nullptr);
  // On residuals, with the block that was loaded last.
  Status run_block(Lengths lengths, float* residual, InputObserver* observer = nullptr);

  // The norm after the blocks, in place; nothing for networks without.
  Status finish(float* residual, std::int64_t rows);

  // Reads the head, for up to so many rows, and gives up the last block.
  Status load_head(std::int64_t max_rows);
  // Gives up what load_block() or load_head() read, and the memory that running took.
  void unload();
  std::int64_t vocabulary() const { return vocabulary_; }
  // logits [rows, vocabulary] of what finish() made.
  Status run_head(const float* hidden, std::int64_t rows, float* logits, InputObserver* observer = nullptr);

 private:
  struct Norm {
    std::vector<float> weight, bias;
  };
  // Of FP8 keys and values.
  struct CacheScales {
    float keys = 1, values = 1;
  };
  // What a block, or the head, has read.
  struct Loaded {
    std::map<std::string, LinearLayer, std::less<>> linears;
    std::map<std::string, Norm, std::less<>> norms;
    std::optional<CacheScales> cache;  // nothing: keys and values are what they are
  };

  Forward(const Stream& stream, const Weights& weights, const Network& network, const NetworkSteps& steps,
          std::int64_t max_rows)
      : stream_(stream), weights_(&weights), network_(&network), steps_(steps), max_rows_(max_rows) {}

  Status load_linear(const Weights& weights, const LinearModule& linear, std::int64_t max_rows, Loaded& to) const;
  Status load_norm(const Weights& weights, const std::string& module, std::int64_t size, Loaded& to) const;
  // A table of embeddings: [rows, hidden].
  Result<StoredTensor> table(const std::string& module) const;
  static LinearModule head_of(const Network& network, std::int64_t vocabulary);
  void grow_workspace(const Loaded& loaded);
  Status run_linear(const LinearModule& linear, const float* x, std::int64_t x_stride, std::int64_t rows, float* y,
                    std::int64_t y_stride, InputObserver* observer);
  Status normalize(const std::string& module, const float* x, float* y, std::int64_t rows) const;
  void normalize_row(const Norm& norm, const float* x, std::int64_t size, float* y) const;

  Status run(const NormStep& step, Lengths lengths, float* residual, InputObserver* observer);
  Status run(const HeadsStep& step, Lengths lengths, float* residual, InputObserver* observer);
  Status run(const HeadNormsStep& step, Lengths lengths, float* residual, InputObserver* observer);
  Status run(const RotateStep& step, Lengths lengths, float* residual, InputObserver* observer);
  Status run(const AttendStep& step, Lengths lengths, float* residual, InputObserver* observer);
  Status run(const LinearStep& step, Lengths lengths, float* residual, InputObserver* observer);
  Status run(const MlpStep& step, Lengths lengths, float* residual, InputObserver* observer);
  Status run(const AddStep& step, Lengths lengths, float* residual, InputObserver* observer);
  // One expert on rows of its own.
  Status run_expert(const Expert& expert, std::int64_t inner, const float* x, std::int64_t rows, float* y,
                    InputObserver* observer);
  Status run_experts(const MlpStep& step, std::int64_t rows, InputObserver* observer);
  // Keys or values of all rows, in place: what a cache of FP8 gives back of them.
  Status round_cache(float* x, float scale, std::int64_t rows) const;
  // One key and value head of one sequence, with all queries that use it.
  void attend(const AttendStep& step, std::int64_t first_row, std::int64_t length, std::int64_t kv_head,
              std::vector<float>& scratch);

  Stream stream_;
  const Weights* weights_;
  const Network* network_;
  NetworkSteps steps_;
  std::int64_t max_rows_;
  std::int64_t vocabulary_ = 0;

  const Block* block_ = nullptr;
  Loaded loaded_;
  Norm final_norm_;
  std::vector<std::byte> workspace_;
  std::vector<float> x_, heads_, context_, inner_;   // rows of the step before
  std::vector<float> chosen_, expert_out_, logits_;  // of experts
  std::vector<float> cosines_, sines_;               // of positions so far
};

}  // namespace kvant::model
