#include "cli/scheme_help.h"

#include <fmt/core.h>

#include "format/scheme.h"

namespace kvant::cli {
namespace {

// The names of the schemes that fit, one after the other.
template <class Predicate>
std::string names_where(Predicate fits) {
  std::string names;
  for (const format::SchemeSpec& spec : format::schemes())
    if (fits(spec)) names += fmt::format("{}{}", names.empty() ? "" : ", ", spec.name);
  return names;
}

}  // namespace

std::vector<std::string> scheme_names() {
  std::vector<std::string> names;
  for (const format::SchemeSpec& spec : format::schemes()) names.emplace_back(spec.name);
  return names;
}

std::string scheme_help() {
  std::string help;
  for (const format::SchemeSpec& spec : format::schemes())
    help += fmt::format("{}{}: {}{}", help.empty() ? "" : "; ", spec.name, spec.help,
                        spec.kind == format::Scheme().kind ? " (default)" : "");
  return help;
}

std::string group_size_help() {
  std::string defaults;
  for (const format::SchemeSpec& spec : format::schemes())
    if (spec.has_groups()) {
      const std::string size = fmt::format("{}", spec.weights.default_group_size);
      if (defaults.find(size) == std::string::npos) defaults += (defaults.empty() ? "" : " or ") + size;
    }
  return fmt::format("Weights that share a scale in {} (default {})",
                     names_where([](const format::SchemeSpec& spec) { return spec.has_groups(); }), defaults);
}

std::string asymmetric_help() {
  return fmt::format(
      "Use zero points: for weights of {}, activations of {}",
      names_where([](const format::SchemeSpec& spec) { return spec.weights.takes_asymmetric; }),
      names_where([](const format::SchemeSpec& s) { return s.activations && s.activations->takes_asymmetric; }));
}

}  // namespace kvant::cli
