// bf16 from the bits of a float, for machines without an instruction for it.
#pragma once

#include <cstdint>

#include "base/inline.h"

namespace kvant::semantics {

// Round to nearest even on the bits: adding 0x7FFF plus the last kept bit carries into the kept half exactly when
// the dropped half is above a tie, or at one with an odd neighbour. NaN would carry into infinity, so it is quieted.
KVANT_INLINE std::uint16_t rounded_bfloat16(std::uint32_t float_bits, bool is_nan) {
  const std::uint32_t rounded = float_bits + 0x7FFFu + ((float_bits >> 16) & 1u);
  return static_cast<std::uint16_t>((is_nan ? float_bits | 0x00400000u : rounded) >> 16);
}

}  // namespace kvant::semantics
