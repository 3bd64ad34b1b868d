// Options that several commands have.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cli/arguments.h"

namespace kvant::cli {

// --threads; 0: as many as the machine has.
Argument threads_option(int& threads);
// --max-memory
Argument max_memory_option(std::uint64_t& bytes);
// --report FILE
Argument report_option(std::string& file, std::string help);
// --json
Argument json_option(bool& json);
// PATH, what a command reads.
Argument checkpoint_positional(std::string name, std::string& path);

// A path as it is typed in a shell: quoted if need be.
std::string shell_word(std::string_view text);

}  // namespace kvant::cli
