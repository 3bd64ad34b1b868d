#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/messages.h"
#include "cli/options.h"

// The scripts are made from the tree of commands itself: an option that exists completes.

namespace kvant::cli {
namespace {

constexpr const char* kExamples =
    "  source <(kvant completion bash)                                  # in ~/.bashrc\n"
    "  kvant completion zsh > \"${fpath[1]}/_kvant\"\n"
    "  kvant completion fish > ~/.config/fish/completions/kvant.fish";

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

bool takes_value(const CLI::Option& option) { return !option.get_option_text().empty(); }

// ALPHA of --smooth may be left out.
bool value_is_optional(const CLI::Option& option) { return option.get_option_text().starts_with('['); }

bool takes_path(const CLI::Option& option) {
  const std::string value = option.get_option_text();
  for (const char* const word : {"FILE", "FOLDER", "OUT", "PATH"})
    if (value.find(word) != std::string::npos) return true;
  return false;
}

std::vector<std::string> spellings(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::string all_spellings(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* const option : listed_options(app, false))
    for (std::string& name : spellings(*option)) names.push_back(std::move(name));
  return fmt::format("{}", fmt::join(names, " "));
}

std::string command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* const command : commands_of(app)) names.push_back(command->get_name());
  return fmt::format("{}", fmt::join(names, " "));
}

// The words that a command's positional can be; empty: paths, or nothing.
std::vector<std::string> positional_choices(const CLI::App& command) {
  const auto positionals = listed_options(command, true);
  return positionals.empty() ? std::vector<std::string>() : choices_of(*positionals.front());
}

bool has_path_positional(const CLI::App& command) {
  const auto positionals = listed_options(command, true);
  return std::any_of(positionals.begin(), positionals.end(), [](const CLI::Option* o) { return takes_path(*o); });
}

std::string bash_script(const CLI::App& app) {
  std::string script =
      "# Completion of kvant for bash, from `kvant completion bash`.\n"
      "_kvant() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= word\n"
      "  # bash splits --option=value into three words.\n"
      "  if [[ $cur == '=' ]]; then\n"
      "    cur=\n"
      "  elif [[ $prev == '=' ]]; then\n"
      "    prev=${COMP_WORDS[COMP_CWORD-2]}\n"
      "  fi\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
      "    if [[ $word != -* ]]; then command=$word; break; fi\n"
      "  done\n"
      "  COMPREPLY=()\n"
      "  case $command in\n";
  const auto words = [](const std::string& list) {
    return fmt::format("mapfile -t COMPREPLY < <(compgen -W '{}' -- \"$cur\")", list);
  };
  constexpr std::string_view kFiles = "compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")";
  for (const CLI::App* const command : commands_of(app)) {
    script += fmt::format("    {})\n      case $prev in\n", command->get_name());
    for (const CLI::Option* const option : listed_options(*command, false)) {
      if (!takes_value(*option) || value_is_optional(*option)) continue;
      const std::vector<std::string> choices = choices_of(*option);
      const std::string pattern = fmt::format("{}", fmt::join(spellings(*option), "|"));
      // FAMILY|FILE is no list of words.
      if (takes_path(*option))
        script += fmt::format("        {}) {}; return ;;\n", pattern, kFiles);
      else if (!choices.empty())
        script +=
            fmt::format("        {}) {}; return ;;\n", pattern, words(fmt::format("{}", fmt::join(choices, " "))));
      else
        script += fmt::format("        {}) return ;;\n", pattern);
    }
    script += "      esac\n";
    script += fmt::format("      if [[ $cur == -* ]]; then {}; return; fi\n", words(all_spellings(*command)));
    if (const auto choices = positional_choices(*command); !choices.empty())
      script += fmt::format("      {}\n", words(fmt::format("{}", fmt::join(choices, " "))));
    else if (has_path_positional(*command))
      script += fmt::format("      {}\n", kFiles);
    script += "      ;;\n";
  }
  script += fmt::format(
      "    *)\n"
      "      {} ;;\n"
      "  esac\n"
      "}}\n"
      "complete -F _kvant kvant\n",
      words(command_names(app) + " " + all_spellings(app)));
  return script;
}

// Inside '…' of zsh's _arguments: quotes end the word, brackets and colons mean something.
std::string zsh_escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\'')
      escaped += "'\\''";
    else if (c == '[' || c == ']' || c == ':' || c == '\\')
      escaped += std::string("\\") + c;
    else
      escaped += c;
  }
  return escaped;
}

std::string zsh_value(const CLI::Option& option, const std::string& title) {
  if (takes_path(option)) return fmt::format(":{}:_files", zsh_escaped(title));
  const std::vector<std::string> choices = choices_of(option);
  if (!choices.empty()) return fmt::format(":{}:({})", zsh_escaped(title), fmt::join(choices, " "));
  return fmt::format(":{}: ", zsh_escaped(title));
}

