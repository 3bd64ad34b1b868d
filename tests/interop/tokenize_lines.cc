// tokenize_lines TOKENIZER.json [--special]: reads lines that are JSON texts, prints a line of ids for each, or
// "refused: " and the reason. At the end it says on stderr how long the file took to read and the texts to encode.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>

#include "base/text.h"
#include "io/json.h"
#include "model/tokenizer/tokenizer.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

int fail(std::string_view message) {
  std::cerr << "tokenize_lines: " << message << '\n';
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const bool special = argc == 3 && std::string_view(argv[2]) == "--special";
  if (argc != 2 && !special) return fail("usage: tokenize_lines TOKENIZER.json [--special]");
  const auto begin = Clock::now();
  const auto tokenizer = kvant::model::Tokenizer::open(argv[1]);
  if (!tokenizer.ok()) return fail(tokenizer.status().message());
  const double reading = seconds_since(begin);

  double encoding = 0;
  std::size_t bytes = 0;
  for (std::string line; std::getline(std::cin, line);) {
    const auto json = kvant::io::parse_json(line, "stdin");
    if (!json.ok() || !json->is_string()) return fail("a line is no JSON text");
    const auto& text = json->get_ref<const std::string&>();
    const auto start = Clock::now();
    const auto ids = tokenizer->encode(text, special);
    encoding += seconds_since(start);
    bytes += text.size();
    std::cout << (ids.ok() ? kvant::base::joined(*ids, " ") : kvant::base::text("refused: {}", ids.status().message()))
              << '\n';
  }
  std::cerr << kvant::base::text("read in {:.3f} s, {} bytes encoded in {:.3f} s: {:.2f} MB/s\n", reading, bytes,
                                 encoding, 1e-6 * static_cast<double>(bytes) / encoding);
  return 0;
}
