// What a folder holds beside its shards, config.json and the index, and which of it goes into the output: tokenizers,
// and the modules of sentence-transformers in folders below ("1_Pooling/config.json", "2_Dense/model.safetensors").
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "kvant/status.h"

namespace kvant::quantize {

// Of a file in a folder below.
inline constexpr std::uint64_t kMaxFileBelow = std::uint64_t{128} << 20;
// In one folder below: more than that is something else than a part of a model.
inline constexpr std::size_t kMaxFilesBelow = 1000;

struct CompanionFile {
  std::filesystem::path from;
  std::string name;  // from the folder's point of view
};

struct CompanionFiles {
  std::vector<CompanionFile> copied;  // by name
  std::vector<std::string> left_out;  // names
};

// Left out are: weights in formats that a loader might take instead of the quantized ones, *.partial, folders whose
// name begins with a dot, links to folders, and of folders below: files above kMaxFileBelow, models in other formats,
// and all of a folder with more than kMaxFilesBelow. A link to a file is copied as the file. Refuses a file with the
// name of kvant's own folder.
Result<CompanionFiles> find_companion_files(const io::Checkpoint& checkpoint);

}  // namespace kvant::quantize
