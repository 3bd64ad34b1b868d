// kernel_report FOLDER: reads the logs that the tests left in FOLDER and says of every kernel in the registry whether
// it ran on this machine, ran in the executor of CUDA kernels, or was only compiled.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ops/registry.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: kernel_report FOLDER\n");
    return 2;
  }
  std::set<std::string> ran;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1], error)) {
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) ran.insert(line);
  }
  std::map<std::string, std::vector<std::string>> native, emulated, compiled;
  const auto sort = [&](const kvant::KernelSku& sku) {
    const std::string name = sku.name();
    auto& how = sku.backend == kvant::BackendKind::cuda ? emulated : native;
    (ran.contains(name) ? how : compiled)[std::string(kvant::name(sku.arch))].push_back(name);
  };
  for (const auto* kernel : kvant::ops::elementwise_kernels()) sort(kernel->sku);
  for (const auto* kernel : kvant::ops::range_kernels()) sort(kernel->sku);
  for (const auto* kernel : kvant::ops::dynamic_range_kernels()) sort(kernel->sku);
  for (const auto* kernel : kvant::ops::linear_kernels()) sort(kernel->sku);
  for (const auto* kernel : kvant::ops::f32_linear_kernels()) sort(kernel->sku);
  for (const auto& kernel : kvant::cuda::elementwise_kernels()) sort(kernel.sku);
  for (const auto& kernel : kvant::cuda::range_kernels()) sort(kernel.sku);
  for (const auto& kernel : kvant::cuda::dynamic_range_kernels()) sort(kernel.sku);
  for (const auto& kernel : kvant::cuda::linear_kernels()) sort(kernel.sku);
  const auto print = [](const char* title, const auto& lists) {
    for (const auto& [isa, names] : lists) {
      fmt::print("{} on {}: {} kernels\n", title, isa, names.size());
      std::string line = " ";
      for (const std::string& name : names) {
        if (line.size() + name.size() > 118) {
          fmt::print("{}\n", line);
          line = " ";
        }
        line += " " + name.substr(0, name.find("__"));
      }
      fmt::print("{}\n", line);
    }
  };
  print("ran natively", native);
  print("ran under emulation, thread by thread on the CPU,", emulated);
  print("ONLY COMPILED", compiled);
  return 0;
}
