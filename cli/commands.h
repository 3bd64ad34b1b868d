// The commands of kvant, each in a file of its own.
#pragma once

#include "cli/arguments.h"

namespace kvant::cli {

Command quantize_command();
Command convert_command();
Command calibrate_command();
Command stats_command();
Command eval_command();
Command inspect_command();
Command compare_command();
Command verify_command();
Command demo_command();
Command info_command();
Command bench_command();
// Its scripts complete what `program` has by the time they are printed.
Command completion_command(const Program& program);
// Knows the commands that `program` has by now.
Command help_command(const Program& program);

}  // namespace kvant::cli
