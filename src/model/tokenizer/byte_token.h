// "<0x0A>": a byte, as tokens of SentencePiece write it.
#pragma once

#include <cstddef>
#include <string>

#include "base/text.h"

namespace kvant::model::tokenizer {

inline std::string byte_token(std::size_t byte) { return base::text("<0x{:02X}>", byte); }

}  // namespace kvant::model::tokenizer
