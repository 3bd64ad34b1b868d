// "quantization_config", as config.json or the metadata of a single file hold it in the compressed-tensors layout that
// vLLM and transformers load: written for a scheme, and read back into one.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/scheme.h"
#include "io/checkpoint.h"
#include "io/json_fwd.h"
#include "kvant/status.h"

namespace kvant::format {

// The class of modules that `targets`, and sometimes `ignore`, name.
inline constexpr std::string_view kLinearClass = "Linear";

// The value for a scheme and the modules that stay as they are.
io::Json quantization_config(const Scheme& scheme, std::span<const std::string> ignore);

// The scheme and the lists that it names.
struct QuantizationConfig {
  Scheme scheme;
  std::vector<std::string> ignore;
  std::vector<std::string> targets = {std::string(kLinearClass)};
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
