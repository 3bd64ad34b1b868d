// The reader of safetensors headers on arbitrary bytes: whatever it accepts keeps the invariants, can be laid out again
// and reads back the same. safetensors_test runs it over the corpus; with -DKVANT_FUZZ=ON and Clang it is a libFuzzer
// program: build/.../tests/safetensors_fuzz -max_len=4096 tests/fuzz/corpus/safetensors
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "io/safetensors.h"
#include "tests/fuzz/safetensors_invariants.h"

namespace {

void require(bool good, const std::string& sentence) {
  if (good) return;
  std::fprintf(stderr, "safetensors_fuzz: %s\n", sentence.c_str());
  std::abort();
}

bool same_tensors(const kvant::io::SafetensorsHeader& a, const kvant::io::SafetensorsHeader& b) {
  if (a.tensors.size() != b.tensors.size() || a.metadata != b.metadata) return false;
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    const auto &x = a.tensors[i], &y = b.tensors[i];
    if (x.name != y.name || x.dtype != y.dtype || x.shape != y.shape || x.begin != y.begin || x.end != y.end)
      return false;
  }
  return true;
}

// What was read can be written, and is read again as the same.
void check_round_trip(const kvant::io::SafetensorsHeader& header, std::uint64_t data_bytes) {
  if (data_bytes >> 62 != 0) return;  // with a header it may be too large for a file
  const auto layout = kvant::io::lay_out_safetensors(header.tensors, header.metadata);
  require(layout.ok(), std::string(layout.status().message()));
  require(layout->header.size() % 8 == 0, "the data is not aligned");
  require(layout->file_bytes == layout->header.size() + data_bytes, "file_bytes is not header and data");
  const auto again =
      kvant::io::parse_safetensors_header(std::string_view(layout->header).substr(8), data_bytes, "again");
  require(again.ok(), std::string(again.status().message()));
  require(same_tensors(header, *again), "laid out and read again it differs");
}

std::uint64_t little_endian(const std::uint8_t* bytes) {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | bytes[i];
  return value;
}

}  // namespace

// The input is a file: length, header, data. A length beyond the input is the size of the data instead, and all the
// rest the header, so that sizes without a file behind them are reached too.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  if (size < 8) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(input) + 8, size - 8);
  const std::uint64_t length = little_endian(input);
  const bool whole_file = length <= rest.size();
  const std::string_view json = whole_file ? rest.substr(0, length) : rest;
  const std::uint64_t data_bytes = whole_file ? rest.size() - length : length;

  const auto header = kvant::io::parse_safetensors_header(json, data_bytes, "input");
  if (!header.ok()) {
    require(header.status().message().substr(0, 7) == "input: ", std::string(header.status().message()));
    return 0;
  }
  const std::string broken = kvant::tests::broken_invariant(*header, data_bytes);
  require(broken.empty(), broken);
  check_round_trip(*header, data_bytes);
  return 0;
}
