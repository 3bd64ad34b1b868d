// The readers of quantized checkpoints on arbitrary bytes: up to the first zero byte config.json, then
// model.safetensors. What is accepted can be read, every weight of it, and any failure has a sentence.
// input_tensors_test runs it over the corpus; with -DKVANT_FUZZ=ON and Clang it is a libFuzzer program:
// build/.../tests/dialect_fuzz tests/fuzz/corpus/dialect
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"
#include "model/input_tensors.h"
#include "tests/fuzz/fuzz_folder.h"

namespace {

void require(bool good, const std::string& sentence) {
  if (good) return;
  std::fprintf(stderr, "dialect_fuzz: %s\n", sentence.c_str());
  std::abort();
}

const kvant::tests::FuzzFolder& dialect_folder() {
  static const kvant::tests::FuzzFolder made;
  return made;
}

void read_all(const kvant::io::Checkpoint& checkpoint, const kvant::format::WeightSource& source) {
  constexpr std::uint64_t kMost = 1 << 16;  // weights without elements may have endless rows
  if (source.rows == 0 || source.columns == 0 || source.rows > kMost / source.columns) return;
  kvant::format::SourceScratch scratch;
  std::vector<std::byte> values;
  const kvant::Status done =
      kvant::format::read_tile(checkpoint, source, {0, source.rows, 0, source.columns}, scratch, values);
  require(!done.ok() || values.size() == source.rows * source.columns * source.element_bytes(), "a tile is too short");
  require(done.ok() || !done.message().empty(), "a weight is refused without a sentence");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(input), size);
  const std::size_t end = std::min(all.find('\0'), all.size());
  dialect_folder().put(kvant::io::kConfigName, all.substr(0, end));
  dialect_folder().put(kvant::io::kSingleName, all.substr(std::min(end + 1, all.size())));
  const auto checkpoint = kvant::io::Checkpoint::open(dialect_folder().path());
  if (!checkpoint.ok()) {
    require(!checkpoint.status().message().empty(), "refused without a sentence");
    return 0;
  }
  const auto inputs = kvant::model::input_tensors(*checkpoint);
  if (!inputs.ok()) {
    require(!inputs.status().message().empty(), "refused without a sentence");
    return 0;
  }
  for (const kvant::model::InputTensor& tensor : inputs->tensors)
    if (tensor.source) read_all(*checkpoint, *tensor.source);
  return 0;
}
