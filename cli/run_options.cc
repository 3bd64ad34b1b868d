#include "cli/run_options.h"

#include <fmt/core.h>

#include <system_error>

#include "cli/options.h"
#include "cli/progress_bar.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/scratch_folder.h"
#include "quantize/checkpoint_plan.h"

namespace kvant::cli {

std::vector<Argument> run_arguments(RunOptions& options, std::string_view default_scratch) {
  return {
      threads_option(options.threads),
      {.name = "--max-memory",
       .placeholder = "SIZE",
       .help = "Memory limit, for example 512M or 2G (default: three quarters of the memory that is available)",
       .to = Size{&options.max_memory, quantize::kMinMaxMemory}},
      {.name = "--scratch",
       .placeholder = "FOLDER",
       .help = fmt::format("Where what is known after each block is kept until the end (default: {})", default_scratch),
       .to = &options.scratch,
       .is_path = true},
      {.name = "--resume",
       .help = "Go on after the last block that an earlier run of the same command finished",
       .to = &options.resume}};
}

std::filesystem::path scratch_folder(std::string_view command, std::span<const std::filesystem::path> models,
                                     const model::TokenText& text, const RunOptions& options) {
  if (!options.scratch.empty()) return options.scratch;
  io::Hash hash;
  std::error_code error;
  for (const std::filesystem::path& model : models) {
    hash.add(std::filesystem::absolute(model, error).lexically_normal().native());
    hash.add(std::string_view("", 1));
  }
  hash.add(std::as_bytes(std::span(text.ids)));
  hash.add(std::as_bytes(std::span(text.lengths)));
  return io::default_scratch_folder(fmt::format("{}-{}", command, hash.text()));
}

void say_how_to_resume(const std::filesystem::path& scratch) {
  ProgressBar::set_last_words(
      scratch.empty() ? std::string()
                      : fmt::format("stopped; the same command with --resume goes on after the last block that is "
                                    "finished (in {})",
                                    io::printable_path(scratch)));
}

}  // namespace kvant::cli
