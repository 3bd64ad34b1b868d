// How commands that run a model run it: threads, memory, and where the states of finished blocks are kept.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/arguments.h"
#include "model/text_job.h"
#include "model/token_text.h"

namespace kvant::cli {

struct RunOptions {
  int threads = 0;
  std::uint64_t max_memory = 0;  // 0: three quarters of what is available
  std::string scratch;           // empty: the default
  bool resume = false;

  // With the folder that is decided on.
  model::RunSettings in(const std::filesystem::path& folder) const { return {threads, max_memory, folder, resume}; }
};

// `default_scratch` is for the help.
std::vector<Argument> run_arguments(RunOptions& options, std::string_view default_scratch);

// The folder for what is saved: --scratch, or one in the user's cache that is named for the command, the models and the
// text, so that the same command finds it again. Empty where there is no cache.
std::filesystem::path scratch_folder(std::string_view command, std::span<const std::filesystem::path> models,
                                     const model::TokenText& text, const RunOptions& options);

// What a person is told who stops the program from now on.
void say_how_to_resume(const std::filesystem::path& scratch);

}  // namespace kvant::cli
