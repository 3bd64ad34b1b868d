#include "kvant/element.h"

#include "core/half.h"

namespace kvant {

float to_float(Half value) { return core::widen(value); }
float to_float(BFloat16 value) { return core::widen(value); }
Half to_half(float value) { return core::narrow_to_half(value); }
BFloat16 to_bfloat16(float value) { return core::narrow_to_bfloat16(value); }

}  // namespace kvant
