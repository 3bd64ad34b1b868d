#include "cli/help.h"

#include <algorithm>

#include "cli/terminal.h"

namespace kvant::cli {
namespace {

constexpr int kDefaultWidth = 80, kMinWidth = 50, kMaxWidth = 100;
constexpr int kTextColumn = 30;

std::string row(const std::string& heading, const std::string& text, int width) {
  std::string line = "  " + heading;
  if (static_cast<int>(line.size()) + 2 > kTextColumn)
    line += "\n" + std::string(kTextColumn, ' ');
  else
    line.resize(kTextColumn, ' ');
  // wrapped() counts columns from where the text begins.
  for (const char c : wrapped(text, width - kTextColumn, 0)) {
    line += c;
    if (c == '\n') line.append(kTextColumn, ' ');
  }
  return line + "\n";
}

// "-o, --output FOLDER", "--smooth [ALPHA]", "IN"
std::string heading(const Argument& argument) {
  if (argument.is_positional()) return argument.name;
  std::string text = argument.letter.empty() ? argument.name : argument.letter + ", " + argument.name;
  return argument.is_flag() ? text : text + " " + argument.value_text();
}

std::string section(const std::string& title, const std::vector<Argument>& arguments, int width) {
  if (arguments.empty()) return {};
  std::string text = "\n" + title + ":\n";
  for (const Argument& argument : arguments) text += row(heading(argument), argument.help, width);
  return text;
}

}  // namespace

std::string help_text(const Program& program, const Command* command) {
  const int terminal = Terminal::of(1).width();
  const int width = terminal == 0 ? kDefaultWidth : std::clamp(terminal, kMinWidth, kMaxWidth);
  const std::vector<Argument> positionals = positionals_of(command), options = options_of(program, command);

  std::string text = wrapped(command == nullptr ? program.description : command->description, width, 0);
  text += "\n\nUsage: " + program.name + " " + (command == nullptr ? "COMMAND" : command->name);
  for (const Argument& positional : positionals)
    text += positional.required ? " " + positional.name : " [" + positional.name + "]";
  for (const Argument& option : options)
    if (option.required) text += " " + option.name + " " + option.value_text();
  text += " [OPTIONS]\n";
  if (command == nullptr) {
    text += "\nCommands:\n";
    for (const Command& each : program.commands) text += row(each.name, each.summary(), width);
  }
  text += section("Arguments", positionals, width) + section("Options", options, width);
  return text + "\n" + (command == nullptr ? program.footer : "Examples:\n" + command->examples) + "\n";
}

}  // namespace kvant::cli
