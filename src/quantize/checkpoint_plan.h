// What a run is told, and what it will do: the options of quantizing a checkpoint, and the plan that follows from them
// and from the names, shapes and dtypes of its tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/quantization_config.h"
#include "format/scheme.h"
#include "format/weight_source.h"
#include "io/safetensors.h"
#include "model/roles.h"

namespace kvant::quantize {

inline constexpr std::uint64_t kDefaultMaxMemory = std::uint64_t{1} << 30;
// The program, its libraries and a tile for each thread.
inline constexpr std::uint64_t kMinMaxMemory = std::uint64_t{64} << 20;

// Modules that get another scheme than the rest.
struct SchemeOverride {
  std::string pattern;                   // a name, or "re:" and an expression, as --ignore takes it
  std::optional<format::Scheme> scheme;  // nothing: they are not quantized
};

// What `kvant convert` makes of a checkpoint that is quantized already.
struct Conversion {
  // Values in F32, F16 or BF16; nothing: the same codes, in the layout of compressed-tensors.
  std::optional<io::DType> values = std::nullopt;
};

// GPTQ: a column is rounded after it was moved by the errors of those before it (feedback_factors.h).
struct FeedbackOptions {
  double damping = 0.01;  // of the mean of the Hessian's diagonal
  bool by_size = true;    // columns with large inputs first; otherwise from the first to the last
};

// Where the scale of static activations comes from.
enum class ActivationRange : std::uint8_t {
  minmax,  // all that was seen
  mse,     // the part of it with the least squared error
};

struct QuantizeOptions {
  std::filesystem::path input;
  std::filesystem::path output;
  // Instead of quantizing. Then scheme, overrides, statistics, smoothing and patterns have no say.
  std::optional<Conversion> conversion = std::nullopt;
  format::Scheme scheme = {};
  bool fits_group_size = false;                // --group-size auto: the largest of 128, 64, 32 that fits all layers
  std::vector<SchemeOverride> overrides;       // the first that matches counts
  std::optional<std::filesystem::path> stats;  // activation statistics (activation_stats.h)
  std::optional<FeedbackOptions> feedback;     // with the Hessians of the statistics; nothing: codes are the nearest
  ActivationRange activation_range = ActivationRange::mse;
  // Layers whose stored scale keeps less of their usual inputs are left as they are; nothing: they are warned of.
  std::optional<double> least_input_db;
  bool fp8_kv_cache = false;  // scales for FP8 keys and values of attention, from the statistics
  bool smooth = false;
  std::optional<double> alpha;               // default: the family's
  std::optional<std::string> smooth_groups;  // a family ("llama", "opt", "bloom") or a JSON file (smooth_groups.h)
  std::vector<std::string> ignore;           // beside lm_head, embeddings, norms and routers
  std::vector<std::string> include;          // modules that are quantized although the defaults or `ignore` say no
  // Of the whole plan only tensors whose names begin so: a block, which calibration runs in place of the original. What
  // is about the whole is not checked, and no other files are copied.
  std::string only = {};
  int threads = 0;  // 0: as many as the machine has
  std::uint64_t max_memory = kDefaultMaxMemory;
  bool resume = false;
  bool force = false;
};

enum class Action : std::uint8_t {
  copy,       // byte for byte
  quantize,   // a Linear's weight becomes codes and scales
  fold_norm,  // divided by s
  smooth,     // multiplied by s but not quantized: a router, or an ignored Linear after a folded norm
  decode,     // a Linear that was quantized and is not any more, or a part of a stack of experts: its values
  recode,     // a Linear whose codes stay what they are, in another layout
  add_scale,  // of the keys or values of an attention layer, by the statistics
};
std::string_view name(Action action);
constexpr bool has_codes(Action action) { return action == Action::quantize || action == Action::recode; }

struct TensorPlan {
  std::string name;
  std::size_t shard = 0;
  Action action = Action::copy;
  model::Role role = model::Role::other;
  std::string reason =
      {};  // "a 2-D weight", "lm_head is ignored by default", "in_features 100 is not a multiple of 128"
  io::DType dtype = io::DType::f32;
  std::vector<std::uint64_t> shape;
  std::optional<format::WeightSource> source = {};  // of a matrix: where its weights are
  std::uint64_t bytes_before = 0;
  std::uint64_t bytes_after = 0;
  std::optional<std::size_t> smooth_group = {};  // index into CheckpointPlan::smoothed
  std::size_t scheme = 0;                        // of a weight that is quantized: index into CheckpointPlan::schemes
  // Of a weight with one scale for all of it: which of CheckpointPlan::scale_groups it is shared with.
  std::optional<std::size_t> scale_group = {};
  bool has_feedback = false;  // QuantizeOptions::feedback: the statistics know the Hessian of its input
};

struct SmoothedGroup {
  std::string norm;
  std::vector<std::string> readers;
};

struct CheckpointPlan {
  std::vector<TensorPlan> tensors;      // shard by shard, in the order of the data
  std::vector<format::Scheme> schemes;  // the first is that of all that no override names
  std::size_t scale_groups = 0;         // weights that share one scale, because loaders join them
  std::string quantized_as;             // what the input is quantized to already; empty: nothing
  bool is_conversion = false;
  std::string model_type;     // as config.json has it
  bool fp8_kv_cache = false;  // scales of keys and values: those that the input has, or new ones
  std::vector<SmoothedGroup> smoothed;
  double alpha = 0;                   // of the smoothing; 0 without
  std::vector<std::string> warnings;  // sentences: a norm that is left alone and why, files that are not copied …
  std::vector<std::string> ignore;    // what config.json will say
  std::uint64_t bytes_before = 0;     // of all tensors
  std::uint64_t bytes_after = 0;
  std::uint64_t expected_memory = 0;      // peak, in bytes; at most max_memory
  std::vector<std::string> files_copied;  // beside the shards, by name

  // Null unless the tensor's codes are written.
  const format::Scheme* scheme_of(const TensorPlan& tensor) const {
    return has_codes(tensor.action) ? &schemes[tensor.scheme] : nullptr;
  }
};

// What config.json will say.
format::QuantizationConfig quantization_config(const CheckpointPlan& plan);

}  // namespace kvant::quantize
