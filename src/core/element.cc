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

namespace {

template <class Predicate>
std::string names_where(const Predicate& wanted) {
  std::string names;
  for (const ElementInfo& element : kElements) {
    if (!wanted(element)) continue;
    if (!names.empty()) names += ", ";
    names += element.name;
  }
  return names;
}

}  // namespace

std::string names_of(ElementClass element_class) {
  return names_where([&](const ElementInfo& e) { return e.element_class == element_class; });
}
std::string names_of(GridKind grid) {
  return names_where([&](const ElementInfo& e) { return e.grid == grid; });
}

}  // namespace kvant::core
