// Dialects of integer codes in words: GPTQ and AWQ.
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/divide_up.h"
#include "base/refuse.h"
#include "base/text.h"
#include "format/dialect_readers.h"
#include "io/json.h"

namespace kvant::format {
namespace {

using base::invalid_problem;
using base::unsupported;
using io::printable;

constexpr std::string_view kWords = ".qweight";

// What quantization_config says of all layers.
struct WordFacts {
  Scheme scheme;  // as compressed-tensors would store it
  Arrangement arrangement = Arrangement::gptq;
  std::string description;
};

Result<std::int64_t> integer_of(const io::Json& config, const std::string& where, std::string_view key) {
  const auto found = config.find(key);
  if (found != config.end() && found->is_number_integer()) return found->get<std::int64_t>();
  return invalid_problem("{}: {} is {}, must be an integer", where, key,
                         found == config.end() ? std::string("missing") : printable(found->dump(-1, ' ', true)));
}

// A boolean, or `otherwise` where it is not there.
Result<bool> flag_of(const io::Json& config, const std::string& where, std::string_view key, bool otherwise) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return otherwise;
  if (found->is_boolean()) return found->get<bool>();
  return invalid_problem("{}: {} is {}, must be true or false", where, key, printable(found->dump(-1, ' ', true)));
}

Result<Scheme> scheme_of_words(const io::Json& config, const std::string& where, bool asymmetric) {
  const auto bits = integer_of(config, where, "bits");
  if (!bits.ok()) return bits.status();
  const auto group_size = integer_of(config, where, "group_size");
  if (!group_size.ok()) return group_size.status();
  if (*bits != 4 && *bits != 8)
    return unsupported("{}: bits is {}, and kvant reads codes of 4 and 8 bits; give the original checkpoint", where,
                       *bits);
  const auto row = scheme_named(*bits == 4 ? "w4a16" : "w8a16");
  if (!row.ok()) return row.status();
  auto scheme = with_options(**row, {.group_size = *group_size, .asymmetric = asymmetric});
  if (!scheme.ok()) return invalid_problem("{}: {}", where, scheme.status().message());
  return scheme;
}

// X.g_idx, where its groups are no neighbours; null where they are.
Result<std::shared_ptr<const std::vector<std::uint32_t>>> groups_of_columns(const io::Checkpoint& checkpoint,
                                                                            const QuantizedLayer& layer,
                                                                            const std::string& name) {
  const auto place = part_of(checkpoint, name, {io::DType::i32}, {std::vector{layer.columns}});
  if (!place.ok()) return place.status();
  auto groups = std::make_shared<std::vector<std::uint32_t>>(static_cast<std::size_t>(layer.columns));
  if (Status s = checkpoint.read(*place, 0, std::as_writable_bytes(std::span(*groups))); !s.ok()) return s;
  bool neighbours = true;
  for (std::uint64_t c = 0; c < layer.columns; ++c) {
    if ((*groups)[c] >= layer.groups())
      return invalid_problem("{}: tensor '{}' has {} at {}, must be a group from 0 to {}",
                             printable(checkpoint.shard_name(place->shard)), printable(name),
                             static_cast<std::int32_t>((*groups)[c]), c, layer.groups() - 1);
    neighbours = neighbours && (*groups)[c] == c / layer.group_size;
  }
  if (neighbours) groups = nullptr;
  return std::shared_ptr<const std::vector<std::uint32_t>>(std::move(groups));
}

Result<QuantizedLayer> layer_of_words(const io::Checkpoint& checkpoint, const io::TensorPlace& place,
                                      const std::string& module, const WordFacts& facts,
                                      std::set<std::string, std::less<>>& tensors) {
  const io::TensorInfo& codes = checkpoint.at(place);
  const std::uint64_t per_word = codes_per_word(facts.scheme.weights.code);
  const bool is_awq = facts.arrangement == Arrangement::awq;
  const std::size_t packed = is_awq ? 1 : 0;  // the dimension of words
  if (codes.dtype != io::DType::i32 || codes.shape.size() != 2 ||
      codes.shape[packed] > std::numeric_limits<std::uint64_t>::max() / per_word)
    return invalid_problem("{}: tensor '{}' is {} {}, must be I32 with 2 dimensions",
                           printable(checkpoint.shard_name(place.shard)), printable(codes.name), io::name(codes.dtype),
                           base::bracketed(codes.shape));
  QuantizedLayer layer{.module = module,
                       .rows = codes.shape[1] * (is_awq ? per_word : 1),
                       .columns = codes.shape[0] * (is_awq ? 1 : per_word),
                       .scheme = facts.scheme};
  layer.codes = place;
  layer.arrangement = facts.arrangement;
  const ScaleSpan span = span_of(facts.scheme.weights, layer.rows, layer.columns);
  layer.group_size = span.columns;
  if (layer.rows == 0 || layer.columns == 0 || layer.rows % per_word != 0)
    return invalid_problem("{}: tensor '{}' is a layer of {} rows and {} columns, rows must be a multiple of {}",
                           printable(checkpoint.shard_name(place.shard)), printable(codes.name), layer.rows,
                           layer.columns, per_word);
  if (layer.columns % layer.group_size != 0)
    return invalid_problem("{}: tensor '{}' has in_features {}, which is not a multiple of the group size {}",
                           printable(checkpoint.shard_name(place.shard)), printable(codes.name), layer.columns,
                           layer.group_size);
  const std::string scales = module + ".scales", zero_points = module + ".qzeros", index = module + ".g_idx";
  const auto scale_place = part_of(checkpoint, scales, {io::DType::f16, io::DType::bf16, io::DType::f32},
                                   {std::vector{layer.groups(), layer.rows}});
  if (!scale_place.ok()) return scale_place.status();
  const auto zero_place =
      part_of(checkpoint, zero_points, {io::DType::i32}, {std::vector{layer.groups(), layer.rows / per_word}});
  if (!zero_place.ok()) return zero_place.status();
  layer.scales = *scale_place;
  layer.zero_points = *zero_place;
  layer.scheme.scale_dtype = checkpoint.at(*scale_place).dtype;
  if (checkpoint.find(index) != nullptr) {
    auto groups = groups_of_columns(checkpoint, layer, index);
    if (!groups.ok()) return groups.status();
    layer.group_of_column = std::move(groups).value();
    if (layer.group_of_column != nullptr) layer.group_size = 1;
    tensors.insert(index);
  }
  for (const std::string& name : {codes.name, scales, zero_points}) tensors.insert(name);
  return layer;
}

Result<QuantizedWeights> layers_of_words(const io::Checkpoint& checkpoint, const WordFacts& facts) {
  QuantizedWeights weights;
  weights.description = facts.description;
  for (const auto& [name, place] : checkpoint.tensors()) {
    if (!name.ends_with(kWords)) continue;
    auto layer = layer_of_words(checkpoint, place, name.substr(0, name.size() - kWords.size()), facts, weights.tensors);
    if (!layer.ok()) return layer.status();
    weights.layers.push_back(std::move(layer).value());
  }
  return weights;
}

// "GPTQ, 4 bits in groups of 128", "…, a scale for each channel"
std::string description_of(std::string_view method, const WeightScheme& weights) {
  return fmt::format("{}, {} bits{}", method, bits_per_element(weights.code),
                     weights.has_groups() ? fmt::format(" in groups of {}", weights.group_size)
                                          : std::string(", a scale for each channel"));
}

}  // namespace

