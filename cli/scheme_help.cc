#include "cli/scheme_help.h"

#include <fmt/core.h>

#include "format/scheme.h"

namespace kvant::cli {
namespace {

// The names of the schemes that fit, one after the other.
template <class Predicate>
std::string names_where(Predicate fits) {
  std::string names;
  for (const format::SchemeRow& row : format::schemes())
    if (fits(row)) names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  return names;
}

}  // namespace

std::vector<std::string> scheme_names() {
  std::vector<std::string> names;
  for (const format::SchemeRow& row : format::schemes()) names.emplace_back(row.name);
  return names;
}

std::string scheme_problem(const std::string& text) {
  const auto row = format::scheme_named(text);
  return row.ok() ? std::string() : std::string(row.status().message());
}

std::string scheme_help() {
  std::string help = "What to quantize to (llm-compressor's names are understood too). ";
  for (const format::SchemeRow& row : format::schemes())
    help += fmt::format("{}{}: {}{}", &row == &format::schemes().front() ? "" : "; ", row.name, row.help,
                        row.name == kDefaultScheme ? " (default)" : "");
  return help;
}

std::string schemes_with_statistics() {
  return names_where([](const format::SchemeRow& row) { return row.scheme.needs_statistics(); });
}

std::string group_size_help() {
  std::string defaults;
  for (const format::SchemeRow& row : format::schemes())
    if (row.takes_group_size) {
      const std::string size = fmt::format("{}", row.scheme.weights.group_size);
      if (defaults.find(size) == std::string::npos) defaults += (defaults.empty() ? "" : " or ") + size;
    }
  return fmt::format(
      "Weights that share a scale in {} (default {}); auto: the largest of 128, 64, 32 that fits all layers; -1: one "
      "scale for each channel",
      names_where([](const format::SchemeRow& row) { return row.takes_group_size; }), defaults);
}

std::string asymmetric_help() {
  return fmt::format("Use zero points: for weights of {}, activations of {}",
                     names_where([](const format::SchemeRow& row) { return row.takes_asymmetric_weights; }),
                     names_where([](const format::SchemeRow& row) { return row.takes_asymmetric_activations; }));
}

}  // namespace kvant::cli
