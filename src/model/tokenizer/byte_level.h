// GPT-2's alphabet: every byte is a printable character, so that a vocabulary is text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvant::model::tokenizer {

void append_byte_level(std::string& text, std::string_view bytes);

// The bytes; nothing where a character is not of the alphabet.
std::optional<std::string> bytes_of_byte_level(std::string_view token);

}  // namespace kvant::model::tokenizer
