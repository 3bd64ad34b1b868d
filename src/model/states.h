// The states of all tokens on their way through a model's blocks, [rows, hidden] in f32: in memory, or in a file where
// they do not fit. With files, every finished block leaves its states behind, so that a run that was killed goes on
// after the last of them.
//
// Two files take turns: "STEM-a.scratch" is read while "STEM-b.scratch" is written. A file ends in a mark with the
// number of blocks and hashes of itself and of the states, which is written last and taken away first. So a file that
// is half written, or that a power cut has damaged, is known as such; nothing needs to be flushed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/descriptor.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/scratch_folder.h"
#include "kvant/status.h"

namespace kvant::model {

class States {
 public:
  struct Options {
    bool in_memory = true;
    // Null: no files, which in_memory must allow. Must outlive the states.
    const io::ScratchFolder* folder = nullptr;
    std::string stem = {};
    std::uint64_t key = 0;  // of what is run: files with another are not taken
    bool resume = false;    // from the files, if they are there and sound
  };
  static Result<States> make(std::int64_t rows, std::int64_t hidden, Options options);

  // Nothing: there are no states yet; the first pass over the rows writes the embeddings, which are those of 0 blocks.
  std::optional<std::uint64_t> blocks_done() const { return done_; }

  // Back to where there are no states yet.
  void forget() { done_.reset(); }

  // Rows [first, first + count), to be read, or to be changed and put back. Valid until the next call.
  Result<float*> rows(std::int64_t first, std::int64_t count);
  // The rows that rows() gave last are now those of the next block. In order: each pass puts back all rows.
  Status put_back();
  // All rows were put back: one more block is done.
  Status finish_pass();

 private:
  States(std::int64_t rows, std::int64_t hidden, Options options)
      : rows_(rows), hidden_(hidden), options_(std::move(options)) {}

  std::uint64_t bytes() const { return static_cast<std::uint64_t>(rows_ * hidden_) * sizeof(float); }
  std::filesystem::path path(int file) const;
  // The number of blocks by the mark of a file; nothing where it has no sound one.
  std::optional<std::uint64_t> read_mark(const io::InputFile& file, std::uint64_t& hash) const;
  // Takes the file's states if they are what the mark says.
  Result<bool> take(int file);
  Status begin_pass();

  std::int64_t rows_;
  std::int64_t hidden_;
  Options options_;
  std::optional<std::uint64_t> done_;
  std::vector<float> memory_;  // all rows, or those that rows() gave
  std::int64_t first_ = 0, count_ = 0;
  std::int64_t put_ = 0;  // rows of this pass

  int current_ = 1;  // file that holds the states
  std::optional<io::InputFile> input_;
  io::Descriptor output_;
  io::Hash hash_;
};

}  // namespace kvant::model
