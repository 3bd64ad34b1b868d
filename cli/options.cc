#include "cli/options.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "quantize/checkpoint_plan.h"

namespace kvant::cli {

Argument threads_option(int& threads) {
  return {.name = "--threads",
          .placeholder = "N",
          .help = "Number of threads; 0: all cores (default)",
          .to = Count{&threads, 0}};
}

Argument max_memory_option(std::uint64_t& bytes) {
  return {.name = "--max-memory",
          .placeholder = "SIZE",
          .help = "Memory limit, for example 512M or 2G (default 1G)",
          .to = Size{&bytes, quantize::kMinMaxMemory}};
}

Argument report_option(std::string& file, std::string help) {
  return {.name = "--report",
          .placeholder = "FILE",
          .help = std::move(help),
          .to = &file,
          .is_path = true,
          .check = [](const std::string& text) {
            return text.empty() ? std::string("the report needs a file name") : std::string();
          }};
}

Argument json_option(bool& json) {
  return {.name = "--json", .help = "Print one JSON document on standard output", .to = &json};
}

Argument checkpoint_positional(std::string name, std::string& path) {
  return {.name = std::move(name),
          .help = "The checkpoint: a folder, or one .safetensors file",
          .to = &path,
          .required = true,
          .is_path = true};
}

std::string shell_word(std::string_view text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.' || c == '/' || c == '=' || c == ':' || c == ',' || c == '+' || c == '@';
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return std::string(text);
  if (text.find('\'') == std::string_view::npos) return fmt::format("'{}'", text);
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace kvant::cli
