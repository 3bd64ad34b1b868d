// Bounds that no honest file or text comes near.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvant::model::tokenizer {

// tokenizer.json of Llama 3 has 17 MB, with merges as pairs.
inline constexpr std::uint64_t kMaxFileBytes = std::uint64_t{256} << 20;
// A text, and what normalizers and pre-tokenizers make of it: files may hold steps that double it again and again. A
// word of one byte takes some fifty bytes on its way.
inline constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;
// Ids are places of a table, and rows of a model's embedding; the largest vocabularies have 300,000.
inline constexpr std::int32_t kMaxTokenId = (1 << 21) - 1;
// At every place of a text, added tokens are compared so far.
inline constexpr std::size_t kMaxAddedTokenBytes = 1024;
// BERT has 100. Pieces of a word are looked up by all their beginnings.
inline constexpr std::size_t kMaxCharactersOfWord = 1000;

}  // namespace kvant::model::tokenizer
