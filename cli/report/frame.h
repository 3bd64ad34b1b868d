// What every page of kvant has around its content: one HTML file that needs nothing from outside, and may load nothing.
#pragma once

#include <string>
#include <string_view>

namespace kvant::cli {

// What every report begins with; nothing else does.
inline constexpr std::string_view kReportStart = "<!doctype html><!-- kvant report -->";

// All texts are HTML, CSS and JavaScript already.
struct PageHead {
  std::string_view title;
  std::string_view styles = {};     // beside report.css
  bool has_script = false;          // or pictures as data
  std::string_view skip_to = {};    // the section that people who do not see the page want first: its id,
  std::string_view skip_text = {};  // and the words of the link
};
// Up to the beginning of the content.
std::string open_page(const PageHead& head);
// `command` prints the same numbers as JSON, `guide` says what they mean.
std::string close_page(std::string_view command, std::string_view guide, std::string_view script = {});

}  // namespace kvant::cli
