#include <algorithm>
#include <memory>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/messages.h"

namespace kvant::cli {
namespace {

constexpr const char* kHelpExamples =
    "  kvant help\n"
    "  kvant help quantize     # as 'kvant quantize --help'";

}  // namespace

Command help_command(const Program& program) {
  const auto name = std::make_shared<std::string>();
  return {.name = "help",
          .description = "Print the help of a command. Without one, that of kvant.",
          .examples = kHelpExamples,
          .arguments = {{.name = "COMMAND",
                         .help = "The command that it is about",
                         .to = name.get(),
                         .choices = command_names(program)}},
          .run = [name, &program](const Request& /*request*/) {
            const auto found = std::ranges::find(program.commands, *name, &Command::name);
            print(help_text(program, found == program.commands.end() ? nullptr : &*found));
            return kDone;
          }};
}

}  // namespace kvant::cli
