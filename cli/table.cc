#include "cli/table.h"

#include <algorithm>
#include <limits>

namespace kvant::cli {
namespace {

constexpr int kGap = 2;
constexpr int kMinShrunk = 12;
// Shrinking further costs more than leaving out an optional column.
constexpr int kWellShrunk = 32;

}  // namespace

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text(const Terminal& terminal, int width) const {
  std::vector<int> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    int widest = display_width(columns_[i].title);
    for (const auto& row : rows_) widest = std::max(widest, display_width(row[i]));
    widths.push_back(widest);
  }
  std::vector<bool> shown(columns_.size(), true);
  // The width of a line whose shrinking columns are no wider than `most`.
  const auto line_width = [&](int most) {
    int total = -kGap;
    for (std::size_t i = 0; i < columns_.size(); ++i)
      if (shown[i]) total += kGap + (columns_[i].shrinks ? std::min(widths[i], most) : widths[i]);
    return total;
  };
  for (std::size_t i = columns_.size(); i-- > 0 && width > 0 && line_width(kWellShrunk) > width;)
    if (columns_[i].optional) shown[i] = false;
  int excess = width > 0 ? line_width(std::numeric_limits<int>::max()) - width : 0;
  // The widest of the columns that shrink gives way first.
  while (excess > 0) {
    int widest = -1, second = kMinShrunk;
    for (int i = 0; i < static_cast<int>(columns_.size()); ++i) {
      if (!columns_[static_cast<std::size_t>(i)].shrinks || !shown[static_cast<std::size_t>(i)]) continue;
      const int here = widths[static_cast<std::size_t>(i)];
      if (widest < 0 || here > widths[static_cast<std::size_t>(widest)]) {
        if (widest >= 0) second = std::max(second, widths[static_cast<std::size_t>(widest)]);
        widest = i;
      } else {
        second = std::max(second, here);
      }
    }
    if (widest < 0 || widths[static_cast<std::size_t>(widest)] <= kMinShrunk) break;
    int& here = widths[static_cast<std::size_t>(widest)];
    const int by = std::clamp(here - second, 1, excess);
    here -= by;
    excess -= by;
  }

  std::string text;
  const auto append = [&](const std::vector<std::string>& cells, bool title) {
    std::string line;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (!shown[i]) continue;
      const std::string cell = columns_[i].shrinks ? shortened(cells[i], widths[i]) : cells[i];
      const auto padding = static_cast<std::size_t>(std::max(0, widths[i] - display_width(cell)));
      if (!line.empty()) line.append(kGap, ' ');
      if (columns_[i].align == Column::Align::right) line.append(padding, ' ');
      line += cell;
      if (columns_[i].align == Column::Align::left) line.append(padding, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += title ? terminal.bold(line) : line;
    text += '\n';
  };
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  append(titles, true);
  for (const auto& row : rows_) append(row, false);
  return text;
}

}  // namespace kvant::cli
