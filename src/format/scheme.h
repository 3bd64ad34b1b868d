// Quantization schemes. What a scheme is stands in one row of the table in scheme.cc; everything else asks the row: how
// weights become codes, what is stored beside them, which options it takes, what config.json says, what the help says.
//
//   w8a8         weights s8 per output channel, activations s8 per token at run time
//   w8a8-static  weights s8 per output channel, activations s8 with one scale for each linear, from statistics
//   w4a16        weights s4 in groups along the input, activations as they are
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

// In the order of the table.
enum class SchemeKind : std::uint8_t { w8a8, w8a8_static, w4a16 };

// What shares a scale, as config.json names it.
enum class Strategy : std::uint8_t {
  tensor,   // everything
  channel,  // a row of a weight
  group,    // so many neighbours in a row of a weight
  token,    // a row of activations
};
std::string_view name(Strategy strategy);

// How the codes of a weight are stored.
enum class Storage : std::uint8_t {
  elements,  // one by one, in a dtype of their width
  words,     // in little-endian words of 32 bits, as codes without a sign, the first in the lowest bits
};

struct WeightSpec {
  ElementKind code = ElementKind::s8;
  Strategy strategy = Strategy::channel;
  Storage storage = Storage::elements;
  bool takes_asymmetric = false;
  std::int64_t default_group_size = 0;  // of Strategy::group
  // Dtypes that its scales may have. Without a wish it is the weight's own, F32 for F64, which no loader takes.
  std::span<const io::DType> scale_dtypes;
};

// Codes that a loader, or the statistics, make of what a linear reads.
struct ActivationSpec {
  ElementKind code = ElementKind::s8;
  Strategy strategy = Strategy::token;
  bool dynamic = true;  // false: a scale that is stored, from statistics
  bool takes_asymmetric = false;
};

struct SchemeSpec {
  SchemeKind kind;
  std::string_view name;    // of --scheme
  std::string_view help;    // what it is, in a few words
  std::string_view format;  // as config.json names the layout of its tensors
  WeightSpec weights;
  std::optional<ActivationSpec> activations;  // nothing: they stay as they are

  constexpr bool has_groups() const { return weights.strategy == Strategy::group; }
  constexpr bool needs_statistics() const { return activations && !activations->dynamic; }
  constexpr bool takes_asymmetric() const {
    return weights.takes_asymmetric || (activations && activations->takes_asymmetric);
  }
};

std::span<const SchemeSpec> schemes();
const SchemeSpec& spec_of(SchemeKind kind);
std::string_view name(SchemeKind kind);
std::optional<SchemeKind> scheme_named(std::string_view text);

// A scheme with its options.
struct Scheme {
  SchemeKind kind = SchemeKind::w8a8;
  bool asymmetric = false;                    // of weights or activations, as the row says
  std::int64_t group_size = 128;              // where there are groups
  std::optional<io::DType> scale_dtype = {};  // one of the row's; default: the weight's own

  const SchemeSpec& spec() const { return spec_of(kind); }
  bool has_asymmetric_weights() const { return asymmetric && spec().weights.takes_asymmetric; }
  bool has_asymmetric_activations() const {
    return asymmetric && spec().activations && spec().activations->takes_asymmetric;
  }
};

// With the row's own group size.
Scheme default_scheme(SchemeKind kind);

// Refuses what no loader takes: a group size that is not positive or splits a word, asymmetric where the row takes
// none, a scale dtype that is none.
Status check(const Scheme& scheme);

// "w8a8", "w8a8-static, asymmetric", "w4a16, groups of 128"
std::string describe(const Scheme& scheme);

// How many codes of four or eight bits a word holds.
constexpr std::uint64_t codes_per_word(ElementKind code) { return is_packed(code) ? 8 : 4; }
// What a signed code is stored as in a word: itself + this.
constexpr std::int32_t word_offset(ElementKind code) { return -code_range(code).min; }

}  // namespace kvant::format
