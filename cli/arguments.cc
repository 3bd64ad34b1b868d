#include "cli/arguments.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "base/text.h"
#include "cli/did_you_mean.h"
#include "cli/help.h"
#include "cli/messages.h"
#include "cli/sizes.h"
#include "io/file.h"

namespace kvant::cli {
namespace {

// Of these two parse() itself takes care; they go nowhere.
const Argument& help_argument() {
  static const Argument argument{
      .name = "--help", .letter = "-h", .help = "Print this help", .to = static_cast<bool*>(nullptr)};
  return argument;
}

const Argument& version_argument() {
  static const Argument argument{
      .name = "--version", .letter = "-V", .help = "Print the version", .to = static_cast<bool*>(nullptr)};
  return argument;
}

// "-o,--output", as CLI11 reads names.
std::string names_of(const Argument& argument) { return base::joined(argument.spellings(), ","); }

bool parse_count(const std::string& text, const Count& count, int& number) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && rest == text.data() + text.size() && number >= count.min;
}

std::string problem_of(const std::string& text, const Count& count) {
  int number = 0;
  if (parse_count(text, count, number)) return {};
  return fmt::format("'{}' must be a whole number of at least {}", io::printable(text), count.min);
}

std::string problem_of(const std::string& text, const Size& size) {
  const auto bytes = parse_size(text);
  if (!bytes.ok()) return std::string(bytes.status().message());
  if (*bytes >= size.min) return {};
  return fmt::format("'{}' is less than {}, the memory that the program itself needs", io::printable(text),
                     size_argument(size.min));
}

std::string problem_of(const std::string& text, const std::vector<std::string>& choices) {
  if (std::ranges::find(choices, text) != choices.end()) return {};
  return fmt::format("'{}' is not one of {}", io::printable(text), base::joined(choices, ", "));
}

// How CLI11 is told of each kind of destination.
struct AddTo {
  CLI::App& app;
  const Argument& argument;

  // "--json=false" leaves the flag as it is: -q before the name of a command holds behind it.
  CLI::Option* operator()(bool* to) const {
    return app.add_flag_callback(names_of(argument), [to] { *to = true; });
  }
  CLI::Option* operator()(std::string* to) const { return app.add_option(names_of(argument), *to); }
  CLI::Option* operator()(std::vector<std::string>* to) const {
    CLI::Option* const option = app.add_option(names_of(argument), *to);
    // "--ignore a b": b is a word of its own.
    return argument.is_positional() ? option : option->allow_extra_args(false);
  }
  CLI::Option* operator()(const Count& count) const {
    return app
        .add_option_function<std::string>(names_of(argument),
                                          [count](const std::string& text) { parse_count(text, count, *count.to); })
        ->check([count](const std::string& text) { return problem_of(text, count); });
  }
  CLI::Option* operator()(const Size& size) const {
    return app
        .add_option_function<std::string>(names_of(argument),
                                          [size](const std::string& text) { *size.to = *parse_size(text); })
        ->check([size](const std::string& text) { return problem_of(text, size); });
  }
};

void add(CLI::App& app, const Argument& argument) {
  CLI::Option* const option = std::visit(AddTo{app, argument}, argument.to);
  option->required(argument.required && argument.unless == nullptr);
  if (!argument.choices.empty() && !argument.check)
    option->check([&choices = argument.choices](const std::string& text) { return problem_of(text, choices); });
  if (argument.check) option->check(argument.check);
}

void add_everywhere(CLI::App& app, const Program& program) {
  app.set_help_flag(names_of(help_argument()));
  app.set_version_flag(names_of(version_argument()), program.version);
  for (const Argument& option : program.options) add(app, option);
}

const Command* command_named(const Program& program, const std::string& name) {
  const auto found = std::ranges::find(program.commands, name, &Command::name);
  return found == program.commands.end() ? nullptr : &*found;
}

// The command that was typed; null: none.
const Command* selected_in(const Program& program, const CLI::App& app) {
  const auto selected = app.get_subcommands();
  return selected.empty() ? nullptr : command_named(program, selected.front()->get_name());
}

std::vector<std::string> option_names(const Program& program, const Command* command) {
  std::vector<std::string> names;
  for (const Argument& option : options_of(program, command)) {
    names.push_back(option.name);
    if (!option.letter.empty()) names.push_back(option.letter);
  }
  return names;
}

bool is_option_of_a_command(const Program& program, const std::string& word) {
  return word.starts_with('-') && std::ranges::any_of(program.commands, [&](const Command& command) {
           return std::ranges::any_of(command.arguments, [&](const Argument& argument) {
             return std::ranges::count(argument.spellings(), word) > 0;
           });
         });
}

// A required argument that is missing although the flag is not given with which it may be; null: none.
const Argument* missing_argument(const Command& command, const CLI::App& subcommand) {
  for (const Argument& argument : command.arguments)
    if (argument.required && argument.unless != nullptr && !*argument.unless &&
        subcommand.get_option(argument.name)->count() == 0)
      return &argument;
  return nullptr;
}

// A sentence for what CLI11 found wrong.
std::string sentence_of(const CLI::ParseError& error) {
  const std::string text = error.what();
  if (error.get_name() == "ArgumentMismatch") {
    const std::string option = text.substr(0, text.find_first_of(": "));
    if (text.ends_with("missing")) return option + " needs a value";
    if (text.find("received") != std::string::npos) return option + " is given more than once";
    if (text.find("flag override") != std::string::npos) return option + " takes no value";
  }
  if (error.get_name() == "RequiredError") return text.substr(0, text.find(" is required")) + " is missing";
  return text;
}

// What is wrong with the line, in one sentence.
std::string explanation(const Program& program, const CLI::App& app, const CLI::ParseError& error) {
  const Command* const command = selected_in(program, app);
  std::vector<std::string> words = app.remaining();
  if (command != nullptr)
    for (std::string& word : app.get_subcommands().front()->remaining()) words.push_back(std::move(word));
  if (const std::vector<std::string> before = app.remaining();
      !before.empty() && is_option_of_a_command(program, before.front().substr(0, before.front().find('='))))
    return fmt::format("the option '{}' goes after the command", io::printable(before.front()));
  // What nobody understood explains more than what is missing because of it.
  for (const std::string& word : words) {
    if (word == "--") continue;
    const std::string shown = io::printable(word);
    if (word.starts_with('-') && word.size() > 1)
      return fmt::format("unknown option '{}'{}", shown,
                         did_you_mean(word.substr(0, word.find('=')), option_names(program, command)));
    if (command == nullptr)
      return fmt::format("unknown command '{}'{}", shown, did_you_mean(word, command_names(program)));
    return fmt::format("unexpected argument '{}'", shown);
  }
  return sentence_of(error);
}

}  // namespace

