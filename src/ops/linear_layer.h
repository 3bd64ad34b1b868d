// What the front desks of all linear layers share: shapes, and how the work is cut.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/divide_up.h"
#include "base/refuse.h"
#include "core/linear_kernel.h"
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
    return base::unsupported("{}: the descriptor names {} as {}, the plan's type is {}", who, name(*named), what,
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

// How a product is cut into parts: all rows by some panels, or some rows too where panels are few.
struct LinearPartition {
  std::int64_t panels;
  std::int64_t rows;
  std::int64_t panels_per_part;
  std::int64_t rows_per_part;

  std::int64_t row_parts() const { return base::divide_up(rows, rows_per_part); }
  std::int64_t parts() const { return base::divide_up(panels, panels_per_part) * row_parts(); }
  detail::LinearPart part(std::int64_t index) const {
    const std::int64_t panel = index / row_parts() * panels_per_part;
    const std::int64_t row = index % row_parts() * rows_per_part;
    return {panel, std::min(panel + panels_per_part, panels), row, std::min(row + rows_per_part, rows)};
  }
};

// What a product is made of: panels of so many columns, tiles of so many rows, and how many multiplications are worth
// waking a thread for.
struct LinearGrain {
  std::int64_t panel_columns;
  std::int64_t tile_rows;
  std::int64_t min_products;
};

inline LinearPartition partition(const LinearGrain& grain, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                                 int threads) {
  constexpr std::int64_t kPartsPerThread = 12;
  const std::int64_t panels = base::divide_up(columns, grain.panel_columns);
  std::int64_t products = 0;
  const bool endless = __builtin_mul_overflow(rows * columns, depth, &products);
  const std::int64_t worth = endless ? threads * kPartsPerThread : products / grain.min_products;
  const std::int64_t wanted = threads == 1 ? 1 : std::clamp<std::int64_t>(worth, 1, threads * kPartsPerThread);
  const std::int64_t panel_parts = std::min(wanted, panels);
  const std::int64_t row_parts =
      std::clamp<std::int64_t>(wanted / panel_parts, 1, base::divide_up(rows, grain.tile_rows));
  return {panels, rows, base::divide_up(panels, panel_parts),
          base::divide_up(base::divide_up(rows, row_parts), grain.tile_rows) * grain.tile_rows};
}

}  // namespace kvant::ops
