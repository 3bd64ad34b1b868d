// "quantization_config", as config.json or the metadata of a single file hold it in the compressed-tensors layout that
// vLLM and transformers load: written for a scheme, and read back into one.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/patterns.h"
#include "format/scheme.h"
#include "io/checkpoint.h"
#include "io/json_fwd.h"
#include "kvant/status.h"

namespace kvant::format {

// The class of modules that `targets`, and sometimes `ignore`, name.
inline constexpr std::string_view kLinearClass = "Linear";

// Modules that share a scheme.
struct SchemeGroup {
  Scheme scheme = {};
  std::vector<std::string> targets = {std::string(kLinearClass)};  // exact names, patterns, or the class of modules
};

// What a quantization_config says: groups, the modules that stay as they are, and whether keys and values of attention
// are FP8 with a stored scale.
struct QuantizationConfig {
  std::vector<SchemeGroup> groups = {SchemeGroup{}};
  std::vector<std::string> ignore = {};
  bool fp8_kv_cache = false;

  // One group for all Linears.
  static QuantizationConfig of(const Scheme& scheme, std::vector<std::string> ignore = {}) {
    return {.groups = {{.scheme = scheme}}, .ignore = std::move(ignore)};
  }
};

// The value for config.json.
io::Json quantization_json(const QuantizationConfig& config);

// "w8a8", "fp8 and nvfp4a16"
std::string describe(const QuantizationConfig& config);

// Which scheme a module has: that of a group that names it exactly, else of one whose pattern matches, else of the one
// that targets all Linears. Null: none has it.
class SchemesOfModules {
 public:
  // Refuses patterns that cannot be read.
  static Result<SchemesOfModules> of(const QuantizationConfig& config);
  const Scheme* find(std::string_view module) const;

 private:
  struct Group {
    Scheme scheme;
    std::set<std::string, std::less<>> names;
    Patterns patterns;
    bool all_linears = false;
  };
  std::vector<Group> groups_;
};

// Refuses with the reason: no quantization_config, another method, a form that kvant does not write.
Result<QuantizationConfig> read_quantization_config(const io::Checkpoint& checkpoint);

// The same in two steps, for those who want all that is wrong: where it stands and what it says (nothing: the
// checkpoint has none), and what that means. Sentences go to `problems`; without a scheme that can be made out of it,
// nothing comes back.
struct QuantizationConfigText {
  std::string where;  // "out/config.json: quantization_config"
  std::shared_ptr<const io::Json> value;
};
Result<std::optional<QuantizationConfigText>> find_quantization_config(const io::Checkpoint& checkpoint);
std::optional<QuantizationConfig> parse_quantization_config(const QuantizationConfigText& text,
                                                            std::vector<std::string>& problems);

}  // namespace kvant::format
