// Classes of characters as Hugging Face's `tokenizers` sees them. It takes them from several libraries, whose tables
// are of several versions of Unicode: a character that is younger than its table belongs to no class there.
// (Those that are younger than ICU's tables belong to none here.)
#pragma once

#include <string>

namespace kvant::model::tokenizer {

bool is_space(char32_t c);            // White_Space
bool is_number(char32_t c);           // N
bool is_word(char32_t c);             // what \w means in Rust: letters, marks, decimal digits, connectors, joiners
bool is_punctuation(char32_t c);      // P, and all of ASCII's that is neither letter nor digit
bool is_mark(char32_t c);             // M
bool is_nonspacing_mark(char32_t c);  // Mn
bool is_other(char32_t c);            // Cc, Cf, Co
bool is_chinese(char32_t c);          // the blocks of CJK ideographs that BERT puts spaces around

// In lower case, whatever is around it; İ becomes two characters.
void append_lower(std::string& text, char32_t c);

}  // namespace kvant::model::tokenizer
