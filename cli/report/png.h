// A picture in grey, as a data: address. Nothing is compressed: the pixels lie in it at fixed places, where report.js
// reads them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvant::cli {

// An 8-bit grey PNG. `levels` has width * height of them, row by row; neither side is 0. Up to 65535 bytes of pixels
// (and one more for each row), the pixel (x, y) is byte 49 + y * (width + 1) + x.
std::string grey_png(std::size_t width, std::size_t height, std::span<const std::uint8_t> levels);

std::string base64(std::string_view bytes);

}  // namespace kvant::cli
