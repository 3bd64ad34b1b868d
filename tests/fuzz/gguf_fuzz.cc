// The reader of GGUF headers on arbitrary bytes: whatever it accepts keeps the invariants. gguf_test runs it over the
// corpus; with -DKVANT_FUZZ=ON and Clang it is a libFuzzer program: build/.../tests/gguf_fuzz -max_len=4096
// tests/fuzz/corpus/gguf
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "io/gguf.h"
#include "tests/fuzz/gguf_invariants.h"

namespace {

void require(bool good, const std::string& sentence) {
  if (good) return;
  std::fprintf(stderr, "gguf_fuzz: %s\n", sentence.c_str());
  std::abort();
}

// The input as the beginning of a file of that size.
void check(std::string_view input, std::uint64_t file_bytes) {
  std::uint64_t wanted = 0;
  const auto header = kvant::io::parse_gguf_header(input, file_bytes, "input", wanted);
  require(wanted == 0 || (!header.ok() && wanted > input.size() && wanted <= file_bytes), "wants what it has");
  if (!header.ok()) {
    require(header.status().message().substr(0, 7) == "input: ", std::string(header.status().message()));
    return;
  }
  const std::string broken = kvant::tests::broken_invariant(*header, file_bytes);
  require(broken.empty(), broken);
}

}  // namespace

// As a whole file, and as the beginning of one of any size, so that sizes without a file behind them are reached too.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(input), size);
  check(bytes, size);
  check(bytes, ~std::uint64_t{0});
  return 0;
}
