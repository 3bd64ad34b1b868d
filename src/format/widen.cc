#include "format/widen.h"

#include <algorithm>
#include <cstring>

namespace kvant::format {

void widen(ElementKind kind, const std::byte* from, std::size_t count, float* to) {
  if (kind == ElementKind::f32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  // In blocks through memory that is known to be aligned and apart: a loop that becomes vectors.
  std::uint16_t narrow[256];
  std::uint32_t wide[256];
  for (std::size_t done = 0; done < count;) {
    const std::size_t n = std::min(count - done, std::size_t{256});
    std::memcpy(narrow, from + 2 * done, 2 * n);
    if (kind == ElementKind::bf16) {
      for (std::size_t i = 0; i < n; ++i) wide[i] = static_cast<std::uint32_t>(narrow[i]) << 16;
      std::memcpy(to + done, wide, 4 * n);
    } else {
      // Exponent and mantissa in their places, times 2^112: exact, for denormals too. Infinities and NaN keep the
      // greatest exponent.
      for (std::size_t i = 0; i < n; ++i) wide[i] = (narrow[i] & 0x7FFFu) << 13;
      float* floats = to + done;
      std::memcpy(floats, wide, 4 * n);
      for (std::size_t i = 0; i < n; ++i) floats[i] *= 0x1p112f;
      std::memcpy(wide, floats, 4 * n);
      for (std::size_t i = 0; i < n; ++i) {
        const std::uint32_t all_ones = (narrow[i] & 0x7C00u) == 0x7C00u ? 0x7F800000u : 0u;
        wide[i] |= all_ones | (static_cast<std::uint32_t>(narrow[i] & 0x8000u) << 16);
      }
      std::memcpy(floats, wide, 4 * n);
    }
    done += n;
  }
}

}  // namespace kvant::format
