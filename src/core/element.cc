#include "kvant/element.h"

#include "core/element_names.h"
#include "core/half.h"

namespace kvant {

float to_float(Half value) { return core::widen(value); }
float to_float(BFloat16 value) { return core::widen(value); }
Half to_half(float value) { return core::narrow_to_half(value); }
BFloat16 to_bfloat16(float value) { return core::narrow_to_bfloat16(value); }

}  // namespace kvant

namespace kvant::core {

std::string names_of(ElementClass element_class) {
  std::string names;
  for (const ElementInfo& element : kElements) {
    if (element.element_class != element_class) continue;
    if (!names.empty()) names += ", ";
    names += element.name;
  }
  return names;
}

}  // namespace kvant::core