std::string zsh_arguments(const CLI::App& app, const std::string& indent) {
  std::string lines;
  for (const CLI::Option* const option : listed_options(app, false)) {
    const std::vector<std::string> names = spellings(*option);
    const bool repeats = option->get_expected_max() > 1;
    const std::string together = fmt::format("{}", fmt::join(names, " "));
    for (const std::string& name : names) {
      std::string spec = repeats ? "*" : fmt::format("({})", together);
      spec += name;
      // "=": the value may follow in the same word or in the next; a value that may be left out only in the same.
      if (takes_value(*option)) spec += value_is_optional(*option) ? "=-" : name.starts_with("--") ? "=" : "+";
      spec += fmt::format("[{}]", zsh_escaped(option->get_description()));
      if (takes_value(*option)) spec += (value_is_optional(*option) ? ":" : "") + zsh_value(*option, "value");
      lines += fmt::format("{}'{}' \\\n", indent, spec);
    }
  }
  for (const CLI::Option* const option : listed_options(app, true))
    lines += fmt::format("{}'{}' \\\n", indent, zsh_value(*option, option->get_name(true, false)));
  return lines;
}

std::string zsh_script(const CLI::App& app) {
  std::string script =
      "#compdef kvant\n"
      "# Completion of kvant for zsh, from `kvant completion zsh`.\n"
      "_kvant() {\n"
      "  local context state state_descr line\n"
      "  typeset -A opt_args\n"
      "  _arguments -C \\\n" +
      zsh_arguments(app, "    ") +
      "    '1:command:->command' \\\n"
      "    '*::argument:->arguments' && return\n"
      "  case $state in\n"
      "    command)\n"
      "      local -a commands\n"
      "      commands=(\n";
  for (const CLI::App* const command : commands_of(app)) {
    const std::string description = command->get_description();
    script += fmt::format("        '{}:{}'\n", command->get_name(),
                          zsh_escaped(description.substr(0, description.find(". "))));
  }
  script +=
      "      )\n"
      "      _describe command commands ;;\n"
      "    arguments)\n"
      "      case $line[1] in\n";
  for (const CLI::App* const command : commands_of(app))
    script += fmt::format("        {})\n          _arguments \\\n{}            && return ;;\n", command->get_name(),
                          zsh_arguments(*command, "            "));
  script +=
      "      esac ;;\n"
      "  esac\n"
      "}\n"
      // Read as a file of $fpath it is called; sourced it defines itself.
      "if [[ $funcstack[1] == _kvant ]]; then _kvant \"$@\"; else compdef _kvant kvant; fi\n";
  return script;
}

std::string fish_escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\'' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string fish_options(const CLI::App& app, const std::string& condition) {
  std::string lines;
  for (const CLI::Option* const option : listed_options(app, false)) {
    std::string line = fmt::format("complete -c kvant -n '{}'", condition);
    for (const std::string& name : option->get_snames()) line += " -s " + name;
    for (const std::string& name : option->get_lnames()) line += " -l " + name;
    if (takes_value(*option) && !value_is_optional(*option)) {
      const std::vector<std::string> choices = choices_of(*option);
      if (takes_path(*option))
        line += " -r -F";
      else if (!choices.empty())
        line += fmt::format(" -x -a '{}'", fmt::join(choices, " "));
      else
        line += " -x";
    }
    lines += fmt::format("{} -d '{}'\n", line, fish_escaped(option->get_description()));
  }
  return lines;
}

std::string fish_script(const CLI::App& app) {
  std::string script =
      "# Completion of kvant for fish, from `kvant completion fish`.\n"
      "complete -c kvant -f\n" +
      fish_options(app, "__fish_use_subcommand");
  for (const CLI::App* const command : commands_of(app)) {
    const std::string description = command->get_description();
    script += fmt::format("complete -c kvant -n '__fish_use_subcommand' -a {} -d '{}'\n", command->get_name(),
                          fish_escaped(description.substr(0, description.find(". "))));
  }
  for (const CLI::App* const command : commands_of(app)) {
    const std::string condition = "__fish_seen_subcommand_from " + command->get_name();
    script += fish_options(*command, condition);
    if (const auto choices = positional_choices(*command); !choices.empty())
      script += fmt::format("complete -c kvant -n '{}' -a '{}'\n", condition, fmt::join(choices, " "));
    else if (has_path_positional(*command))
      script += fmt::format("complete -c kvant -n '{}' -F\n", condition);
  }
  return script;
}

}  // namespace

void add_completion_command(CLI::App& app, Request& request) {
  const auto shell = std::make_shared<std::string>();
  CLI::App& command = *add_plain_command(
      app, request, "completion", "Print a script that completes kvant's commands and options. For bash, zsh or fish.",
      kExamples);
  add_choice(command, "SHELL", *shell, "bash|zsh|fish", "The shell that will read it: bash, zsh or fish")->required();
  command.callback([shell, &app, &request] {
    request.run = [shell, &app] {
      print(*shell == "bash" ? bash_script(app) : *shell == "zsh" ? zsh_script(app) : fish_script(app));
      return kDone;
    };
  });
}

}  // namespace kvant::cli
