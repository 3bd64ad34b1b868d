// The command line as data: what a command is called, what it takes and where the values go. Help, completion and the
// reading of a line are made from the same tables. One file (arguments.cc) knows the parser: its header takes 4 s of
// every file that includes it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kvant::cli {

// What the command line asked for besides its command.
struct Request {
  bool quiet = false;
  bool verbose = false;
  std::string command;  // the line, as it can be typed again: "kvant compare ./Llama ./Llama-w8a8"
};

// A whole number of at least `min`.
struct Count {
  int* to;
  int min;
};

// A size with a unit (sizes.h), of at least `min` bytes.
struct Size {
  std::uint64_t* to;
  std::uint64_t min;
};

// bool: a flag. std::vector: may be given several times; as a positional it takes all that are left.
using Destination = std::variant<bool*, std::string*, std::vector<std::string>*, Count, Size>;

// An option or a positional.
struct Argument {
  std::string name;              // "--output" of an option, "IN" of a positional
  std::string letter = {};       // "-o"
  std::string placeholder = {};  // what the help calls the value; "[ALPHA]": it may be left out
  std::string help;
  Destination to;
  bool required = false;
  const bool* unless = nullptr;                               // a flag of the command with which it is not required
  bool is_path = false;                                       // completes with files
  std::vector<std::string> choices = {};                      // one of these words, which stand for a placeholder
  std::function<std::string(const std::string&)> check = {};  // what is wrong with a text; empty: nothing

  bool is_positional() const { return !name.starts_with('-'); }
  bool is_flag() const { return std::holds_alternative<bool*>(to); }
  bool is_list() const { return std::holds_alternative<std::vector<std::string>*>(to); }
  bool value_is_optional() const { return placeholder.starts_with('['); }
  // "-o" and "--output"
  std::vector<std::string> spellings() const;
  // The placeholder, or "bash|zsh|fish".
  std::string value_text() const;
};

struct Command {
  std::string name;
  std::string description;  // its first sentence stands in the list of commands
  std::string examples;
  std::vector<Argument> arguments;
  std::function<int(const Request&)> run;  // returns the exit code

  std::string summary() const { return description.substr(0, description.find(". ")); }
};

struct Program {
  std::string name;
  std::string version;
  std::string description;
  std::string footer;
  std::vector<Argument> options;  // understood before and after the name of a command
  std::vector<Command> commands;
};

// What --help and completion list of a command, of the program itself where it is null: positionals, or options with
// those that every command has as the last.
std::vector<Argument> positionals_of(const Command* command);
std::vector<Argument> options_of(const Program& program, const Command* command);
std::vector<std::string> command_names(const Program& program);

// Reads the words of a line (without the program) into the destinations of their arguments. Returns the command to run;
// or none, and the exit code, where help, the version or what is wrong with the line was printed.
struct Parsed {
  const Command* command = nullptr;
  int exit_code = 0;
};
Parsed parse(const Program& program, std::vector<std::string> words);

}  // namespace kvant::cli
