// Groups that the user gives as JSON.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/refuse.h"
#include "io/file.h"
#include "io/json.h"
#include "model/blocks.h"
#include "model/families.h"
#include "model/smooth_groups.h"

namespace kvant::model {
namespace {

using base::invalid_problem;
using base::unsupported;
using io::printable;

constexpr std::string_view kIndexPlace = "{i}";

// "model.layers.{i}.x" with i in place.
std::string with_index(std::string text, std::string_view index) {
  for (std::size_t at = text.find(kIndexPlace); at != std::string::npos; at = text.find(kIndexPlace, at + index.size()))
    text.replace(at, kIndexPlace.size(), index);
  return text;
}

// The numbers that make a name with "{i}" the name of a module; one empty text for a name without.
std::vector<std::string> indices_of(const std::string& text, const Modules& modules) {
  const std::size_t at = text.find(kIndexPlace);
  if (at == std::string::npos) return {""};
  std::vector<std::string> indices;
  const std::string prefix = text.substr(0, at);
  for (auto it = modules.lower_bound(prefix); it != modules.end() && it->starts_with(prefix); ++it) {
    const std::size_t end = it->find_first_not_of("0123456789", at);
    const std::string index = it->substr(at, end == std::string::npos ? std::string::npos : end - at);
    if (!index.empty() && with_index(text, index) == *it) indices.push_back(index);
  }
  return indices;
}

class GroupsOfFile {
 public:
  GroupsOfFile(std::string_view file_name, const Family* family, const Modules& modules)
      : file_(printable(file_name)), family_(family), modules_(modules) {
    found_.family = "given";
    if (family != nullptr) found_.default_alpha = family->alpha;
  }

  Status read(const io::Json& document) {
    if (!document.is_object()) return bad("must be an object with an array \"groups\"");
    const io::Json* groups = nullptr;
    for (const auto& [key, value] : document.items()) {
      if (key == "groups" && value.is_array()) {
        groups = &value;
      } else if (key == "alpha") {
        if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= 1))
          return bad(fmt::format("\"alpha\" is {}, must be a number from 0 to 1", shown(value)));
        found_.default_alpha = value.get<double>();
      } else if (key != "groups") {
        return bad(fmt::format("unknown key '{}'; known keys: groups, alpha", printable(key)));
      }
    }
    if (groups == nullptr) return bad("must be an object with an array \"groups\"");
    if (groups->empty()) return bad("\"groups\" is empty; name a norm and its linears, or leave out the file");
    for (const io::Json& group : *groups)
      if (Status s = read_group(group); !s.ok()) return s;
    for (const auto& [linear, norm] : norm_of_)
      if (norms_.contains(linear))
        return bad(
            fmt::format("'{}' is a norm and also a linear of the norm '{}'", printable(linear), printable(norm)));
    return {};
  }
  SmoothGroups take() { return std::move(found_); }

 private:
  Status bad(const std::string& what) const { return invalid_problem("{}: {}", file_, what); }
  static std::string shown(const io::Json& value) { return printable(value.dump(-1, ' ', true)); }

  Status read_group(const io::Json& group) {
    const auto shape = [&] {
      return bad(
          fmt::format("a group is {}, must be an object with a string \"norm\" and a list \"linears\" of at least "
                      "one string",
                      shown(group)));
    };
    if (!group.is_object()) return shape();
    const io::Json *norm = nullptr, *linears = nullptr;
    for (const auto& [key, value] : group.items()) {
      if (key == "norm")
        norm = &value;
      else if (key == "linears")
        linears = &value;
      else
        return bad(fmt::format("unknown key '{}' in a group; known keys: norm, linears", printable(key)));
    }
    if (norm == nullptr || !norm->is_string() || linears == nullptr || !linears->is_array() || linears->empty() ||
        !std::all_of(linears->begin(), linears->end(), [](const io::Json& linear) { return linear.is_string(); }))
      return shape();
    const auto& norm_name = norm->get_ref<const std::string&>();
    const std::vector<std::string> indices = indices_of(norm_name, modules_);
    if (indices.empty()) return bad(fmt::format("no module matches the norm '{}'", printable(norm_name)));
    for (const std::string& index : indices) {
      SmoothGroup one{index.empty() ? norm_name : with_index(norm_name, index), {}};
      for (const io::Json& linear : *linears) {
        const auto& name = linear.get_ref<const std::string&>();
        one.readers.push_back(index.empty() ? name : with_index(name, index));
      }
      if (Status s = add(std::move(one)); !s.ok()) return s;
    }
    return {};
  }

  Status add(SmoothGroup group) {
    if (!modules_.contains(group.norm)) return bad(fmt::format("there is no module '{}'", printable(group.norm)));
    if (!norms_.insert(group.norm).second)
      return bad(fmt::format("the norm '{}' has two groups; put all its linears into one", printable(group.norm)));
    for (const std::string& linear : group.readers) {
      if (!modules_.contains(linear))
        return bad(fmt::format("there is no module '{}', given as a linear of the norm '{}'", printable(linear),
                               printable(group.norm)));
      if (linear == group.norm)
        return bad(fmt::format("'{}' is a norm and also one of its own linears", printable(linear)));
      const auto [place, fresh] = norm_of_.try_emplace(linear, group.norm);
      if (fresh) continue;
      if (place->second == group.norm)
        return bad(fmt::format("the norm '{}' has the linear '{}' twice", printable(group.norm), printable(linear)));
      return bad(fmt::format("the linear '{}' is in two groups, of the norms '{}' and '{}'", printable(linear),
                             printable(place->second), printable(group.norm)));
    }
    if (Status s = check_against_family(group); !s.ok()) return s;
    found_.groups.push_back(std::move(group));
    return {};
  }

  // What the family of the model_type knows about the norm.
  Status check_against_family(const SmoothGroup& group) const {
    if (family_ == nullptr) return {};
    const BlockNames& names = names_of_block(*family_);
    for (const Edge& edge : names.edges) {
      const std::string_view prefix = block_prefix(group.norm, edge);
      if (prefix.empty()) continue;
      for (const std::string_view rest : below(modules_, prefix)) {
        const std::string module = std::string(prefix).append(rest);
        const bool given = std::find(group.readers.begin(), group.readers.end(), module) != group.readers.end();
        if (reads(edge, rest)) {
          if (given) continue;
          return bad(fmt::format("the norm '{}' also feeds '{}'; add it to the group", printable(group.norm),
                                 printable(module)));
        }
        const bool is_known =
            fits_one_of(rest, names.others) ||
            std::any_of(names.edges.begin(), names.edges.end(), [&](const Edge& e) { return reads(e, rest); });
        if (given && is_known)
          return bad(fmt::format("'{}' does not read the norm '{}' in a {} model; take it out of the group",
                                 printable(module), printable(group.norm), family_->name));
      }
    }
    return {};
  }

  std::string file_;
  const Family* family_;
  const Modules& modules_;
  SmoothGroups found_;
  std::set<std::string> norms_;
  std::map<std::string, std::string> norm_of_;  // linear → norm
};

}  // namespace

Result<SmoothGroups> parse_smooth_groups(std::string_view json, std::string_view file_name, const ModelFacts& facts,
                                         const Modules& modules) {
  const Family* family = family_of(facts.model_type);
  if (const std::string against = against_folding(facts, family); !against.empty())
    return unsupported("{}: {}", printable(file_name), against);
  const auto document = io::parse_json(json, file_name);
  if (!document.ok()) return document.status();
  GroupsOfFile groups(file_name, family, modules);
  if (Status s = groups.read(*document); !s.ok()) return s;
  return groups.take();
}

}  // namespace kvant::model
