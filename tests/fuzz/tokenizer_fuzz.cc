// The reader of tokenizer.json and what it reads, on arbitrary bytes: a file up to the first zero byte, then a text.
// What is accepted gives ids that are below size(), the same ones again. tokenizer_refusals_test runs it over the
// corpus; with -DKVANT_FUZZ=ON and Clang it is a libFuzzer program: build/.../tests/tokenizer_fuzz
// tests/fuzz/corpus/tokenizer
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "model/tokenizer/tokenizer.h"

namespace {

void require(bool good, const std::string& sentence) {
  if (good) return;
  std::fprintf(stderr, "tokenizer_fuzz: %s\n", sentence.c_str());
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(input), size);
  const std::size_t end = std::min(all.find('\0'), all.size());
  const std::string_view text = all.substr(std::min(end + 1, all.size()));

  const auto tokenizer = kvant::model::Tokenizer::parse(all.substr(0, end), "input");
  if (!tokenizer.ok()) {
    require(!tokenizer.status().message().empty(), "refused without a sentence");
    return 0;
  }
  const auto ids = tokenizer->encode(text, true);
  const bool is_utf8 = kvant::base::valid_utf8_bytes(text) == text.size();
  require(is_utf8 || !ids.ok(), "text that is no UTF-8 was accepted");
  if (!ids.ok()) return 0;
  for (const std::int32_t id : *ids) {
    require(id >= 0 && id < tokenizer->size(), "an id is not below size()");
    (void)tokenizer->piece(id);
  }
  // From the cache now.
  require(tokenizer->encode(text, true).value() == *ids, "encoded again it differs");
  return 0;
}
