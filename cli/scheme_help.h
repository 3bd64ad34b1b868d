// What the help says of schemes, from the rows of their table (format/scheme.h).
#pragma once

#include <string>
#include <vector>

namespace kvant::cli {

inline constexpr const char* kDefaultScheme = "w8a8";

std::vector<std::string> scheme_names();              // "w8a8", "w8a8-static", …
std::string scheme_problem(const std::string& text);  // empty: it is one of them, or llm-compressor's name of one
std::string scheme_help();                            // "w8a8: 8-bit weights … (default); w8a8-static: …"
std::string schemes_with_statistics();                // "w8a8-static, …"
std::string group_size_help();                        // "Weights that share a scale in w4a16 (default 128) …"
std::string asymmetric_help();                        // "Use zero points: for weights of w4a16, activations of …"

}  // namespace kvant::cli
