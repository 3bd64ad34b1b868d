// Quantization schemes. A scheme says how the weights of a Linear become codes, what is stored beside them, and what a
// loader makes of the activations: plain data, as a group of config.json states it. The schemes that kvant writes are
// the rows of the table in scheme.cc; names, help, options and config.json follow from the row.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "io/safetensors.h"
#include "kvant/element.h"
#include "kvant/status.h"

namespace kvant::format {

// What shares a scale, as config.json names it.
enum class Strategy : std::uint8_t {
  tensor,        // everything
  channel,       // a row of a weight
  group,         // so many neighbours in a row
  block,         // a tile of rows and columns of a weight
  token,         // a row of activations
  tensor_group,  // as group, with scales that are codes under one global scale of the tensor
};
std::string_view name(Strategy strategy);
std::span<const Strategy> strategies();

// How the codes of a weight are stored.
enum class Storage : std::uint8_t {
  elements,  // one to a byte, in a dtype of eight bits
  words,     // in little-endian words of 32 bits, as codes without a sign, the first in the lowest bits
  nibbles,   // two to a byte, the first in the lower half
};

// How weights become codes.
struct WeightScheme {
  ElementKind code = ElementKind::s8;
  Strategy strategy = Strategy::channel;
  Storage storage = Storage::elements;
  bool asymmetric = false;
  std::int64_t group_size = 0;                           // of groups
  std::int64_t block_rows = 0;                           // of blocks
  std::int64_t block_columns = 0;                        // of blocks
  std::optional<ElementKind> scale_code = std::nullopt;  // e8m0, or e4m3 under a global scale; else a number
  friend bool operator==(const WeightScheme&, const WeightScheme&) = default;

  constexpr bool has_groups() const { return strategy == Strategy::group || strategy == Strategy::tensor_group; }
  // Whether one number belongs to the whole tensor. Loaders that join layers take it for all of them.
  constexpr bool has_tensor_scale() const { return strategy == Strategy::tensor || strategy == Strategy::tensor_group; }
};

// When the scales of activations are found.
enum class Dynamic : std::uint8_t {
  no,     // they are stored
  yes,    // at run time
  local,  // at run time, under a global scale that is stored
};

// Codes that a loader, or the statistics, make of what a linear reads.
struct ActivationScheme {
  ElementKind code = ElementKind::s8;
  Strategy strategy = Strategy::token;
  Dynamic dynamic = Dynamic::yes;
  bool asymmetric = false;
  std::int64_t group_size = 0;  // of groups
  std::optional<ElementKind> scale_code = std::nullopt;
  friend bool operator==(const ActivationScheme&, const ActivationScheme&) = default;
};

// How the scale of weights that share one is found (stored_scale.h). Files do not say.
enum class ScaleChoice : std::uint8_t {
  minmax,     // of the largest magnitude, or of the range
  minmax_ct,  // the same with half the range of codes as the divisor of symmetric integers, as compressed-tensors has
              // it
  search,     // the one with the least squared error of those that are tried (kvant/weight_rounding.h)
};
// Whether each row has scales of its own: one, or one for each group.
constexpr bool has_scale_of_row(const WeightScheme& weights) {
  return weights.has_groups() || weights.strategy == Strategy::channel;
}

std::string_view name(ScaleChoice choice);
std::span<const ScaleChoice> scale_choices();

struct Scheme {
  std::string_view format = "int-quantized";  // as config.json names the layout of its tensors
  WeightScheme weights = {};
  std::optional<ActivationScheme> activations = ActivationScheme{};  // nothing: they stay as they are
  // Of scales that are numbers: F32, F16 or BF16. Default: the weight's own, F32 for F64, which no loader takes. It is
  // no part of config.json.
  std::optional<io::DType> scale_dtype = std::nullopt;
  ScaleChoice scale_choice = ScaleChoice::minmax;
  friend bool operator==(const Scheme&, const Scheme&) = default;

  constexpr bool has_static_integers() const {
    return activations && activations->dynamic == Dynamic::no && !has_float_grid(activations->code);
  }
  constexpr bool needs_statistics() const { return activations && activations->dynamic != Dynamic::yes; }
  constexpr bool has_asymmetric_activations() const { return activations && activations->asymmetric; }
  constexpr bool is_asymmetric() const { return weights.asymmetric || has_asymmetric_activations(); }
};

// A scheme that kvant writes, and the options that it takes.
struct SchemeRow {
  std::string_view name;            // of --scheme
  std::string_view llm_compressor;  // what llm-compressor calls it; empty: nothing
  std::string_view help;            // what it is, in a few words
  Scheme scheme;
  bool takes_group_size = false;          // --group-size chooses another, -1 a scale for each channel
  bool takes_asymmetric_weights = false;  // --asymmetric
  bool takes_asymmetric_activations = false;
  std::string_view against_experts = {};  // why loaders do not take it for the experts of a mixture; empty: they do

  constexpr bool takes_asymmetric() const { return takes_asymmetric_weights || takes_asymmetric_activations; }
};
std::span<const SchemeRow> schemes();

// By a name of the table, kvant's or llm-compressor's. Refuses others, and "FP8", which means another scheme there than
// fp8 does here.
Result<const SchemeRow*> scheme_named(std::string_view text);

struct SchemeOptions {
  std::optional<std::int64_t> group_size = std::nullopt;
  bool asymmetric = false;
  std::optional<io::DType> scale_dtype = std::nullopt;
  // Default: search for codes of four bits and fewer, minmax for others.
  std::optional<ScaleChoice> scale_choice = std::nullopt;
};
// Refuses options that the row does not take, a group size that is not positive or splits a word, and a scale dtype
// that is none.
Result<Scheme> with_options(const SchemeRow& row, const SchemeOptions& options);

// "w8a8", "w8a8-static, asymmetric", "w4a16, groups of 64"; in words where it is no row of the table.
std::string describe(const Scheme& scheme);

// Why loaders do not take the scheme for the experts of a mixture, which they join into one stack; empty: they do, or
// nothing is known of it.
std::string_view against_experts(const Scheme& scheme);

// Weights that share a scale in a matrix [rows, columns]: so many rows, so many columns.
struct ScaleSpan {
  std::uint64_t rows = 1;
  std::uint64_t columns = 1;
};
ScaleSpan span_of(const WeightScheme& weights, std::uint64_t rows, std::uint64_t columns);

// Columns that a weight must have a multiple of: those of a group, or those that share a word or a byte.
std::int64_t column_unit(const WeightScheme& weights);

// How many codes of four or eight bits a word holds.
constexpr std::uint64_t codes_per_word(ElementKind code) { return is_packed(code) ? 8 : 4; }
// What a signed code is stored as in a word: itself + this.
constexpr std::int32_t word_offset(ElementKind code) { return -code_range(code).min; }

}  // namespace kvant::format
