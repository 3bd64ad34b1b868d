#include "cli/report/png.h"

#include <algorithm>

namespace kvant::cli {
namespace {

void append_big_endian(std::string& to, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) to += static_cast<char>((value >> shift) & 0xFF);
}

std::uint32_t crc32(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320u : 0);
  }
  return ~crc;
}

std::uint32_t adler32(std::string_view bytes) {
  std::uint32_t a = 1;
  std::uint32_t b = 0;
  for (const char c : bytes) {
    a = (a + static_cast<unsigned char>(c)) % 65521;
    b = (b + a) % 65521;
  }
  return (b << 16) | a;
}

void append_chunk(std::string& png, std::string_view type, std::string_view data) {
  append_big_endian(png, static_cast<std::uint32_t>(data.size()));
  const std::string body = std::string(type) + std::string(data);
  png += body;
  append_big_endian(png, crc32(body));
}

// A zlib stream of stored blocks.
std::string stored(std::string_view bytes) {
  constexpr std::size_t kMax = 65535;  // of a block
  std::string stream = "\x78\x01";
  for (std::size_t begin = 0; begin < bytes.size(); begin += kMax) {
    const std::string_view block = bytes.substr(begin, kMax);
    const auto size = static_cast<std::uint16_t>(block.size());
    const auto complement = static_cast<std::uint16_t>(~size);
    stream += static_cast<char>(begin + kMax >= bytes.size());  // the last one
    for (const std::uint16_t part : {size, complement}) {
      stream += static_cast<char>(part & 0xFF);
      stream += static_cast<char>(part >> 8);
    }
    stream += block;
  }
  append_big_endian(stream, adler32(bytes));
  return stream;
}

}  // namespace

std::string grey_png(std::size_t width, std::size_t height, std::span<const std::uint8_t> levels) {
  std::string header;
  append_big_endian(header, static_cast<std::uint32_t>(width));
  append_big_endian(header, static_cast<std::uint32_t>(height));
  header += std::string_view("\x08\0\0\0\0", 5);  // 8 bit, grey; the only compression and filters; not interlaced
  std::string rows;
  for (std::size_t y = 0; y < height; ++y) {
    rows += '\0';  // no filter
    for (const std::uint8_t level : levels.subspan(y * width, width)) rows += static_cast<char>(level);
  }
  std::string png = "\x89PNG\r\n\x1a\n";
  append_chunk(png, "IHDR", header);
  append_chunk(png, "IDAT", stored(rows));
  append_chunk(png, "IEND", {});
  return png;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j)
      group = (group << 8) | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    for (std::size_t j = 0; j < 4; ++j) text += j <= count ? kDigits[(group >> (18 - 6 * j)) & 63] : '=';
  }
  return text;
}

}  // namespace kvant::cli
