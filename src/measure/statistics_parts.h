// The files of a calibration on its way: one for each block and one for the head, in a folder of their own, and the one
// file that they become. A run that was stopped finds the files of the blocks that it has finished.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/progress.h"
#include "io/scratch_folder.h"
#include "kvant/status.h"
#include "measure/cache_statistics.h"
#include "measure/input_statistics.h"

namespace kvant::measure {

// An input and who reads it; the first of them has what all share.
struct SeenInput {
  std::vector<std::string> modules;
  const InputStatistics* statistics;
};

// The keys and values of an attention layer.
struct SeenCache {
  std::string attention;
  const CacheStatistics* statistics;
};

class StatisticsParts {
 public:
  // `run`: metadata of the final file, the same for all parts of a run. The folder must outlive the parts.
  StatisticsParts(const io::ScratchFolder& folder, std::map<std::string, std::string> run)
      : folder_(folder), run_(std::move(run)) {}

  Status write_block(std::size_t block, std::span<const SeenInput> inputs,
                     std::span<const SeenCache> caches = {}) const;
  Status write_head(std::span<const SeenInput> inputs) const;
  // Where the statistics of a block are when it was written.
  std::filesystem::path block_file(std::size_t block) const;
  // Whether the first so many blocks have their parts.
  bool has_blocks(std::size_t count) const;

  // Writes `output` in bounded memory from the parts of so many blocks, and of the head. Refuses a part that is missing
  // or of another run. Returns the names of the tensors.
  Result<std::set<std::string>> join(std::size_t blocks, bool with_head, const std::filesystem::path& output,
                                     bool overwrite, base::Progress& progress) const;

 private:
  Status write(const std::string& name, std::span<const SeenInput> inputs, std::span<const SeenCache> caches) const;

  const io::ScratchFolder& folder_;
  std::map<std::string, std::string> run_;
};

}  // namespace kvant::measure
