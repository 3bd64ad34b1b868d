// Fetching ahead of a loop.
#pragma once

#include <cstdint>

#include "base/inline.h"

namespace kvant::cpu {

// Asks for the bytes that lie `ahead` bytes in front of the kBlock elements at p. They need not exist.
template <std::int64_t kBlock, class T>
KVANT_INLINE void fetch_block(const T* p, std::int64_t ahead) {
  constexpr std::uintptr_t kLine = 64;
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(p) + static_cast<std::uintptr_t>(ahead);
  for (std::uintptr_t i = 0; i < kBlock * sizeof(T); i += kLine)
    __builtin_prefetch(reinterpret_cast<const void*>(address + i));
}

}  // namespace kvant::cpu
