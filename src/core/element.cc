#include "kvant/element.h"

#include "core/element_names.h"
#include "semantics/half.h"

namespace kvant {

float to_float(Half value) { return semantics::widen(value); }
float to_float(BFloat16 value) { return semantics::widen(value); }
Half to_half(float value) { return semantics::narrow<Half>(value); }
BFloat16 to_bfloat16(float value) { return semantics::narrow<BFloat16>(value); }

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
