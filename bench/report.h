// What a benchmark measured, the table of it, and bench.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvant::bench {

// Another library on the same problem in the same run.
struct PeerTime {
  std::string name;
  double seconds = 0;  // best of several
  std::string sums;    // on full-range codes: "exact", "wrong"; "f32": it multiplies floats
};

struct Row {
  std::string op;
  std::string mode;  // of dynamic range: "symmetric", "asymmetric"; of linear: "bell", "uniform", "raw" weights, or
                     // their element
  std::string granularity;               // "tensor", "channel", "token", "group", "block"
  int axis = 0;                          // of channels and groups
  std::int64_t group_size = 0;           // of groups
  std::vector<std::int64_t> block_size;  // of blocks: rows and columns
  std::string direction;                 // "forward", "backward"
  std::string in;
  std::string out;
  std::string numerics;
  std::string isa;
  std::vector<std::int64_t> shape;  // of linear: [M, K, N]
  int threads = 1;
  double seconds = 0;        // best of several
  double bytes = 0;          // read and written
  double limit_seconds = 0;  // moving the same bytes without arithmetic, best of several; 0: not measured
  std::string peer;          // empty: none
  double peer_seconds = 0;
  double macs = 0;  // multiplications of a matrix product; 0: none, and the row counts elements
  std::vector<PeerTime> peers;
};

void add(Row row);
void print_table();
// Writes all rows to `path`; false if that fails.
bool write_json(const std::string& path);

}  // namespace kvant::bench
