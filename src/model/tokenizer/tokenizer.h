// The ids of a text, exactly as Hugging Face's `tokenizers` makes them from the same tokenizer.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/status.h"

namespace kvant::model {

// Byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM), BPE of SentencePiece (Llama 2, Mistral) and WordPiece (BERT).
// Immutable: one tokenizer, many threads. Copies are the same one.
class Tokenizer {
 public:
  // Refuses, with the name of the file and the place in it: what is damaged, and by name what is not supported. The
  // sections "truncation", "padding" and "decoder" are not looked at.
  static Result<Tokenizer> open(const std::filesystem::path& file);
  static Result<Tokenizer> parse(std::string_view json, std::string_view file_name);

  // Refuses text that is no UTF-8, with the place of the first invalid byte. Added tokens are found in the text whether
  // or not special ones are put around it.
  Result<std::vector<std::int32_t>> encode(std::string_view text, bool add_special_tokens) const;

  // The bytes that an id stands for in a text, for showing tokens; added tokens by their name. Empty for an id that no
  // token has.
  std::string piece(std::int32_t id) const;
  // A text for people to read: the pieces one after the other, words of WordPiece with spaces between, and what is no
  // UTF-8 byte by byte ("<0xC3>"). Ids that no token has are left out.
  std::string decode(std::span<const std::int32_t> ids) const;

  // Ids are below; there may be holes.
  std::int32_t size() const;
  std::optional<std::int32_t> id_of(std::string_view token) const;

 private:
  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

  std::shared_ptr<const Parts> parts_;
};

}  // namespace kvant::model
