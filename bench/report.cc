#include "bench/report.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

namespace kvant::bench {
namespace {

std::vector<Row>& rows() {
  static std::vector<Row> all;
  return all;
}

double element_count(const Row& row) {
  double n = 1;
  for (const std::int64_t size : row.shape) n *= static_cast<double>(size);
  return n;
}

std::string join(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t size : shape) text += fmt::format("{}{}", text.empty() ? "" : "x", size);
  return text;
}

// "channel1", "group128"
std::string granularity_label(const Row& row) {
  if (row.granularity == "channel") return fmt::format("channel{}", row.axis);
  if (row.granularity == "group") return fmt::format("group{}{}", row.group_size, row.axis == 0 ? "/0" : "");
  return row.granularity;
}

}  // namespace

void add(Row row) { rows().push_back(std::move(row)); }

void print_table() {
  fmt::print("{:<25}{:<12}{:<11}{:<11}{:<8}{:<13}{:>8}{:>11}{:>11}{:>9}{:>8}\n", "operator", "granularity", "types",
             "numerics", "isa", "shape", "threads", "time", "Gelem/s", "GB/s", "share");
  for (const Row& row : rows()) {
    const std::string op = row.direction == "backward" ? row.op + "_backward"
                           : row.mode.empty()          ? row.op
                                                       : row.op + "/" + row.mode;
    const std::string time = row.seconds < 1e-6   ? fmt::format("{:.1f} ns", row.seconds * 1e9)
                             : row.seconds < 1e-3 ? fmt::format("{:.2f} us", row.seconds * 1e6)
                                                  : fmt::format("{:.2f} ms", row.seconds * 1e3);
    const std::string share =
        row.limit_seconds > 0 ? fmt::format("{:.2f}", row.limit_seconds / row.seconds) : std::string("-");
    fmt::print("{:<25}{:<12}{:<11}{:<11}{:<8}{:<13}{:>8}{:>11}{:>11.2f}{:>9.1f}{:>8}\n", op, granularity_label(row),
               row.in == row.out ? row.in : row.in + ">" + row.out, row.numerics, row.isa, join(row.shape), row.threads,
               time, element_count(row) / row.seconds / 1e9, row.bytes / row.seconds / 1e9, share);
  }
}

bool write_json(const std::string& path) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Row& row : rows()) {
    nlohmann::ordered_json one = {{"op", row.op},
                                  {"granularity", row.granularity},
                                  {"direction", row.direction},
                                  {"in", row.in},
                                  {"out", row.out},
                                  {"numerics", row.numerics},
                                  {"isa", row.isa},
                                  {"shape", row.shape},
                                  {"threads", row.threads},
                                  {"seconds", row.seconds},
                                  {"bytes", row.bytes}};
    if (!row.mode.empty()) one["mode"] = row.mode;
    if (row.granularity == "channel" || row.granularity == "group") one["axis"] = row.axis;
    if (row.granularity == "group") one["group_size"] = row.group_size;
    if (row.limit_seconds > 0) {
      one["limit_seconds"] = row.limit_seconds;
      one["limit_share"] = row.limit_seconds / row.seconds;
    }
    if (!row.peer.empty()) {
      one["peer"] = row.peer;
      one["peer_seconds"] = row.peer_seconds;
      one["peer_ratio"] = row.peer_seconds / row.seconds;
    }
    list.push_back(std::move(one));
  }
  std::ofstream file(path);
  file << list.dump(1) << '\n';
  return file.good();
}

}  // namespace kvant::bench