Result<QuantizedWeights> read_gptq(const io::Checkpoint& checkpoint, const io::Json& config, const std::string& where) {
  const auto symmetric = flag_of(config, where, "sym", true);
  if (!symmetric.ok()) return symmetric.status();
  auto scheme = scheme_of_words(config, where, !*symmetric);
  if (!scheme.ok()) return scheme.status();
  WordFacts facts{.scheme = std::move(scheme).value(), .description = {}};
  const auto form = config.find("checkpoint_format");
  if (form != config.end() && !form->is_null()) {
    if (*form == "gptq_v2")
      facts.arrangement = Arrangement::gptq_v2;
    else if (*form != "gptq")
      return unsupported("{}: checkpoint_format is {}, and kvant reads \"gptq\" and \"gptq_v2\"", where,
                         printable(form->dump(-1, ' ', true)));
  }
  facts.description = description_of("GPTQ", facts.scheme.weights);
  return layers_of_words(checkpoint, facts);
}

Result<QuantizedWeights> read_awq(const io::Checkpoint& checkpoint, const io::Json& config, const std::string& where) {
  const auto version = config.find("version");
  if (version != config.end() && !version->is_null() && *version != "gemm" && *version != "GEMM")
    return unsupported("{}: version is {}, and kvant reads \"gemm\"; others order their words in another way", where,
                       printable(version->dump(-1, ' ', true)));
  const auto asymmetric = flag_of(config, where, "zero_point", true);
  if (!asymmetric.ok()) return asymmetric.status();
  auto scheme = scheme_of_words(config, where, *asymmetric);
  if (!scheme.ok()) return scheme.status();
  WordFacts facts{.scheme = std::move(scheme).value(), .arrangement = Arrangement::awq, .description = {}};
  if (bits_per_element(facts.scheme.weights.code) != 4)
    return unsupported("{}: bits is 8, and AWQ's order of words is known for 4 bits only", where);
  facts.description = description_of("AWQ", facts.scheme.weights);
  return layers_of_words(checkpoint, facts);
}

}  // namespace kvant::format
