#include "model/text_job.h"

#include <algorithm>
#include <utility>

#include "base/refuse.h"
#include "io/available_memory.h"

namespace kvant::model {
namespace {

// The program with its libraries, what is left of a tokenizer, and each of the threads.
constexpr std::uint64_t kProgramMemory = std::uint64_t{40} << 20;
constexpr std::uint64_t kThreadMemory = std::uint64_t{1} << 20;
// What is known of a token: its id, its predictions.
constexpr std::uint64_t kTokenMemory = 16, kPredictionMemory = 64;
// A machine that does not say how much memory it has.
constexpr std::uint64_t kUnknownMemory = std::uint64_t{1} << 30;

std::uint64_t megabytes_up(std::uint64_t bytes) { return (bytes + (1 << 20) - 1) >> 20; }

std::uint64_t default_memory() {
  const std::uint64_t available = io::available_memory();
  return available == 0 ? kUnknownMemory : available / 4 * 3;
}

}  // namespace

Result<TextJob> TextJob::begin(const Stream& stream, std::vector<ModelRun>& runs, const TokenText& text,
                               const Options& options) {
  const std::uint64_t max_memory = options.run.max_memory == 0 ? default_memory() : options.run.max_memory;
  const std::uint64_t fixed = kProgramMemory + static_cast<std::uint64_t>(stream.threads()) * kThreadMemory +
                              text.ids.size() * (kTokenMemory + kPredictionMemory * runs.size());
  std::uint64_t block = 0, row = 0, state_row = 0, states = 0;
  for (const ModelRun& run : runs) {
    block = std::max(block, run.memory().block);
    row = std::max(row, run.memory().row);
    state_row = std::max(state_row, static_cast<std::uint64_t>(run.network().hidden) * sizeof(float));
    states += run.states_bytes();
  }
  RunMemory memory{.batch_rows = std::clamp(kMaxRows, text.longest(), text.rows()), .states_in_memory = true};
  const auto kept = [&] {
    const auto rows = static_cast<std::uint64_t>(memory.batch_rows);
    return fixed + (memory.states_in_memory ? states : rows * state_row);
  };
  const auto needed = [&] {
    const auto rows = static_cast<std::uint64_t>(memory.batch_rows);
    return kept() + std::max(block + rows * row + options.beside_block, options.at_the_end);
  };
  if (needed() > max_memory) memory.states_in_memory = false;
  while (needed() > max_memory && memory.batch_rows > text.longest())
    memory.batch_rows = std::max(memory.batch_rows / 2, text.longest());
  if (needed() > max_memory)
    return base::invalid_problem(
        "the largest block, the output projection and a sequence of {} tokens need {}M of memory, {} {}M: raise it, or "
        "lower --length",
        text.longest(), megabytes_up(needed()),
        options.run.max_memory == 0 ? "this machine allows" : "--max-memory allows", max_memory >> 20);
  if (!memory.states_in_memory && options.run.scratch.empty())
    return base::invalid_problem("the states of {} tokens need {}M of memory; name a folder for them with --scratch",
                                 text.rows(), megabytes_up(states));
  TextJob job;
  if (!options.run.scratch.empty()) {
    auto folder = io::ScratchFolder::open(options.run.scratch, options.run.resume);
    if (!folder.ok()) return folder.status();
    job.folder_ = std::make_unique<io::ScratchFolder>(std::move(folder).value());
  }
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (Status s =
            runs[i].start(memory, job.folder_.get(), base::text("states-{}", i), options.purpose, options.run.resume);
        !s.ok())
      return s;
  job.memory_at_the_end_ = max_memory - kept();
  return job;
}

Status TextJob::finish() { return folder_ == nullptr ? Status() : folder_->remove(); }

}  // namespace kvant::model