std::vector<std::string> Argument::spellings() const {
  return letter.empty() ? std::vector{name} : std::vector{letter, name};
}

std::string Argument::value_text() const { return choices.empty() || check ? placeholder : base::joined(choices, "|"); }

std::vector<Argument> positionals_of(const Command* command) {
  std::vector<Argument> positionals;
  if (command != nullptr)
    std::ranges::copy_if(command->arguments, std::back_inserter(positionals), &Argument::is_positional);
  return positionals;
}

std::vector<Argument> options_of(const Program& program, const Command* command) {
  std::vector<Argument> options;
  if (command != nullptr)
    std::ranges::remove_copy_if(command->arguments, std::back_inserter(options), &Argument::is_positional);
  options.push_back(help_argument());
  if (command == nullptr) options.push_back(version_argument());
  options.insert(options.end(), program.options.begin(), program.options.end());
  return options;
}

std::vector<std::string> command_names(const Program& program) {
  std::vector<std::string> names;
  for (const Command& command : program.commands) names.push_back(command.name);
  return names;
}

Parsed parse(const Program& program, std::vector<std::string> words) {
  if (words.empty()) {
    tell(help_text(program, nullptr));
    return {nullptr, kUsage};
  }
  CLI::App app;
  app.name(program.name);
  app.require_subcommand(1, 1);
  add_everywhere(app, program);
  for (const Command& command : program.commands) {
    CLI::App& subcommand = *app.add_subcommand(command.name);
    add_everywhere(subcommand, program);
    for (const Argument& argument : command.arguments) add(subcommand, argument);
  }
  const auto wrong = [&](const std::string& sentence) -> Parsed {
    const Command* const command = selected_in(program, app);
    fail(fmt::format("{}{} try '{}{} --help'", sentence, sentence.ends_with('?') ? "" : ";", program.name,
                     command == nullptr ? "" : " " + command->name));
    return {nullptr, kUsage};
  };
  std::ranges::reverse(words);  // as CLI11 wants them
  try {
    app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    print(help_text(program, selected_in(program, app)));
    return {nullptr, kDone};
  } catch (const CLI::CallForVersion&) {
    print(fmt::format("{}\n", program.version));
    return {nullptr, kDone};
  } catch (const CLI::ParseError& error) {
    return wrong(explanation(program, app, error));
  }
  const Command* const command = selected_in(program, app);
  if (const Argument* const missing = missing_argument(*command, *app.get_subcommands().front()))
    return wrong(missing->name + " is missing");
  return {command, kDone};
}

}  // namespace kvant::cli
