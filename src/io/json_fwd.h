// The name of a JSON document, for headers that hand one on. Its definition (json.h) takes a second of every file that
// includes it.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace kvant::io {

using Json = nlohmann::ordered_json;

}  // namespace kvant::io
