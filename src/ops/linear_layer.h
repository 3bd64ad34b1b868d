// What the front desks of all linear layers share about kinds and shapes.
#pragma once

#include <cstdint>
#include <optional>

#include "base/refuse.h"
#include "kvant/element.h"
#include "kvant/status.h"
#include "kvant/tensor.h"

namespace kvant::ops {

// True where an argument was given; one of no elements has a shape at least.
inline bool is_given(const AnyRef* view) {
  return view != nullptr && (view->data != nullptr || view->shape.rank() != 0);
}

// Fills in a kind that the typed plan knows, or refuses another one.
inline Status set_kind(const char* who, const char* what, std::optional<ElementKind>& named, ElementKind type) {
  if (named.value_or(type) != type)
    return base::unsupported("{}: the descriptor sets {} as {}, the plan's type is {}", who, name(*named), what,
                             name(type));
  named = type;
  return {};
}

// The rows of a tensor: the product of all sizes but the last.
inline std::int64_t row_count(const Shape& shape) {
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < shape.rank(); ++i) rows *= shape[i];
  return rows;
}

}  // namespace kvant::ops
