// The modules of one block of a model, "model.layers.0." and what is below it, beside the names that a family has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/families.h"
#include "model/smooth_groups.h"

namespace kvant::model {

// Does `text` equal `pattern`? With the number that '*' stands for, empty where there is no '*'.
std::optional<std::string_view> fit(std::string_view text, std::string_view pattern);
// "mlp.experts.3.w1" of "mlp.experts.*.w1"
std::string numbered(std::string_view pattern, std::uint64_t number);
bool fits_one_of(std::string_view text, Names patterns);

// Is the module, without the prefix of its block, a reader of the norm, in any of the sets?
bool reads(const Edge& edge, std::string_view rest);

// "model.layers.0." of "model.layers.0.input_layernorm"; empty where the norm is in no block.
std::string_view block_prefix(std::string_view module, const Edge& edge);

// All modules below a prefix, without it.
std::vector<std::string_view> below(const Modules& modules, std::string_view prefix);

}  // namespace kvant::model
