// The table at the top of a report: a row for each fact, a column for each checkpoint. Tests and people's programs find
// a fact by data-fact and its number in data-v.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvant::cli {

class FactsTable {
 public:
  // Checkpoints side by side.
  explicit FactsTable(std::size_t columns) : columns_(columns) {}

  // `cells` are HTML, each with its "<td>"; `title` is HTML.
  void add(std::string_view name, std::string_view title, const std::vector<std::string>& cells);
  // One cell across all columns.
  void add_common(std::string_view name, std::string_view title, std::string_view attributes, std::string_view text);

  std::string html() const;

 private:
  std::size_t columns_;
  std::string rows_;
};

// "<td data-v=NUMBER>TEXT"
std::string number_cell(double value, std::string_view text);
// A size, and what share of the original's it is.
std::string size_cell(std::uint64_t bytes, std::uint64_t original);

}  // namespace kvant::cli
