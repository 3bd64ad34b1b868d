// A checkpoint in, a quantized checkpoint out: read in tiles, written as it is made, whole or not at all.
//
// plan() decides without reading a weight: what becomes of every tensor and why, which modules config.json will list in
// `ignore`, how much memory the run takes. run() does it.
//
// The output is a folder with a shard for each shard of the input under the same name, the other files of the folder
// (tokenizer and so on), `kvant/` with the manifest, the checksums and, where something was smoothed, the vectors s,
// and at the very end the index and config.json: a folder that has its config.json is whole. Where the input is one
// file and the output's name ends in ".safetensors", the output is that one file, and "quantization_config" stands in
// its metadata.
//
// Bytes of the output depend on the input and the options only, not on threads, memory or interruptions.
#pragma once

#include <cstdint>
#include <memory>

#include "base/progress.h"
#include "format/activation_stats.h"
#include "kvant/status.h"
#include "quantize/checkpoint_plan.h"

namespace kvant::quantize {

struct QuantizeOutcome {
  std::uint64_t shards_written = 0;
  std::uint64_t shards_kept = 0;  // whole already, from the run that is resumed
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  double seconds = 0;
  std::uint64_t non_finite = 0;  // weights that were NaN or infinite
  std::uint64_t rounded = 0;     // values of codes that were rounded to the dtype of the output
};

class CheckpointQuantizer {
 public:
  // Opens and plans; writes nothing. Refuses: damaged input, or codes of a dialect that kvant does not read, statistics
  // that are missing or do not fit, patterns that match nothing, an output that is the input under whatever name.
  static Result<CheckpointQuantizer> plan(const QuantizeOptions& options);

  const CheckpointPlan& what() const;
  // Null: none were given.
  const format::ActivationStats* statistics() const;
  // What run() would say to the output that is there by now.
  Status check_output() const;
  // Refuses before anything is written: an output that exists (without `force` or `resume`), a manifest of other
  // options or another input, folding that would overflow. A failure in the middle leaves whole shards and no other
  // final names; the same call with `resume` continues.
  Result<QuantizeOutcome> run(base::Progress& progress);

  CheckpointQuantizer(CheckpointQuantizer&&) noexcept;
  CheckpointQuantizer& operator=(CheckpointQuantizer&&) noexcept;
  ~CheckpointQuantizer();

 private:
  struct Impl;
  explicit CheckpointQuantizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvant::quantize
