// What tells a file that was changed from the same one, quickly.
#pragma once

#include <filesystem>

#include "io/checkpoint.h"
#include "io/file.h"
#include "io/json_fwd.h"
#include "kvant/status.h"

namespace kvant::io {

// {"name": …, "bytes": …, "modified_ns": …, "hash": …}. The hash is of all of a file up to 64 MiB, and of samples of a
// larger one, which would take as long to hash as to work on.
Result<Json> fingerprint(const InputFile& file);
Result<Json> fingerprint(const std::filesystem::path& path);
// Of every shard, config.json and the index, where they are: an array.
Result<Json> fingerprints(const Checkpoint& checkpoint);

}  // namespace kvant::io
