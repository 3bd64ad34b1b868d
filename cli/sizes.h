// Sizes, numbers and times as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvant/status.h"

namespace kvant::cli {

// "2G", "512MiB", "1.5G", "800000". K, M, G, T and KiB, MiB, GiB, TiB are powers of 1024, KB, MB, GB, TB powers of
// 1000; in either case of letters, with or without a space before the unit. Parts of a byte are dropped.
Result<std::uint64_t> parse_size(std::string_view text);

// "27.4 MB", powers of 1000: of files and of memory alike, so that what is printed can be compared.
std::string byte_size(std::uint64_t bytes);
// "64M", as --max-memory takes it: whole powers of 1024, rounded up.
std::string size_argument(std::uint64_t bytes);
// "0.8 s", "12 s", "3 min 20 s", "1 h 05 min"
std::string duration(double seconds);
// "12.3 MB/s"
std::string rate(double bytes_per_second);
// "41.27", "exact" where nothing was lost, "NaN", "−∞"
std::string decibels(double db);
// "41.27 dB", "exact"
std::string decibels_with_unit(double db);
// "1,234,567"
std::string grouped_digits(std::uint64_t number);
// "1 layer", "14 layers"
std::string counted(std::uint64_t count, std::string_view one);

}  // namespace kvant::cli
