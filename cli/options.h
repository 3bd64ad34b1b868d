// Options that several commands have, and how all of them are described.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "cli/commands.h"

namespace kvant::cli {

// A subcommand with its description, the examples at the end of its help, and -q, -v and --version. `run` is called
// with the options when everything was read.
template <class Options>
CLI::App* add_command(CLI::App& app, Request& request, const std::string& name, const std::string& description,
                      const std::string& examples, int (*run)(const Options&, const Request&),
                      const std::shared_ptr<Options>& options);

CLI::App* add_plain_command(CLI::App& app, Request& request, const std::string& name, const std::string& description,
                            const std::string& examples);

// -q and -v, of kvant itself and of every command.
void add_loudness(CLI::App& app, Request& request);

// An option or positional that holds one text. `value` is what the help calls it; "FILE", "FOLDER" and "PATH" complete
// with files.
CLI::Option* add_text(CLI::App& app, const std::string& names, std::string& to, const std::string& value,
                      const std::string& description);

// One of a list of words, separated by '|' in the help.
CLI::Option* add_choice(CLI::App& app, const std::string& names, std::string& to, const std::string& choices,
                        const std::string& description);

// An integer of at least `least`.
CLI::Option* add_count(CLI::App& app, const std::string& names, int& to, int least, const std::string& value,
                       const std::string& description);

// --threads; 0: as many as the machine has.
CLI::Option* add_threads(CLI::App& app, int& threads);
// --max-memory
CLI::Option* add_max_memory(CLI::App& app, std::uint64_t& bytes);
// --report FILE, described by `description`.
CLI::Option* add_report(CLI::App& app, std::string& file, const std::string& description);
// --json
CLI::Option* add_json(CLI::App& app, bool& json);

// A path as it is typed in a shell: quoted if need be.
std::string shell_word(std::string_view text);

// Usage, arguments, options in two columns that fit the terminal, commands, examples.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
};

// "-o, --output FOLDER", "--smooth [ALPHA]", "IN"
std::string option_heading(const CLI::Option& option);
// What --help lists of an app: positionals (true) or options.
std::vector<const CLI::Option*> listed_options(const CLI::App& app, bool positional);
// The words of an option made by add_choice; none for others.
std::vector<std::string> choices_of(const CLI::Option& option);

template <class Options>
CLI::App* add_command(CLI::App& app, Request& request, const std::string& name, const std::string& description,
                      const std::string& examples, int (*run)(const Options&, const Request&),
                      const std::shared_ptr<Options>& options) {
  CLI::App* const command = add_plain_command(app, request, name, description, examples);
  command->callback(
      [options, run, &request] { request.run = [options, run, &request] { return run(*options, request); }; });
  return command;
}

}  // namespace kvant::cli
