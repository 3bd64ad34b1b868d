// What compare() finds: the losses of every layer, and what follows from them when checkpoints are side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/quantization_config.h"
#include "io/json_fwd.h"
#include "measure/layer_detail.h"
#include "model/layer_kind.h"

namespace kvant::measure {

struct LayerLoss {
  std::string module;
  model::LayerKind kind = model::LayerKind::other;
  std::optional<std::uint64_t> block;
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  double sqnr_db = 0;
  double mse = 0;
  double cosine = 0;
  double largest_error = 0;
  std::uint64_t largest_row = 0;
  std::uint64_t largest_column = 0;
  double at_ends = 0;  // 0 to 1
  // Columns (input channels) whose largest magnitude is more than 6 times the median of all columns'; nothing for a
  // matrix of so many columns that they would not fit in memory.
  std::optional<std::uint64_t> outlier_channels;
  std::uint64_t dead_channels = 0;  // rows (output channels) of zeros
  // More than four times as many codes at the ends as evenly spread weights would put there, which are 1 / (2 q_max),
  // not counting one for each scale, whose largest weight is always there; and some weight is more than a step away
  // from its code, which rounding alone never does.
  bool saturated = false;
  std::uint64_t non_finite = 0;
  bool smoothed = false;
  format::WeightScheme weights = {};  // how they became codes
  // Of the layer's input, from statistics: the largest channel's max|X_j| over the median channel's, after smoothing
  // where the layer is smoothed. How much of the range of a token's codes one channel takes.
  std::optional<double> input_ratio;
  // Of the layer's output, from statistics of its input, if channels are not correlated: 10 log10(Σ m w² / (Σ m (w -
  // v)²
  // + Σ n v²)) with m = E[x²] and n = E[(x - xq)²]. Nothing where these are not known: for activations of int8 of a
  // layer that is smoothed, they are known before smoothing only.
  std::optional<double> estimated_output_sqnr_db;
  // Of the layer's output for the activations of a text, where somebody measured it (output_losses.h).
  std::optional<double> output_sqnr_db;
};

// One of the quantized checkpoints.
struct ModelLoss {
  std::filesystem::path path;
  std::string label;                     // the last part of the path; as much more of it as tells it from the others
  std::string scheme;                    // "w8a8", "GPTQ, 4 bits in groups of 128"
  std::vector<LayerLoss> layers;         // worst SQNR first; ties by name
  std::uint64_t bytes = 0;               // of all tensors
  std::vector<std::string> unquantized;  // Linears of the original that were left as they are
};

// A layer in each of the quantized checkpoints; nothing where it is not quantized.
struct LayerDetails {
  std::string module;
  std::vector<std::optional<LayerDetail>> quantized;
};

struct Comparison {
  std::filesystem::path original;
  std::string model_type;             // config.json's; empty: none
  std::uint64_t bytes = 0;            // of all tensors of the original
  std::uint64_t parameters = 0;       // elements of them
  std::vector<ModelLoss> quantized;   // in the order in which they were given
  std::vector<LayerDetails> details;  // worst first, as judged_by() says, by the worst of the checkpoints
  std::vector<std::string> warnings;  // statistics that are not of these layers
  double seconds = 0;
};

// What layers are judged by. An output is what the next layer sees, so it says more than the weights.
enum class Judged : std::uint8_t { outputs, estimated_outputs, weights };
inline constexpr std::size_t kJudged = 3;
// "outputs", "estimated_outputs", "weights"
std::string_view name(Judged by);
// What the JSON calls the number: "output_sqnr_db", "estimated_output_sqnr_db", "sqnr_db".
constexpr std::string_view sqnr_key(Judged by) {
  constexpr std::string_view kKeys[kJudged] = {"output_sqnr_db", "estimated_output_sqnr_db", "sqnr_db"};
  return kKeys[static_cast<std::size_t>(by)];
}

// Nothing where it is not known.
std::optional<double> sqnr_db_of(const LayerLoss& layer, Judged by);

// Outputs where they are known of most layers of every checkpoint: measured ones before estimates, weights last.
Judged judged_by(const Comparison& comparison);

// Whether `a` comes before `b` where the worst come first; layers of which nothing is known come after the others, by
// their weights; ties by name.
bool is_before(const LayerLoss& a, const LayerLoss& b, Judged by);

// A layer in all checkpoints.
struct SideBySide {
  const LayerLoss* worst = nullptr;      // of them
  std::vector<const LayerLoss*> losses;  // one for each checkpoint; null where the layer is not quantized
};

// Every layer that some checkpoint quantized, into `comparison`; worst first, by the worst of the checkpoints.
std::vector<SideBySide> side_by_side(const Comparison& comparison, Judged by = Judged::weights);

// Of the layers with a finite one; nothing without any.
std::optional<double> mean_sqnr_db(const ModelLoss& loss, Judged by);

// What each checkpoint kept on average over the layers of which all of them know it, in dB: the one with most lost
// least. Exact counts as 200 dB, NaN, and a checkpoint without a layer that counts, as -200.
std::vector<double> merits(const Comparison& comparison, Judged by);

// What is wrong with some layers of a checkpoint.
struct LayerWarning {
  std::string what;                         // "3 weights are NaN or infinite"
  std::string_view note;                    // a word for it: "not finite"
  std::vector<std::string_view> modules;    // the layers, in their order
  static constexpr std::size_t kNamed = 3;  // so many of them are named

  // "3 weights are NaN or infinite: a, b, c and 4 more"
  std::string sentence() const;
};
std::vector<LayerWarning> layer_warnings(const ModelLoss& loss);

// The same as sentences: weights that are not finite, dead channels, saturated layers. Empty: nothing.
std::vector<std::string> warnings_of(const ModelLoss& loss);

// As docs/report.md describes it. Numbers that are infinite or NaN are written as strings: "inf".
io::Json to_json(const Comparison& comparison);

}  // namespace kvant::measure
