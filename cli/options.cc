#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "cli/sizes.h"
#include "cli/terminal.h"
#include "io/file.h"
#include "kvant/version.h"
#include "quantize/checkpoint_plan.h"

namespace kvant::cli {
namespace {

constexpr int kHelpWidth = 80;
constexpr int kHelpColumn = 30;

std::string row(const std::string& heading, const std::string& description, int width) {
  const int indent = kHelpColumn;
  std::string line = "  " + heading;
  if (static_cast<int>(line.size()) + 2 > indent)
    line += "\n" + std::string(static_cast<std::size_t>(indent), ' ');
  else
    line.resize(static_cast<std::size_t>(indent), ' ');
  // wrapped() counts columns from where the text begins.
  const std::string text = wrapped(description, width - indent, 0);
  for (const char c : text) {
    line += c;
    if (c == '\n') line.append(static_cast<std::size_t>(indent), ' ');
  }
  return line + "\n";
}

}  // namespace

std::string option_heading(const CLI::Option& option) {
  if (option.get_positional()) return option.get_name(true, false);
  std::string heading;
  for (const std::string& name : option.get_snames()) heading += (heading.empty() ? "-" : ", -") + name;
  for (const std::string& name : option.get_lnames()) heading += (heading.empty() ? "--" : ", --") + name;
  const std::string value = option.get_option_text();
  return value.empty() ? heading : heading + " " + value;
}

std::vector<const CLI::Option*> listed_options(const CLI::App& app, bool positional) {
  auto options = app.get_options([&](const CLI::Option* option) {
    return option->get_positional() == positional && !option->get_group().empty();
  });
  // What every command has comes last.
  std::stable_partition(options.begin(), options.end(), [](const CLI::Option* option) {
    return !option->check_lname("help") && !option->check_lname("version") && !option->check_lname("quiet") &&
           !option->check_lname("verbose");
  });
  return options;
}

std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string text = option.get_option_text();
  std::vector<std::string> choices;
  if (text.find('|') == std::string::npos) return choices;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('|', begin), text.size());
    choices.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return choices;
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode /*mode*/) const {
  const int terminal = Terminal::of(1).width();
  const int width = terminal == 0 ? kHelpWidth : std::clamp(terminal, 50, 100);
  std::string help = wrapped(app->get_description(), width, 0) + "\n\nUsage: " + name;
  const auto commands = app->get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
  if (!commands.empty()) help += " COMMAND";
  for (const CLI::Option* const option : listed_options(*app, true)) help += " " + option_heading(*option);
  for (const CLI::Option* const option : listed_options(*app, false))
    if (option->get_required()) help += " " + option->get_name() + " " + option->get_option_text();
  help += " [OPTIONS]\n";
  if (!commands.empty()) {
    help += "\nCommands:\n";
    for (const CLI::App* const command : commands) {
      const std::string description = command->get_description();
      help += row(command->get_name(), description.substr(0, description.find(". ")), width);
    }
  }
  for (const bool positional : {true, false}) {
    const auto options = listed_options(*app, positional);
    if (!options.empty()) help += positional ? "\nArguments:\n" : "\nOptions:\n";
    for (const CLI::Option* const option : options)
      help += row(option_heading(*option), option->get_description(), width);
  }
  if (!app->get_footer().empty()) help += "\n" + app->get_footer() + "\n";
  return help;
}

void add_loudness(CLI::App& app, Request& request) {
  app.add_flag_callback(
      "-q,--quiet", [&request] { request.quiet = true; }, "Say nothing but results and errors");
  app.add_flag_callback(
      "-v,--verbose", [&request] { request.verbose = true; }, "Say more: every tensor, time and peak memory");
}

CLI::App* add_plain_command(CLI::App& app, Request& request, const std::string& name, const std::string& description,
                            const std::string& examples) {
  CLI::App* const command = app.add_subcommand(name, description);
  command->footer("Examples:\n" + examples);
  add_loudness(*command, request);
  command->set_version_flag("--version", "kvant " KVANT_VERSION)->group("");
  return command;
}

CLI::Option* add_text(CLI::App& app, const std::string& names, std::string& to, const std::string& value,
                      const std::string& description) {
  return app.add_option(names, to, description)->option_text(value);
}

CLI::Option* add_choice(CLI::App& app, const std::string& names, std::string& to, const std::string& choices,
                        const std::string& description) {
  CLI::Option* const option = add_text(app, names, to, choices, description);
  return option->check([option](const std::string& text) {
    const std::vector<std::string> words = choices_of(*option);
    if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
    return fmt::format("'{}' is not one of {}", io::printable(text), fmt::join(words, ", "));
  });
}

CLI::Option* add_count(CLI::App& app, const std::string& names, int& to, int least, const std::string& value,
                       const std::string& description) {
  const auto parse = [least](const std::string& text, int& number) {
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && rest == text.data() + text.size() && number >= least;
  };
  return app
      .add_option_function<std::string>(
          names, [parse, &to](const std::string& text) { parse(text, to); }, description)
      ->option_text(value)
      ->check([parse, least](const std::string& text) {
        int number = 0;
        return parse(text, number)
                   ? std::string()
                   : fmt::format("'{}' must be a whole number of at least {}", io::printable(text), least);
      });
}

CLI::Option* add_threads(CLI::App& app, int& threads) {
  return add_count(app, "--threads", threads, 0, "N", "Threads to use; 0: all cores (default)");
}

CLI::Option* add_max_memory(CLI::App& app, std::uint64_t& bytes) {
  return app
      .add_option_function<std::string>(
          "--max-memory", [&bytes](const std::string& text) { bytes = *parse_size(text); },
          "Memory to stay below, for example 512M or 2G (default 1G)")
      ->option_text("SIZE")
      ->check([](const std::string& text) {
        const auto size = parse_size(text);
        if (!size.ok()) return std::string(size.status().message());
        if (*size >= quantize::kMinMaxMemory) return std::string();
        return fmt::format("'{}' is less than {}, which the program itself needs", io::printable(text),
                           memory_size(quantize::kMinMaxMemory));
      });
}

CLI::Option* add_report(CLI::App& app, std::string& file, const std::string& description) {
  return add_text(app, "--report", file, "FILE", description)->check([](const std::string& text) {
    return text.empty() ? std::string("the name of the report is empty") : std::string();
  });
}

CLI::Option* add_json(CLI::App& app, bool& json) {
  return app.add_flag("--json", json, "Print one JSON document on standard output");
}

std::string shell_word(std::string_view text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.' || c == '/' || c == '=' || c == ':' || c == ',' || c == '+' || c == '@';
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return std::string(text);
  if (text.find('\'') == std::string_view::npos) return fmt::format("'{}'", text);
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace kvant::cli
