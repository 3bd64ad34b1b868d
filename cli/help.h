// --help, from the tables of arguments.h.
#pragma once

#include <string>

#include "cli/arguments.h"

namespace kvant::cli {

// Of a command; of the program itself where it is null. Usage, arguments, options in two columns that fit the terminal,
// commands, examples.
std::string help_text(const Program& program, const Command* command);

}  // namespace kvant::cli
