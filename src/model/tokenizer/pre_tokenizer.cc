#include "model/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "base/utf8.h"
#include "io/json.h"
#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/characters.h"
#include "model/tokenizer/pattern.h"
#include "model/tokenizer/regex.h"

namespace kvant::model::tokenizer {
namespace {

using CuttingStep = PreTokenizer::Step;

// ---- Behaviours -------------------------------------------------------------------------------------------------

struct NamedBehavior {
  std::string_view name;
  SplitBehavior behavior;
};
constexpr NamedBehavior kBehaviors[] = {{"Removed", SplitBehavior::Removed},
                                        {"Isolated", SplitBehavior::Isolated},
                                        {"MergedWithPrevious", SplitBehavior::MergedWithPrevious},
                                        {"MergedWithNext", SplitBehavior::MergedWithNext},
                                        {"Contiguous", SplitBehavior::Contiguous}};

Result<SplitBehavior> read_behavior(const Section& section, std::string_view otherwise) {
  const auto name = section.text_or("behavior", otherwise);
  if (!name.ok()) return name.status();
  for (const NamedBehavior& known : kBehaviors)
    if (known.name == *name) return known.behavior;
  std::vector<std::string_view> names;
  for (const NamedBehavior& known : kBehaviors) names.push_back(known.name);
  return section.unsupported("behavior \"{}\" is not supported; supported are {}", io::printable(*name),
                             base::joined(names, ", "));
}

// ---- By patterns and classes ------------------------------------------------------------------------------------

Status cut_by(const Regex& regex, SplitBehavior behavior, bool invert, Pieces& pieces) {
  return pieces.cut(behavior, invert, [&](std::string_view piece, std::vector<Range>& matches) {
    return regex.find_all(piece, matches);
  });
}

Result<CuttingStep> read_split(const Section& section) {
  const auto pattern = read_pattern(section);
  if (!pattern.ok()) return pattern.status();
  const auto behavior = read_behavior(section, "");
  if (!behavior.ok()) return behavior.status();
  const auto invert = section.flag_or("invert", false);
  if (!invert.ok()) return invert.status();
  return CuttingStep([regex = pattern->regex, behavior = *behavior, invert = *invert](Pieces& pieces) {
    return cut_by(regex, behavior, invert, pieces);
  });
}

Result<CuttingStep> read_digits(const Section& section) {
  const auto individual = section.flag_or("individual_digits", false);
  if (!individual.ok()) return individual.status();
  const SplitBehavior behavior = *individual ? SplitBehavior::Isolated : SplitBehavior::Contiguous;
  return CuttingStep([behavior](Pieces& pieces) { return pieces.cut_at(behavior, is_number); });
}

Result<CuttingStep> read_punctuation(const Section& section) {
  const auto behavior = read_behavior(section, "Isolated");
  if (!behavior.ok()) return behavior.status();
  return CuttingStep([behavior = *behavior](Pieces& pieces) { return pieces.cut_at(behavior, is_punctuation); });
}

Result<CuttingStep> read_whitespace_split(const Section&) {
  return CuttingStep([](Pieces& pieces) { return pieces.cut_at(SplitBehavior::Removed, is_space); });
}

Result<CuttingStep> read_bert_pre_tokenizer(const Section&) {
  return CuttingStep([](Pieces& pieces) -> Status {
    if (Status s = pieces.cut_at(SplitBehavior::Removed, is_space); !s.ok()) return s;
    return pieces.cut_at(SplitBehavior::Isolated, is_punctuation);
  });
}

// Runs of word characters, and runs of what is neither word nor space.
Status find_words(std::string_view piece, std::vector<Range>& matches) {
  enum class Class { space, word, other };
  Class last = Class::space;
  for (std::size_t at = 0; at < piece.size();) {
    const base::CodePoint c = base::first_code_point(piece.substr(at));
    const Class is = is_word(c.value) ? Class::word : is_space(c.value) ? Class::space : Class::other;
    if (is != Class::space && is == last)
      matches.back().end += c.bytes;
    else if (is != Class::space)
      matches.push_back({at, at + c.bytes});
    last = is;
    at += c.bytes;
  }
  return {};
}

Result<CuttingStep> read_whitespace(const Section&) {
  return CuttingStep([](Pieces& pieces) { return pieces.cut(SplitBehavior::Removed, true, find_words); });
}

// ---- That write the text anew -----------------------------------------------------------------------------------

constexpr std::string_view kGpt2Words = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Result<CuttingStep> read_byte_level(const Section& section) {
  const auto add_prefix_space = section.flag_or("add_prefix_space", true);
  if (!add_prefix_space.ok()) return add_prefix_space.status();
  const auto use_regex = section.flag_or("use_regex", true);
  if (!use_regex.ok()) return use_regex.status();
  std::optional<Regex> words;
  if (*use_regex) {
    auto compiled = Regex::compile(kGpt2Words, section.place());
    if (!compiled.ok()) return compiled.status();
    words = std::move(compiled).value();
  }
  return CuttingStep([words, add_prefix_space = *add_prefix_space](Pieces& pieces) -> Status {
    if (add_prefix_space) {
      Status s = pieces.rewrite([](std::string_view piece, bool, std::string& text) {
        if (!piece.starts_with(' ')) text += ' ';
        text += piece;
      });
      if (!s.ok()) return s;
    }
    if (words)
      if (Status s = cut_by(*words, SplitBehavior::Isolated, false, pieces); !s.ok()) return s;
    return pieces.rewrite([](std::string_view piece, bool, std::string& text) { append_byte_level(text, piece); });
  });
}

// Which pieces get a marker in front.
enum class Prepend { always, first, never };

Result<Prepend> read_prepend_scheme(const Section& section) {
  const auto add_prefix_space = section.flag_or("add_prefix_space", true);
  if (!add_prefix_space.ok()) return add_prefix_space.status();
  const auto scheme = section.text_or("prepend_scheme", *add_prefix_space ? "always" : "never");
  if (!scheme.ok()) return scheme.status();
  if (!*add_prefix_space && *scheme != "never")
    return section.refuse("\"add_prefix_space\" is false and \"prepend_scheme\" is \"{}\"", io::printable(*scheme));
  if (*scheme == "always") return Prepend::always;
  if (*scheme == "first") return Prepend::first;
  if (*scheme == "never") return Prepend::never;
  return section.wrong("prepend_scheme", "\"always\", \"first\" or \"never\"");
}

Result<CuttingStep> read_metaspace(const Section& section) {
  const auto marker = section.text("replacement");
  if (!marker.ok()) return marker.status();
  if (marker->empty() || base::first_code_point(*marker).bytes != marker->size())
    return section.wrong("replacement", "one character");
  const auto scheme = read_prepend_scheme(section);
  if (!scheme.ok()) return scheme.status();
  const auto split = section.flag_or("split", true);
  if (!split.ok()) return split.status();
  return CuttingStep([marker = *marker, scheme = *scheme, split = *split](Pieces& pieces) -> Status {
    Status s = pieces.rewrite([&](std::string_view piece, bool is_start, std::string& text) {
      const bool may = scheme == Prepend::always || (scheme == Prepend::first && is_start);
      if (may && !piece.starts_with(' ') && !piece.starts_with(marker)) text += marker;
      for (const char c : piece) {
        if (c == ' ')
          text += marker;
        else
          text += c;
      }
    });
    if (!s.ok() || !split) return s;
    const char32_t character = base::first_code_point(marker).value;
    return pieces.cut_at(SplitBehavior::MergedWithNext, [character](char32_t c) { return c == character; });
  });
}

struct PreTokenizerKind {
  std::string_view type;
  Result<CuttingStep> (*read)(const Section&);
};
constexpr PreTokenizerKind kPreTokenizers[] = {{"ByteLevel", read_byte_level},
                                               {"Split", read_split},
                                               {"Digits", read_digits},
                                               {"Metaspace", read_metaspace},
                                               {"BertPreTokenizer", read_bert_pre_tokenizer},
                                               {"Whitespace", read_whitespace},
                                               {"WhitespaceSplit", read_whitespace_split},
                                               {"Punctuation", read_punctuation}};

}  // namespace

Result<PreTokenizer> PreTokenizer::read(const Section& section) {
  PreTokenizer pre_tokenizer;
  if (Status s = pre_tokenizer.add(section); !s.ok()) return s;
  return pre_tokenizer;
}

Status PreTokenizer::add(const Section& section) {
  const auto type = section.type();
  if (!type.ok()) return type.status();
  if (*type == "Sequence") {
    const auto steps = section.sections("pretokenizers");
    if (!steps.ok()) return steps.status();
    for (const Section& step : *steps)
      if (Status s = add(step); !s.ok()) return s;
    return {};
  }
  const auto* kind = std::find_if(std::begin(kPreTokenizers), std::end(kPreTokenizers),
                                  [&](const PreTokenizerKind& k) { return k.type == *type; });
  if (kind == std::end(kPreTokenizers)) return unknown_type(section, *type, kPreTokenizers);
  auto step = kind->read(section);
  if (!step.ok()) return step.status();
  steps_.push_back(std::move(step).value());
  if (*type == "ByteLevel") is_byte_level_ = true;
  if (*type == "Metaspace") space_marker_ = section.text("replacement").value();
  return {};
}

Status PreTokenizer::apply(Pieces& pieces) const {
  for (const CuttingStep& step : steps_)
    if (Status s = step(pieces); !s.ok()) return s;
  return {};
}

}  // namespace kvant::model::tokenizer
