#include "model/smooth_groups.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "base/refuse.h"
#include "format/module_name.h"
#include "io/file.h"
#include "model/blocks.h"
#include "model/families.h"

namespace kvant::model {
namespace {

using base::invalid_problem;
using base::unsupported;
using io::printable;

// Do the readers of an edge live there: "self_attn", "mlp"?
bool is_home_of(const Edge& edge, std::string_view component) {
  for (const auto& set : edge.readers)
    for (const std::string_view reader : set)
      if (format::first_component(reader) == component) return true;
  return false;
}

// The names that a set of readers has in a block. Where it has experts, as many as the block shows of any kind.
std::vector<std::string> expand(Names set, const std::vector<std::string_view>& block) {
  std::set<std::string_view> experts;
  for (const std::string_view pattern : set)
    if (pattern.find('*') != std::string_view::npos)
      for (const std::string_view rest : block)
        if (const auto number = fit(rest, pattern)) experts.insert(*number);
  std::vector<std::string> names;
  for (const std::string_view pattern : set) {
    const bool of_experts = pattern.find('*') != std::string_view::npos;
    // Without any it stands for the first, which is then missing.
    for (std::size_t i = 0; i < (of_experts ? std::max<std::size_t>(experts.size(), 1) : 1); ++i)
      names.push_back(numbered(pattern, i));
  }
  return names;
}

// The readers of an edge in a block, or why its norm is left alone.
struct Reading {
  std::vector<std::string> readers;  // with the prefix
  std::string reason;                // empty: they are all
};

Reading read_edge(const Family& family, const Edge& edge, std::string_view prefix,
                  const std::vector<std::string_view>& block) {
  const auto full = [&](std::string_view rest) { return std::string(prefix).append(rest); };
  const auto alone = [](std::string reason) { return Reading{{}, std::move(reason)}; };
  const auto is_there = [&](std::string_view rest) { return std::binary_search(block.begin(), block.end(), rest); };

  const BlockNames& names = names_of_block(family);
  for (const Edge& other : names.edges)
    if (!is_there(other.norm))
      return alone(fmt::format("its block has no {}, so this norm may feed those linears too", other.norm));

  std::vector<std::string> present;
  for (const std::string_view rest : block) {
    if (reads(edge, rest)) {
      present.emplace_back(rest);
      continue;
    }
    const auto concerns = [&](const Edge& e) { return is_home_of(e, format::first_component(rest)); };
    const bool is_known =
        fits_one_of(rest, names.others) || std::any_of(names.edges.begin(), names.edges.end(),
                                                       [&](const Edge& e) { return rest == e.norm || reads(e, rest); });
    // A stranger in the attention concerns the norm before it; one that is at home nowhere, all.
    if (!is_known && (concerns(edge) || std::none_of(names.edges.begin(), names.edges.end(), concerns)))
      return alone(
          fmt::format("'{}' may read it too: a {} block has no such module", printable(full(rest)), family.name));
  }
  if (present.empty()) return alone("no linear was found that reads it");

  // The set that most of them are of tells what is missing.
  std::vector<std::string> best;
  std::size_t most = 0;
  for (const auto& set : edge.readers) {
    std::vector<std::string> wanted = expand(set, block);
    std::sort(wanted.begin(), wanted.end());
    if (wanted == present) {
      Reading reading;
      for (const std::string& name : wanted) reading.readers.push_back(full(name));
      return reading;
    }
    const auto found = static_cast<std::size_t>(std::count_if(wanted.begin(), wanted.end(), is_there));
    if (found > most) {
      most = found;
      best = std::move(wanted);
    }
  }
  for (const std::string& name : best)
    if (!is_there(name)) return alone(fmt::format("its reader '{}' is missing", printable(full(name))));
  for (const std::string& name : present)
    if (!std::binary_search(best.begin(), best.end(), name))
      return alone(fmt::format("'{}' reads it as well as '{}', which no known model has", printable(full(name)),
                               printable(full(best.front()))));
  return alone("its readers match no known model");
}

// The groups of a family and what is left alone.
SmoothGroups groups_of(const Family& family, const Modules& modules) {
  SmoothGroups found;
  found.family = family.name;
  found.default_alpha = family.alpha;
  for (const std::string& module : modules) {
    for (const Edge& edge : names_of_block(family).edges) {
      const std::string_view prefix = block_prefix(module, edge);
      if (prefix.empty()) continue;
      Reading reading = read_edge(family, edge, prefix, below(modules, prefix));
      if (reading.reason.empty())
        found.groups.push_back({module, std::move(reading.readers)});
      else
        found.left_alone[module] = std::move(reading.reason);
    }
  }
  return found;
}

// Is what must stand beside the blocks there: "model.decoder.final_layer_norm" for "model.decoder.layers.0."?
bool has_beside(const Family& family, const SmoothGroups& found, const Modules& modules) {
  if (family.beside.empty()) return true;
  return std::all_of(found.groups.begin(), found.groups.end(), [&](const SmoothGroup& group) {
    std::string_view stem = group.norm;
    for (int component = 0; component < 3; ++component) {  // the norm, the number, "layers"
      const std::size_t dot = stem.rfind('.');
      stem = stem.substr(0, dot == std::string_view::npos ? 0 : dot);
    }
    return modules.contains(stem.empty() ? std::string(family.beside) : fmt::format("{}.{}", stem, family.beside));
  });
}

SmoothGroups refusal_of(std::string reason) {
  SmoothGroups refused;
  refused.refusal = std::move(reason);
  return refused;
}

// The first of what is left alone, for a sentence about all.
std::string example_of(const SmoothGroups& found) {
  if (found.left_alone.empty()) return "none of its norms is there";
  const auto& [norm, reason] = *found.left_alone.begin();
  return fmt::format("'{}': {}", printable(norm), reason);
}

SmoothGroups find_by_names(const ModelFacts& facts, const Modules& modules) {
  std::vector<std::pair<const Family*, SmoothGroups>> fitting;
  for (const Family& family : families()) {
    if (family.doubt.empty()) continue;
    SmoothGroups found = groups_of(family, modules);
    if (!found.groups.empty() && found.left_alone.empty() && has_beside(family, found, modules))
      fitting.emplace_back(&family, std::move(found));
  }
  if (fitting.size() != 1)
    return refusal_of(
        fmt::format("config.json has no model_type, and the tensor names fit {}; choose one of {} with "
                    "--smooth-groups, or give the groups as a JSON file",
                    fitting.empty() ? "no known family" : "more than one family", names_of_families()));
  auto& [family, found] = fitting.front();
  if (std::string against = against_folding(facts, family); !against.empty()) return refusal_of(std::move(against));
  found.warning = fmt::format("config.json has no model_type: treated as {}-like because of its tensor names; {}",
                              family->name, family->doubt);
  return std::move(found);
}

}  // namespace

SmoothGroups find_smooth_groups(const ModelFacts& facts, const Modules& modules) {
  if (facts.model_type.empty()) return find_by_names(facts, modules);
  const Family* family = family_of(facts.model_type);
  if (std::string against = against_folding(facts, family); !against.empty()) return refusal_of(std::move(against));
  if (family == nullptr)
    return refusal_of(
        fmt::format("the order of norms and linears in model_type '{}' is not known; if its blocks are "
                    "like Llama's, use --smooth-groups llama (known: {}), or give the groups as a JSON "
                    "file",
                    printable(facts.model_type), names_of_families()));
  SmoothGroups found = groups_of(*family, modules);
  if (found.groups.empty())
    found.refusal = fmt::format("no norm can be folded as in a {} model: {}", family->name, example_of(found));
  return found;
}

Result<SmoothGroups> smooth_groups_of_family(std::string_view name, const ModelFacts& facts, const Modules& modules) {
  const Family* const family = family_named(name);
  if (family == nullptr)
    return invalid_problem("smoothing groups: unknown family '{}'; known: {}", printable(name), names_of_families());
  if (const std::string against = against_folding(facts, family); !against.empty())
    return unsupported("smoothing groups of the family {}: {}", name, against);
  SmoothGroups found = groups_of(*family, modules);
  if (found.groups.empty())
    return unsupported("smoothing groups of the family {}: no norm can be folded: {}", name, example_of(found));
  return found;
}

}  // namespace kvant::model
