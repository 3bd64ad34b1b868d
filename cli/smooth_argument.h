// --smooth takes a number or nothing. A command-line parser would take the word behind it for the number, also where it
// is the checkpoint: `kvant quantize --smooth model -o out`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvant::cli {

// What --smooth stands for without a number: the alpha of the model's family.
inline constexpr std::string_view kFamilyAlpha = "auto";

// The words of a command line (without the program) with every "--smooth" of `quantize` joined to its number, or to
// kFamilyAlpha where the next word is none: "--smooth=0.7", "--smooth=auto". Nothing changes behind "--".
std::vector<std::string> join_smooth_argument(const std::vector<std::string>& words);

}  // namespace kvant::cli
