// kvant_bench [--filter=REGEX] [--json=FILE] [google-benchmark flags]: times the operators, prints one table with the
// share of the limit that each reaches, and writes the same as JSON.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "bench/operators.h"
#include "bench/peers.h"
#include "bench/report.h"

namespace {

// Says which case is running; the table comes at the end.
class ProgressReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs)
      if (run.error_occurred) {
        std::fprintf(stderr, "\n%s: %s\n", run.benchmark_name().c_str(), run.error_message.c_str());
        failed = true;
      } else {
        std::fprintf(stderr, ".");
      }
  }
  void Finalize() override { std::fprintf(stderr, "\n"); }
  bool failed = false;
};

}  // namespace

int main(int argc, char** argv) {
  kvant::bench::put_idle_peers_to_sleep(argv);
  std::string json = "bench.json";
  std::vector<std::string> arguments = {argv[0]};
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--json="))
      json = argument.substr(7);
    else if (argument.starts_with("--filter="))
      arguments.push_back("--benchmark_filter=" + std::string(argument.substr(9)));
    else if (argument == "--filter" && i + 1 < argc)
      arguments.push_back("--benchmark_filter=" + std::string(argv[++i]));
    else
      arguments.emplace_back(argument);
  }
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  int count = static_cast<int>(pointers.size());
  benchmark::Initialize(&count, pointers.data());
  if (benchmark::ReportUnrecognizedArguments(count, pointers.data())) return 2;

  kvant::bench::register_elementwise();
  kvant::bench::register_dynamic_range();
  kvant::bench::register_linear();
  kvant::bench::register_network_steps();
  ProgressReporter reporter;
  if (benchmark::RunSpecifiedBenchmarks(&reporter) == 0) {
    std::fprintf(stderr, "kvant_bench: no benchmark matches\n");
    return 1;
  }
  kvant::bench::print_table();
  if (!kvant::bench::write_json(json)) {
    std::fprintf(stderr, "kvant_bench: cannot write %s\n", json.c_str());
    return 1;
  }
  return reporter.failed ? 1 : 0;
}
