// The commands of kvant. Each adds itself to the command line; what it will do is called after the whole line was read.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace kvant::cli {

// What the command line asked for.
struct Request {
  bool quiet = false;
  bool verbose = false;
  std::string command;       // the line, as it can be typed again: "kvant compare ./Llama ./Llama-w8a8"
  std::function<int()> run;  // the command; returns the exit code
};

void add_quantize_command(CLI::App& app, Request& request);
void add_inspect_command(CLI::App& app, Request& request);
void add_compare_command(CLI::App& app, Request& request);
void add_verify_command(CLI::App& app, Request& request);
void add_demo_command(CLI::App& app, Request& request);
void add_info_command(CLI::App& app, Request& request);
void add_bench_command(CLI::App& app, Request& request);
void add_completion_command(CLI::App& app, Request& request);

}  // namespace kvant::cli
