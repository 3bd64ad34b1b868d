// A checkpoint in, a quantized checkpoint out: read in tiles, written as it is made, whole or not at all.
//
// plan() decides without reading a weight: what becomes of every tensor and why, which modules config.json will list in
// `ignore`, how much memory the run takes. run() does it.
//
// The output is a folder with a shard for each shard of the input under the same name, the other files of the folder
// (tokenizer and so on), `kvant/` with the manifest and, where something was smoothed, the vectors s, and at the very
// end the index and config.json: a folder that has its config.json is whole. Where the input is one file and the
// output's name ends in ".safetensors", the output is that one file, and "quantization_config" stands in its metadata.
//
// Bytes of the output depend on the input and the options only, not on threads, memory or interruptions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "format/scheme.h"
#include "io/safetensors.h"
#include "kvant/status.h"
#include "model/roles.h"

namespace kvant::quantize {

inline constexpr std::uint64_t kDefaultMaxMemory = std::uint64_t{1} << 30;
// The program, its libraries and a tile for each thread.
inline constexpr std::uint64_t kLeastMaxMemory = std::uint64_t{64} << 20;

struct QuantizeOptions {
  std::filesystem::path input;
  std::filesystem::path output;
  format::Scheme scheme = {};
  std::optional<std::filesystem::path> stats;  // activation statistics (activation_stats.h)
  bool smooth = false;
  std::optional<double> alpha;               // default: the family's
  std::optional<std::string> smooth_groups;  // a family ("llama", "opt", "bloom") or a JSON file (smooth_groups.h)
  std::vector<std::string> ignore;           // beside lm_head, embeddings, norms and routers
  std::vector<std::string> include;          // modules that are quantized although the defaults or `ignore` say no
  int threads = 0;                           // 0: as many as the machine has
  std::uint64_t max_memory = kDefaultMaxMemory;
  bool resume = false;
  bool force = false;
};

enum class Action : std::uint8_t {
  copy,       // byte for byte
  quantize,   // a Linear's weight becomes codes and scales
  fold_norm,  // divided by s
  smooth,     // multiplied by s but not quantized: a router, or an ignored Linear behind a folded norm
};
std::string_view name(Action action);

struct TensorPlan {
  std::string name;
  std::size_t shard = 0;
  Action action = Action::copy;
  model::Role role = model::Role::other;
  std::string reason = {};  // "a 2-D weight", "lm_head is ignored by default", "in_features 100 is no multiple of 128"
  io::DType dtype = io::DType::f32;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes_before = 0;
  std::uint64_t bytes_after = 0;
  std::optional<std::size_t> smooth_group = {};  // index into CheckpointPlan::smoothed
};

struct SmoothedGroup {
  std::string norm;
  std::vector<std::string> readers;
};

struct CheckpointPlan {
  std::vector<TensorPlan> tensors;  // shard by shard, in the order of the data
  std::vector<SmoothedGroup> smoothed;
  double alpha = 0;                   // of the smoothing; 0 without
  std::vector<std::string> warnings;  // sentences: a norm that is left alone and why, files that are not copied …
  std::vector<std::string> ignore;    // what config.json will say
  std::uint64_t bytes_before = 0;     // of all tensors
  std::uint64_t bytes_after = 0;
  std::uint64_t expected_memory = 0;      // peak, in bytes; at most max_memory
  std::vector<std::string> files_copied;  // beside the shards, by name
};

struct QuantizeOutcome {
  std::uint64_t shards_written = 0;
  std::uint64_t shards_kept = 0;  // whole already, from the run that is resumed
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  double seconds = 0;
  std::uint64_t non_finite = 0;  // weights that were NaN or infinite
};

class CheckpointQuantizer {
 public:
  // Opens and plans; writes nothing. Refuses: damaged or already quantized input, statistics that are missing or do not
  // fit, patterns that match nothing, an output that is the input under whatever name.
  static Result<CheckpointQuantizer> plan(const QuantizeOptions& options);

  const CheckpointPlan& what() const;
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
