// tokenizer.json of Hugging Face's tokenizers from the tokenizer.ggml.* of a GGUF's metadata.
//
// Byte-level BPE ("gpt2"): tokens and merges are there; tokenizer.ggml.pre says how text is cut before. SentencePiece
// BPE ("llama"): the merges are made from the scores as transformers makes them, a token with the higher score first.
#pragma once

#include <cstdint>

#include "io/gguf.h"
#include "io/json_fwd.h"
#include "kvant/status.h"

namespace kvant::model {

// `vocabulary`: the rows of the embeddings. Refuses, because the text would be cut otherwise: other kinds of
// tokenizers, another tokenizer.ggml.pre, tokens that are there twice or not UTF-8, merges of what is no token, scores
// that two tokens share.
Result<io::Json> gguf_tokenizer(const io::GgufFile& file, std::uint64_t vocabulary);

// tokenizer_config.json: the special tokens, the longest text, the chat template.
io::Json gguf_tokenizer_config(const io::GgufFile& file, std::uint64_t context);

}  // namespace kvant::model
