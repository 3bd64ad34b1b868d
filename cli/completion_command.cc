#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/messages.h"
#include "cli/options.h"

// The scripts are made from the tree of commands itself: an option that exists completes.

namespace kvant::cli {
namespace {

constexpr const char* kCompletionExamples =
    "  source <(kvant completion bash)                                  # in ~/.bashrc\n"
    "  kvant completion zsh > \"${fpath[1]}/_kvant\"\n"
    "  kvant completion fish > ~/.config/fish/completions/kvant.fish";

using base::joined;

std::string all_spellings(const std::vector<Argument>& options) {
  std::vector<std::string> names;
  for (const Argument& option : options)
    for (std::string& name : option.spellings()) names.push_back(std::move(name));
  return joined(names, " ");
}

// The words that a command's first positional can be; empty: paths, or nothing.
std::vector<std::string> positional_choices(const Command& command) {
  const auto positionals = positionals_of(&command);
  return positionals.empty() ? std::vector<std::string>() : positionals.front().choices;
}

bool has_path_positional(const Command& command) {
  return std::ranges::any_of(positionals_of(&command), &Argument::is_path);
}

std::string bash_script(const Program& program) {
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
  for (const Command& command : program.commands) {
    script += fmt::format("    {})\n      case $prev in\n", command.name);
    for (const Argument& option : options_of(program, &command)) {
      if (option.is_flag() || option.value_is_optional()) continue;
      const std::string pattern = joined(option.spellings(), "|");
      if (option.is_path)
        script += fmt::format("        {}) {}; return ;;\n", pattern, kFiles);
      else if (!option.choices.empty())
        script += fmt::format("        {}) {}; return ;;\n", pattern, words(joined(option.choices, " ")));
      else
        script += fmt::format("        {}) return ;;\n", pattern);
    }
    script += "      esac\n";
    script += fmt::format("      if [[ $cur == -* ]]; then {}; return; fi\n",
                          words(all_spellings(options_of(program, &command))));
    const auto choices = positional_choices(command);
    if (!choices.empty() && has_path_positional(command))
      script += fmt::format("      if [[ $prev == {} ]]; then {}; else {}; fi\n", command.name,
                            words(joined(choices, " ")), kFiles);
    else if (!choices.empty())
      script += fmt::format("      {}\n", words(joined(choices, " ")));
    else if (has_path_positional(command))
      script += fmt::format("      {}\n", kFiles);
    script += "      ;;\n";
  }
  script += fmt::format(
      "    *)\n"
      "      {} ;;\n"
      "  esac\n"
      "}}\n"
      "complete -F _kvant kvant\n",
      words(joined(command_names(program), " ") + " " + all_spellings(options_of(program, nullptr))));
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

std::string zsh_value(const Argument& argument, const std::string& title) {
  if (argument.is_path) return fmt::format(":{}:_files", zsh_escaped(title));
  if (!argument.choices.empty()) return fmt::format(":{}:({})", zsh_escaped(title), joined(argument.choices, " "));
  return fmt::format(":{}: ", zsh_escaped(title));
}

std::string zsh_arguments(const Program& program, const Command* command, const std::string& indent) {
  std::string lines;
  for (const Argument& option : options_of(program, command)) {
    const std::vector<std::string> names = option.spellings();
    for (const std::string& name : names) {
      std::string spec = option.is_list() ? "*" : fmt::format("({})", joined(names, " "));
      spec += name;
      // "=": the value may follow in the same word or in the next; a value that may be left out only in the same.
      if (!option.is_flag()) spec += option.value_is_optional() ? "=-" : name.starts_with("--") ? "=" : "+";
      spec += fmt::format("[{}]", zsh_escaped(option.help));
      if (!option.is_flag()) spec += (option.value_is_optional() ? ":" : "") + zsh_value(option, "value");
      lines += fmt::format("{}'{}' \\\n", indent, spec);
    }
  }
  for (const Argument& positional : positionals_of(command))
    lines +=
        fmt::format("{}'{}{}' \\\n", indent, positional.is_list() ? "*" : "", zsh_value(positional, positional.name));
  return lines;
}

std::string zsh_script(const Program& program) {
  std::string script =
      "#compdef kvant\n"
      "# Completion of kvant for zsh, from `kvant completion zsh`.\n"
      "_kvant() {\n"
      "  local context state state_descr line\n"
      "  typeset -A opt_args\n"
      "  _arguments -C \\\n" +
      zsh_arguments(program, nullptr, "    ") +
      "    '1:command:->command' \\\n"
      "    '*::argument:->arguments' && return\n"
      "  case $state in\n"
      "    command)\n"
      "      local -a commands\n"
      "      commands=(\n";
  for (const Command& command : program.commands)
    script += fmt::format("        '{}:{}'\n", command.name, zsh_escaped(command.summary()));
  script +=
      "      )\n"
      "      _describe command commands ;;\n"
      "    arguments)\n"
      "      case $line[1] in\n";
  for (const Command& command : program.commands)
    script += fmt::format("        {})\n          _arguments \\\n{}            && return ;;\n", command.name,
                          zsh_arguments(program, &command, "            "));
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

std::string fish_options(const std::vector<Argument>& options, const std::string& condition) {
  std::string lines;
  for (const Argument& option : options) {
    std::string line = fmt::format("complete -c kvant -n '{}'", condition);
    if (!option.letter.empty()) line += " -s " + option.letter.substr(1);
    line += " -l " + option.name.substr(2);
    if (!option.is_flag() && !option.value_is_optional()) {
      if (option.is_path)
        line += " -r -F";
      else if (!option.choices.empty())
        line += fmt::format(" -x -a '{}'", joined(option.choices, " "));
      else
        line += " -x";
    }
    lines += fmt::format("{} -d '{}'\n", line, fish_escaped(option.help));
  }
  return lines;
}

std::string fish_script(const Program& program) {
  std::string script =
      "# Completion of kvant for fish, from `kvant completion fish`.\n"
      "complete -c kvant -f\n" +
      fish_options(options_of(program, nullptr), "__fish_use_subcommand");
  for (const Command& command : program.commands)
    script += fmt::format("complete -c kvant -n '__fish_use_subcommand' -a {} -d '{}'\n", command.name,
                          fish_escaped(command.summary()));
  for (const Command& command : program.commands) {
    const std::string condition = "__fish_seen_subcommand_from " + command.name;
    script += fish_options(options_of(program, &command), condition);
    std::string before, behind;  // that the words stand where they can be, and the files behind them
    const auto choices = positional_choices(command);
    if (!choices.empty() && has_path_positional(command)) {
      behind = "; and __fish_seen_subcommand_from " + joined(choices, " ");
      before = "; and not __fish_seen_subcommand_from " + joined(choices, " ");
    }
    if (!choices.empty())
      script += fmt::format("complete -c kvant -n '{}{}' -a '{}'\n", condition, before, joined(choices, " "));
    if (has_path_positional(command)) script += fmt::format("complete -c kvant -n '{}{}' -F\n", condition, behind);
  }
  return script;
}

}  // namespace

Command completion_command(const Program& program) {
  const auto shell = std::make_shared<std::string>();
  return {
      .name = "completion",
      .description = "Print a script that completes kvant's commands and options. For bash, zsh or fish.",
      .examples = kCompletionExamples,
      .arguments = {{.name = "SHELL",
                     .help = "The shell that will read it: bash, zsh or fish",
                     .to = shell.get(),
                     .required = true,
                     .choices = {"bash", "zsh", "fish"}}},
      .run = [shell, &program](const Request& /*request*/) {
        print(*shell == "bash" ? bash_script(program) : *shell == "zsh" ? zsh_script(program) : fish_script(program));
        return kDone;
      }};
}

}  // namespace kvant::cli
