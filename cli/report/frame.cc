#include "cli/report/frame.h"

#include "cli/report/assets.h"
#include "cli/report/html.h"
#include "kvant/version.h"

namespace kvant::cli {

std::string open_page(const PageHead& head) {
  std::string html(kReportStart);
  append(html,
         "\n<html lang=en><meta charset=utf-8>"
         "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'{}\">"
         "<meta name=viewport content=\"width=device-width, initial-scale=1\"><meta name=color-scheme content=\"light "
         "dark\">"
         "<title>{}</title><style>",
         head.has_script ? "; script-src 'unsafe-inline'; img-src data:" : "", head.title);
  html += kReportCss;
  html += head.styles;
  append(html, "</style><a class=skip href=#{}>{}</a>", head.skip_to, head.skip_text);
  return html;
}

std::string close_page(std::string_view command, std::string_view guide, std::string_view script) {
  std::string html;
  append(html,
         "<footer>Made by kvant {}. What the numbers mean is in its guide, <code>{}</code>. Everything here is also in "
         "<code>{}</code>.</footer></main>",
         html_text(version()), guide, command);
  if (!script.empty()) {
    html += "<script>";
    html += script;
    html += "</script>";
  }
  return html + "</html>\n";
}

}  // namespace kvant::cli
