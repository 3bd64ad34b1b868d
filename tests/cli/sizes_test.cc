// Sizes and times as people write and read them.
#include "cli/sizes.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace kvant::cli {
namespace {

TEST(Sizes, GroupedDigits) {
  EXPECT_EQ(grouped_digits(0), "0");
  EXPECT_EQ(grouped_digits(999), "999");
  EXPECT_EQ(grouped_digits(1000), "1,000");
  EXPECT_EQ(grouped_digits(123456), "123,456");
  EXPECT_EQ(grouped_digits(18446744073709551615u), "18,446,744,073,709,551,615");
}

TEST(ParseSize, ReadsNumbersWithUnits) {
  const struct {
    const char* text;
    std::uint64_t bytes;
  } cases[] = {{"0", 0},
               {"800000", 800000},
               {"17b", 17},
               {"1k", 1024},
               {"2G", std::uint64_t{2} << 30},
               {"2g", std::uint64_t{2} << 30},
               {"512MiB", std::uint64_t{512} << 20},
               {"512 mib", std::uint64_t{512} << 20},
               {"512Mi", std::uint64_t{512} << 20},
               {"1.5G", std::uint64_t{3} << 29},
               {".5K", 512},
               {"1.0005K", 1024},
               {"2GB", 2'000'000'000},
               {"3 TB", 3'000'000'000'000},
               {"4T", std::uint64_t{4} << 40}};
  for (const auto& c : cases) {
    const auto size = parse_size(c.text);
    ASSERT_TRUE(size.ok()) << c.text << ": " << size.status().message();
    EXPECT_EQ(*size, c.bytes) << c.text;
  }
}

TEST(ParseSize, RefusesTheRestInASentence) {
  for (const char* const text : {"", "G", "-1G", "+1G", "inf", "nan", " 1G", "0x10", "one"}) {
    const auto size = parse_size(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_NE(size.status().message().find("write a number and a unit"), std::string::npos) << text;
  }
  for (const char* const text : {"2X", "2GG", "2 G ", "2  G", "1,5G", "1e9", "2GiBs", "1G2"}) {
    const auto size = parse_size(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_EQ(size.status().message().substr(0, size.status().message().find(':')),
              "'" + std::string(text) + "' has an unknown unit");
  }
  for (const std::string& text : {std::string("8388608T"), std::string("9223372036854775808"), std::string(400, '9')}) {
    const auto size = parse_size(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_NE(size.status().message().find("more than 2^63 bytes"), std::string::npos) << text;
  }
  EXPECT_EQ(*parse_size("8388607T"), std::uint64_t{8388607} << 40);
}

TEST(Sizes, ArePrintedWithThreeDigits) {
  EXPECT_EQ(byte_size(0), "0 B");
  EXPECT_EQ(byte_size(999), "999 B");
  EXPECT_EQ(byte_size(1000), "1.00 kB");
  EXPECT_EQ(byte_size(27'400'000), "27.4 MB");
  EXPECT_EQ(byte_size(999'499), "999 kB");
  EXPECT_EQ(byte_size(999'500), "1.00 MB");
  EXPECT_EQ(byte_size(9'995'000), "10.0 MB");
  EXPECT_EQ(byte_size(2'000'000'000'000), "2.00 TB");
  EXPECT_EQ(size_argument(std::uint64_t{64} << 20), "64M");
  EXPECT_EQ(size_argument((std::uint64_t{64} << 20) + 1), "65M");
  EXPECT_EQ(size_argument(0), "0M");
}

TEST(Durations, GetCoarserWithTime) {
  EXPECT_EQ(duration(-1), "0.0 s");
  EXPECT_EQ(duration(0.84), "0.8 s");
  EXPECT_EQ(duration(9.96), "10 s");
  EXPECT_EQ(duration(59.4), "59 s");
  EXPECT_EQ(duration(59.6), "1 min 00 s");
  EXPECT_EQ(duration(200), "3 min 20 s");
  EXPECT_EQ(duration(3900), "1 h 05 min");
  EXPECT_EQ(duration(1e300), "years");
}

TEST(Rates, AreInMegabytes) {
  EXPECT_EQ(rate(12'340'000), "12.3 MB/s");
  EXPECT_EQ(rate(812'000'000), "812 MB/s");
  EXPECT_EQ(rate(0.0 / 1.0), "0.0 MB/s");
}

TEST(Decibels, SayWhatHasNoNumber) {
  EXPECT_EQ(decibels(41.267), "41.27");
  EXPECT_EQ(decibels(-3), "-3.00");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(decibels(kInfinity), "exact");
  EXPECT_EQ(decibels(-kInfinity), "−∞");
  EXPECT_EQ(decibels(std::numeric_limits<double>::quiet_NaN()), "NaN");
  EXPECT_EQ(decibels_with_unit(41.267), "41.27 dB");
  EXPECT_EQ(decibels_with_unit(kInfinity), "exact");
}

TEST(Counted, HasAPlural) {
  EXPECT_EQ(counted(0, "layer"), "0 layers");
  EXPECT_EQ(counted(1, "layer"), "1 layer");
  EXPECT_EQ(counted(14, "layer"), "14 layers");
}

}  // namespace
}  // namespace kvant::cli
