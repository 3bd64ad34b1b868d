// JSON documents of a checkpoint folder (config.json, the index): strict, in the order of the file. And values of
// reports that JSON has no words for.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "io/json_fwd.h"
#include "kvant/status.h"

namespace kvant::io {

// The index of a model of a million tensors has half as many.
inline constexpr std::size_t kMaxJsonValues = 2'000'000;

// One document and nothing after it. Refuses, with the file's name and the place: what is no JSON or no UTF-8, a key
// that is twice in one object (also where the two are equal only after escapes are resolved), more than 64 levels, more
// than kMaxJsonValues values.
Result<Json> parse_json(std::string_view text, std::string_view file_name);

// A number; "inf", "-inf" or "nan" where it is not finite.
Json json_number(double value);

// A name of the file system, escaped where it is not UTF-8: dump() would throw.
Json json_name(const std::string& name);

}  // namespace kvant::io
