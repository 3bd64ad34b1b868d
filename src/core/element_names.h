// Lists of element names for sentences: "f32, f64, f16, bf16".
#pragma once

#include <string>

#include "kvant/element.h"

namespace kvant::core {

std::string names_of(ElementClass element_class);
std::string names_of(GridKind grid);

}  // namespace kvant::core
