#include "bench/report.h"

#include <fmt/core.h>

#include <algorithm>
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
  if (row.granularity == "block") return "block" + join(row.block_size);
  return row.granularity;
}

std::string time_label(double seconds) {
  return seconds < 1e-6   ? fmt::format("{:.1f} ns", seconds * 1e9)
         : seconds < 1e-3 ? fmt::format("{:.2f} us", seconds * 1e6)
                          : fmt::format("{:.2f} ms", seconds * 1e3);
}

std::string share_label(const Row& row) {
  return row.limit_seconds > 0 ? fmt::format("{:.2f}", row.limit_seconds / row.seconds) : std::string("-");
}

void print_elements(const std::vector<const Row*>& table) {
  fmt::print("{:<25}{:<12}{:<11}{:<11}{:<8}{:<13}{:>8}{:>11}{:>11}{:>9}{:>8}\n", "operator", "granularity", "types",
             "numerics", "isa", "shape", "threads", "time", "Gelem/s", "GB/s", "share");
  for (const Row* one : table) {
    const Row& row = *one;
    const std::string op = row.direction == "backward" ? row.op + "_backward"
                           : row.mode.empty()          ? row.op
                                                       : row.op + "/" + row.mode;
    fmt::print("{:<25}{:<12}{:<11}{:<11}{:<8}{:<13}{:>8}{:>11}{:>11.2f}{:>9.1f}{:>8}\n", op, granularity_label(row),
               row.in == row.out ? row.in : row.in + ">" + row.out, row.numerics, row.isa, join(row.shape), row.threads,
               time_label(row.seconds), element_count(row) / row.seconds / 1e9, row.bytes / row.seconds / 1e9,
               share_label(row));
  }
}

// Matrix products, with how many times as fast as each peer they are.
void print_products(const std::vector<const Row*>& table) {
  fmt::print("{:<27}{:<9}{:<8}{:<16}{:>8}{:>11}{:>9}{:>8}", "operator", "types", "isa", "MxKxN", "threads", "time",
             "GMAC/s", "share");
  std::vector<std::string> names;
  for (const Row* row : table)
    for (const PeerTime& peer : row->peers)
      if (std::find(names.begin(), names.end(), peer.name) == names.end()) names.push_back(peer.name);
  for (const std::string& peer : names) fmt::print("{:>20}", "/ " + peer);
  fmt::print("\n");
  for (const Row* row : table) {
    fmt::print("{:<27}{:<9}{:<8}{:<16}{:>8}{:>11}{:>9.1f}{:>8}", row->op + "/" + row->mode, row->in + ">" + row->out,
               row->isa, join(row->shape), row->threads, time_label(row->seconds), row->macs / row->seconds / 1e9,
               share_label(*row));
    for (const std::string& name : names) {
      const auto peer = std::find_if(row->peers.begin(), row->peers.end(),
                                     [&](const PeerTime& candidate) { return candidate.name == name; });
      fmt::print("{:>20}", peer == row->peers.end() ? "-" : fmt::format("{:.2f}", peer->seconds / row->seconds));
    }
    fmt::print("\n");
  }
}

}  // namespace

void add(Row row) { rows().push_back(std::move(row)); }

void print_table() {
  std::vector<const Row*> elements, products;
  for (const Row& row : rows()) (row.macs > 0 ? products : elements).push_back(&row);
  if (!elements.empty()) print_elements(elements);
  if (!elements.empty() && !products.empty()) fmt::print("\n");
  if (!products.empty()) print_products(products);
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
    if (row.granularity == "block") one["block_size"] = row.block_size;
    if (row.limit_seconds > 0) {
      one["limit_seconds"] = row.limit_seconds;
      one["limit_share"] = row.limit_seconds / row.seconds;
    }
    if (!row.peer.empty()) {
      one["peer"] = row.peer;
      one["peer_seconds"] = row.peer_seconds;
      one["peer_ratio"] = row.peer_seconds / row.seconds;
    }
    if (row.macs > 0) {
      one["macs"] = row.macs;
      nlohmann::ordered_json peers = nlohmann::ordered_json::array();
      for (const PeerTime& peer : row.peers)
        peers.push_back({{"name", peer.name},
                         {"seconds", peer.seconds},
                         {"ratio", peer.seconds / row.seconds},
                         {"sums", peer.sums}});
      one["peers"] = std::move(peers);
    }
    list.push_back(std::move(one));
  }
  std::ofstream file(path);
  file << list.dump(1) << '\n';
  return file.good();
}

}  // namespace kvant::bench
