// What the lanes headers share about blocks, the unit of the conveyor: four vectors of elements.
#pragma once

#include <cstring>

#include "base/inline.h"

namespace kvant::cpu {

// The order in which a block's elements are spread over its four vectors. Natural: neighbours side by side.
// Even-odd: even elements in a and c, odd ones in b and d, where splitting 16-bit elements that way is cheap.
enum class Order { natural, even_odd };

// Elements need no alignment, so they are read and written as bytes.
template <class T>
KVANT_INLINE T load_unaligned(const T* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}
template <class T>
KVANT_INLINE void store_unaligned(T* p, T value) {
  std::memcpy(p, &value, sizeof(T));
}

}  // namespace kvant::cpu
