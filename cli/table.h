// Rows in aligned columns.
#pragma once

#include <string>
#include <vector>

#include "cli/terminal.h"

namespace kvant::cli {

struct Column {
  enum class Align { left, right };
  std::string title;
  Align align = Align::left;
  bool shrinks = false;   // may lose the middle of its texts where the line would not fit the terminal
  bool optional = false;  // may be left out where the line would not fit although others shrink
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as columns; fewer leave the rest empty.
  void add(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }

  // Lines that end in a newline, the titles first. A terminal's lines fit its width as far as columns can shrink, or be
  // left out, the last ones first; elsewhere nothing is cut. A name of 32 columns is worth more than an optional
  // column; no column shrinks below 12.
  std::string text(const Terminal& terminal) const { return text(terminal, terminal.width()); }
  // 0: any width.
  std::string text(const Terminal& terminal, int width) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace kvant::cli
