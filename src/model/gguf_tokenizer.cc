#include "model/gguf_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/refuse.h"
#include "base/text.h"
#include "io/json.h"
#include "model/gguf_metadata.h"

namespace kvant::model {
namespace {

using base::invalid_problem;
using io::Json;

// tokenizer.ggml.token_type
enum TokenType : std::int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4 };

// Every cut of a token is looked up: a token of megabytes would take forever. The longest of known models have 256.
constexpr std::size_t kMaxTokenBytes = 1024;

// How text is cut before it is merged: tokenizer.ggml.pre.
struct PreTokenizer {
  std::string_view name;
  bool single_digits;      // each digit by itself
  std::string_view split;  // empty: GPT-2's own expression
  bool nfc;                // normalized first
  bool ignores_merges;     // a word that is a token is taken whole
  bool begins_with_bos;    // unless the metadata say otherwise
};

constexpr std::string_view kLlama3Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr PreTokenizer kPreTokenizers[] = {
    {"gpt-2", false, "", false, false, false},
    {"default", false, "", false, false, false},  // of files that do not say
    {"smollm", true, "", false, false, false},
    {"starcoder", true, "", false, false, false},
    {"llama-bpe", false, kLlama3Split, false, true, true},
    {"qwen2", false, kQwen2Split, true, false, false},
};

std::string names_of_pre_tokenizers() {
  std::vector<std::string_view> names;
  for (const PreTokenizer& row : kPreTokenizers) names.push_back(row.name);
  return base::joined(names, ", ");
}

// Objects are vectors of members: operator[] would look through all of them, each time.
void append(Json::object_t& object, const std::string& key, Json value) {
  object.Container::emplace_back(key, std::move(value));
}

Json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

Json pre_tokenizer_json(const PreTokenizer& row) {
  if (!row.single_digits && row.split.empty()) return byte_level(true);
  const Json first =
      row.single_digits
          ? Json{{"type", "Digits"}, {"individual_digits", true}}
          : Json{{"type", "Split"}, {"pattern", {{"Regex", row.split}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({first, byte_level(row.split.empty())})}};
}

// Characters of UTF-8.
std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

class TokenizerMaker {
 public:
  TokenizerMaker(const io::GgufFile& file, std::uint64_t vocabulary)
      : metadata_(file), name_(metadata_.file_name()), vocabulary_(vocabulary) {}

  Result<Json> run() {
    const auto model = metadata_.text("tokenizer.ggml.model");
    if (!model.ok()) return model.status();
    if (!*model) return invalid_problem("{}: has no tokenizer (\"tokenizer.ggml.model\" is missing)", name_);
    if (**model != "gpt2" && **model != "llama")
      return base::unsupported(
          "{}: tokenizer \"{}\" is not known, only gpt2 (byte-level BPE) and llama (SentencePiece)", name_,
          io::printable(**model));
    if (Status s = read_tokens(); !s.ok()) return s;
    return **model == "gpt2" ? byte_level_bpe() : sentence_piece();
  }

 private:
  Status read_tokens() {
    const auto tokens = metadata_.strings("tokenizer.ggml.tokens");
    if (!tokens.ok()) return tokens.status();
    if (*tokens == nullptr) return invalid_problem("{}: \"tokenizer.ggml.tokens\" is missing", name_);
    tokens_ = (*tokens)->strings;
    if (tokens_.empty() || tokens_.size() > vocabulary_)
      return invalid_problem("{}: {} tokens for {} rows of the embeddings", name_, tokens_.size(), vocabulary_);
    auto types = metadata_.integers("tokenizer.ggml.token_type");
    if (!types.ok()) return types.status();
    types_ = std::move(*types);
    if (types_.empty()) types_.assign(tokens_.size(), kNormal);
    if (types_.size() != tokens_.size())
      return invalid_problem("{}: {} types for {} tokens", name_, types_.size(), tokens_.size());
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      if (!io::is_utf8(tokens_[i]))
        return invalid_problem("{}: token {} \"{}\" is not UTF-8", name_, i, io::printable(tokens_[i]));
      if (tokens_[i].size() > kMaxTokenBytes)
        return invalid_problem("{}: token {} has {} bytes, must have at most {}", name_, i, tokens_[i].size(),
                               kMaxTokenBytes);
      ids_.emplace_back(tokens_[i], i);
    }
    std::sort(ids_.begin(), ids_.end());
    const auto twice =
        std::adjacent_find(ids_.begin(), ids_.end(), [](const auto& a, const auto& b) { return a.first == b.first; });
    if (twice != ids_.end())
      return invalid_problem("{}: token \"{}\" is there twice, as {} and {}", name_, io::printable(twice->first),
                             twice->second, (twice + 1)->second);
    return {};
  }

  std::optional<std::size_t> id_of(std::string_view token) const {
    const auto at = std::lower_bound(ids_.begin(), ids_.end(), token,
                                     [](const auto& id, std::string_view wanted) { return id.first < wanted; });
    if (at == ids_.end() || at->first != token) return std::nullopt;
    return at->second;
  }

  Json vocabulary_json() const {
    Json::object_t object;
    object.reserve(tokens_.size());
    for (std::size_t i = 0; i < tokens_.size(); ++i) append(object, std::string(tokens_[i]), i);
    return object;
  }

  // What is cut out of a text before anything else is done to it.
  Json added_tokens() const {
    Json added = Json::array();
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const bool special = types_[i] == kControl || types_[i] == kUnknown;
      if (!special && types_[i] != kUserDefined) continue;
      added.push_back({{"id", i},
                       {"content", tokens_[i]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", special}});
    }
    return added;
  }

  // The token whose number a key has; nothing where there is none.
  Result<std::optional<std::size_t>> special(const std::string& key) const {
    const auto id = metadata_.count(key);
    if (!id.ok()) return id.status();
    if (!*id) return std::optional<std::size_t>();
    if (**id >= tokens_.size())
      return invalid_problem("{}: \"{}\" is {}, there are {} tokens", name_, key, **id, tokens_.size());
    return std::optional<std::size_t>(**id);
  }

  // The tokens around a text, as a post-processor; null: none.
  Result<Json> surroundings(bool begins_with_bos) const {
    const auto bos = special("tokenizer.ggml.bos_token_id"), eos = special("tokenizer.ggml.eos_token_id");
    const auto add_bos = metadata_.flag("tokenizer.ggml.add_bos_token");
    const auto add_eos = metadata_.flag("tokenizer.ggml.add_eos_token");
    for (const Status& s : {bos.status(), eos.status(), add_bos.status(), add_eos.status()})
      if (!s.ok()) return s;
    const bool with_bos = *bos && add_bos->value_or(begins_with_bos), with_eos = *eos && add_eos->value_or(false);
    if (!with_bos && !with_eos) return Json();
    Json specials = Json::object(), single = Json::array(), pair = Json::array();
    for (const bool second : {false, true}) {
      const auto add = [&](Json part) {
        if (!second) single.push_back(part);
        pair.push_back(std::move(part));
      };
      const auto add_token = [&](std::size_t id) {
        const std::string token(tokens_[id]);
        add({{"SpecialToken", {{"id", token}, {"type_id", second ? 1 : 0}}}});
        specials[token] = {{"id", token}, {"ids", Json::array({id})}, {"tokens", Json::array({token})}};
      };
      if (with_bos) add_token(**bos);
      add({{"Sequence", {{"id", second ? "B" : "A"}, {"type_id", second ? 1 : 0}}}});
      if (with_eos) add_token(**eos);
    }
    return Json{{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", specials}};
  }

  // The parts that both kinds have, in the order that tokenizers writes them in.
  Json document(Json normalizer, Json pre_tokenizer, Json post_processor, Json decoder, Json model, Json merges) const {
    model["vocab"] = vocabulary_json();
    model["merges"] = std::move(merges);
    Json::object_t object;
    append(object, "version", "1.0");
    append(object, "truncation", nullptr);
    append(object, "padding", nullptr);
    append(object, "added_tokens", added_tokens());
    append(object, "normalizer", std::move(normalizer));
    append(object, "pre_tokenizer", std::move(pre_tokenizer));
    append(object, "post_processor", std::move(post_processor));
    append(object, "decoder", std::move(decoder));
    append(object, "model", std::move(model));
    return object;
  }

  static Json bpe(Json unknown, bool sentence_piece, bool ignores_merges) {
    return {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", std::move(unknown)},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", sentence_piece},
            {"byte_fallback", sentence_piece},
            {"ignore_merges", ignores_merges}};
  }

  Result<Json> byte_level_bpe() const {
    const auto pre = metadata_.text("tokenizer.ggml.pre");
    if (!pre.ok()) return pre.status();
    const std::string wanted = pre->value_or("default");
    const auto* const row = std::find_if(std::begin(kPreTokenizers), std::end(kPreTokenizers),
                                         [&](const PreTokenizer& p) { return p.name == wanted; });
    if (row == std::end(kPreTokenizers))
      return base::unsupported("{}: pre-tokenizer \"{}\" is not known, only {}", name_, io::printable(wanted),
                               names_of_pre_tokenizers());
    auto merges = given_merges();
    if (!merges.ok()) return merges;
    const auto around = surroundings(row->begins_with_bos);
    if (!around.ok()) return around.status();
    Json post_processor = byte_level(true);
    if (!around->is_null())
      post_processor = {{"type", "Sequence"}, {"processors", Json::array({post_processor, *around})}};
    return document(row->nfc ? Json{{"type", "NFC"}} : Json(), pre_tokenizer_json(*row), std::move(post_processor),
                    byte_level(true), bpe(nullptr, false, row->ignores_merges), std::move(merges).value());
  }

  Result<Json> given_merges() const {
    const auto merges = metadata_.strings("tokenizer.ggml.merges");
    if (!merges.ok()) return merges.status();
    if (*merges == nullptr) return invalid_problem("{}: \"tokenizer.ggml.merges\" is missing", name_);
    std::vector<Json> made;
    made.reserve((*merges)->strings.size());
    for (const std::string& merge : (*merges)->strings) {
      const std::size_t space = merge.find(' ');
      const std::string left = merge.substr(0, space);
      const std::string right = space == std::string::npos ? "" : merge.substr(space + 1);
      if (!id_of(left) || !id_of(right) || !id_of(left + right))
        return invalid_problem("{}: merge {} \"{}\" must be two tokens that make a third, with a space between", name_,
                               made.size(), io::printable(merge));
      made.emplace_back(merge);
    }
    return Json(std::move(made));
  }

  Result<Json> sentence_piece() const {
    auto merges = merges_from_scores();
    if (!merges.ok()) return merges;
    const auto prefix = metadata_.flag("tokenizer.ggml.add_space_prefix");
    if (!prefix.ok()) return prefix.status();
    const auto around = surroundings(true);
    if (!around.ok()) return around.status();
    const auto unknown = special("tokenizer.ggml.unknown_token_id");
    if (!unknown.ok()) return unknown.status();
    const bool adds_space = prefix->value_or(true);
    const Json to_blocks = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kBlock}};
    Json normalizers = Json::array({to_blocks});
    Json decoders = Json::array({{{"type", "Replace"}, {"pattern", {{"String", kBlock}}}, {"content", " "}},
                                 {{"type", "ByteFallback"}},
                                 {{"type", "Fuse"}}});
    if (adds_space) {
      normalizers = Json::array({{{"type", "Prepend"}, {"prepend", kBlock}}, to_blocks});
      decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    return document({{"type", "Sequence"}, {"normalizers", normalizers}}, nullptr, *around,
                    {{"type", "Sequence"}, {"decoders", decoders}},
                    bpe(*unknown ? Json(tokens_[**unknown]) : Json(), true, false), std::move(merges).value());
  }

  // Every cut of a token into two is a merge. Those of the token with the highest score come first, of one token those
  // with the longest left part: the order that transformers gives them.
  Result<Json> merges_from_scores() const {
    const auto scores = metadata_.numbers("tokenizer.ggml.scores");
    if (!scores.ok()) return scores.status();
    if (scores->size() != tokens_.size())
      return invalid_problem("{}: {} scores for {} tokens", name_, scores->size(), tokens_.size());
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      if (types_[i] != kNormal || characters(tokens_[i]) < 2) continue;
      if (!std::isfinite((*scores)[i]))
        return invalid_problem("{}: the score {} of token \"{}\" is not finite", name_, (*scores)[i],
                               io::printable(tokens_[i]));
      order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return (*scores)[a] > (*scores)[b]; });
    std::vector<Json> made;
    std::optional<std::size_t> previous;  // that has merges
    for (const std::size_t token : order) {
      const std::size_t before = made.size();
      if (Status s = append_cuts(tokens_[token], made); !s.ok()) return s;
      if (made.size() == before) continue;
      // Which of the two is merged first would depend on where in the text they are.
      if (previous && (*scores)[*previous] == (*scores)[token])
        return base::unsupported("{}: tokens \"{}\" and \"{}\" have the same score {}: their order of merging is open",
                                 name_, io::printable(tokens_[*previous]), io::printable(tokens_[token]),
                                 (*scores)[token]);
      previous = token;
    }
    return Json(std::move(made));
  }

  Status append_cuts(std::string_view token, std::vector<Json>& made) const {
    // From the longest left part on; their lengths in characters differ as those in bytes do.
    for (std::size_t cut = token.size() - 1; cut > 0; --cut) {
      if ((static_cast<unsigned char>(token[cut]) & 0xC0) == 0x80) continue;  // inside a character
      const auto left = id_of(token.substr(0, cut)), right = id_of(token.substr(cut));
      if (!left || !right || types_[*left] != kNormal || types_[*right] != kNormal) continue;
      if (token.find(' ') != std::string_view::npos)
        return invalid_problem("{}: token \"{}\" has a space, which no merge can be written with", name_,
                               io::printable(token));
      made.emplace_back(base::text("{} {}", token.substr(0, cut), token.substr(cut)));
    }
    return {};
  }

  static constexpr std::string_view kBlock = "\u2581";  // SentencePiece's sign for a space

  GgufMetadata metadata_;
  std::string name_;
  std::uint64_t vocabulary_;
  std::span<const std::string> tokens_;
  std::vector<std::int64_t> types_;
  std::vector<std::pair<std::string_view, std::size_t>> ids_;  // sorted by token
};

}  // namespace

Result<io::Json> gguf_tokenizer(const io::GgufFile& file, std::uint64_t vocabulary) {
  return TokenizerMaker(file, vocabulary).run();
}

io::Json gguf_tokenizer_config(const io::GgufFile& file, std::uint64_t context) {
  const GgufMetadata metadata(file);
  Json config = {{"clean_up_tokenization_spaces", false},
                 {"model_max_length", context},
                 {"tokenizer_class", "PreTrainedTokenizerFast"}};
  const auto tokens = metadata.strings("tokenizer.ggml.tokens");
  for (const auto& [key, name] : {std::pair{"bos", "bos"}, {"eos", "eos"}, {"unknown", "unk"}, {"padding", "pad"}}) {
    const auto id = metadata.count(base::text("tokenizer.ggml.{}_token_id", key));
    if (!tokens.ok() || *tokens == nullptr || !id.ok() || !*id || **id >= (*tokens)->size()) continue;
    config[base::text("{}_token", name)] = io::json_name((*tokens)->strings[**id]);
  }
  if (const auto chat = metadata.text("tokenizer.chat_template"); chat.ok() && *chat) config["chat_template"] = **chat;
  return config;
}

}  // namespace kvant::model
