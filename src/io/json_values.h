// Values of reports that JSON has no words for.
#pragma once

#include <cmath>
#include <filesystem>
#include <string>

#include "io/file.h"
#include "io/json.h"

namespace kvant::io {

// A number; "inf", "-inf" or "nan" where it is not finite.
inline Json json_number(double value) {
  if (std::isfinite(value)) return value;
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

// A name of the file system, escaped where it is not UTF-8: dump() would throw.
inline Json json_name(const std::string& name) {
  try {
    Json value = name;
    (void)value.dump();
    return value;
  } catch (const nlohmann::json::exception&) {
    return printable(name);
  }
}

}  // namespace kvant::io
