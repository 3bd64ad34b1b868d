// Many sentences that say the same of many modules, as one that counts them.
#pragma once

#include <string>
#include <vector>

namespace kvant::quantize {

// Sentences that begin with a quoted name are alike if they differ only in it, and in numbers inside of later quotes.
// Of more than three that are alike the first stays, in its place, with how many more there are and the next names:
// "'a' is not quantized: 100 …; the same of 179 more: 'b', 'c', 'd' …".
std::vector<std::string> gather_warnings(const std::vector<std::string>& warnings);

}  // namespace kvant::quantize
