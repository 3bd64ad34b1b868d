#include "cli/report/facts_table.h"

#include <fmt/core.h>

#include "cli/report/html.h"
#include "cli/sizes.h"

namespace kvant::cli {

void FactsTable::add(std::string_view name, std::string_view title, const std::vector<std::string>& cells) {
  append(rows_, "<tr data-fact={}><th scope=row>{}", name, title);
  for (const std::string& cell : cells) rows_ += cell;
}

void FactsTable::add_common(std::string_view name, std::string_view title, std::string_view attributes,
                            std::string_view text) {
  add(name, title,
      {fmt::format("<td{}{}>{}", columns_ > 1 ? fmt::format(" colspan={}", columns_) : "", attributes, text)});
}

std::string FactsTable::html() const {
  return fmt::format("<div class={}><table class=facts>{}</table></div>", columns_ > 1 ? "\"scroll hint\"" : "scroll",
                     rows_);
}

std::string number_cell(double value, std::string_view text) {
  return fmt::format("<td data-v={}>{}", exact_number(value), text);
}

std::string size_cell(std::uint64_t bytes, std::uint64_t original) {
  const std::string share = original == 0
                                ? std::string()
                                : fmt::format(" <small>{:.0f}\u202f%</small>",
                                              100.0 * static_cast<double>(bytes) / static_cast<double>(original));
  return fmt::format("<td data-v={}>{}{}", bytes, byte_size(bytes), share);
}

}  // namespace kvant::cli
