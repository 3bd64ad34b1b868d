#include "cli/sizes.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "base/refuse.h"
#include "io/file.h"

namespace kvant::cli {
namespace {

constexpr std::string_view kPrefixes = "kmgt";

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// How many bytes the unit is: "", "B", "K", "KB", "KiB" …
std::optional<double> unit_bytes(std::string_view unit) {
  std::string text;
  for (const char c : unit) text += lower(c);
  if (text.empty() || text == "b") return 1.0;
  const std::size_t power = kPrefixes.find(text[0]);
  if (power == std::string_view::npos) return std::nullopt;
  const std::string_view rest = std::string_view(text).substr(1);
  const bool binary = rest.empty() || rest == "i" || rest == "ib";
  if (!binary && rest != "b") return std::nullopt;
  double bytes = 1;
  for (std::size_t i = 0; i <= power; ++i) bytes *= binary ? 1024.0 : 1000.0;
  return bytes;
}

// Three digits and a unit: "1.23 GB", "12.3 GB", "123 GB".
std::string with_unit(double value, const std::array<std::string_view, 6>& units) {
  constexpr double kStep = 1000;
  std::size_t unit = 0;
  // 999.5 would be printed as "1000".
  while (unit + 1 < units.size() && value >= (unit == 0 ? kStep : 999.5)) {
    value /= kStep;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} {}", value, units[0]);
  const int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, digits, units[unit]);
}

}  // namespace

Result<std::uint64_t> parse_size(std::string_view text) {
  constexpr std::string_view kForm = "write a number and a unit, for example 512M, 2G or 1.5GiB";
  double number = 0;
  const char* const end = text.data() + text.size();
  // from_chars would take "inf" and "nan" for numbers.
  const bool begins_well = !text.empty() && ((text[0] >= '0' && text[0] <= '9') || text[0] == '.');
  const auto [rest, error] = begins_well ? std::from_chars(text.data(), end, number, std::chars_format::fixed)
                                         : std::from_chars_result{text.data(), std::errc::invalid_argument};
  if (error == std::errc::invalid_argument)
    return base::invalid_problem("'{}' is not a size: {}", io::printable(text), kForm);
  std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  const std::optional<double> scale = unit_bytes(unit);
  if (!scale) return base::invalid_problem("'{}' has an unknown unit: {}", io::printable(text), kForm);
  const double bytes = number * *scale;
  if (error == std::errc::result_out_of_range || !(bytes < 0x1p63))
    return base::invalid_problem("'{}' is more than 2^63 bytes", io::printable(text));
  return static_cast<std::uint64_t>(bytes);
}

std::string byte_size(std::uint64_t bytes) {
  return with_unit(static_cast<double>(bytes), {"B", "kB", "MB", "GB", "TB", "PB"});
}

std::string size_argument(std::uint64_t bytes) {
  constexpr std::uint64_t kMebi = std::uint64_t{1} << 20;
  return fmt::format("{}M", bytes / kMebi + (bytes % kMebi != 0));
}

std::string rate(double bytes_per_second) {
  if (!(bytes_per_second >= 0) || std::isinf(bytes_per_second)) return "- MB/s";
  const double mega = bytes_per_second / 1e6;
  return fmt::format("{:.{}f} MB/s", mega, mega < 99.95 ? 1 : 0);
}

std::string duration(double seconds) {
  if (!(seconds >= 0)) seconds = 0;
  constexpr double kMax = 1e9;  // beyond it nobody waits
  if (seconds >= kMax) return "years";
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::uint64_t>(seconds + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string decibels(double db) {
  if (std::isnan(db)) return "NaN";
  if (std::isinf(db)) return db > 0 ? "exact" : "−∞";
  return fmt::format("{:.2f}", db);
}

std::string decibels_with_unit(double db) { return decibels(db) + (std::isfinite(db) ? " dB" : ""); }

std::string grouped_digits(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t at = digits.size(); at > 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

std::string counted(std::uint64_t count, std::string_view one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

}  // namespace kvant::cli
