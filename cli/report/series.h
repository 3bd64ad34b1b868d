// The colour of a checkpoint: the same one wherever a report draws it. Colours are in report.css.
#pragma once

#include <cstddef>
#include <string>

namespace kvant::cli {

// "s-3". Colours repeat after eight checkpoints.
std::string series_class(std::size_t series);

// A patch of the colour, for before a name.
std::string series_patch(std::size_t series);

}  // namespace kvant::cli
