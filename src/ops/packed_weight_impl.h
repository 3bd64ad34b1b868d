// What a PackedWeight holds, for the linear plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/linear_kernel.h"
#include "kvant/packed_weight.h"

namespace kvant {

struct PackedWeight::Impl {
  const detail::LinearFormat* format;
  std::int64_t out_features;
  std::int64_t in_features;
  ElementKind element;
  bool wide;  // some panel needs wide tiles
  std::size_t size;
  std::shared_ptr<std::byte> bytes;  // a header, then the panels

  const std::byte* panels() const;
};

namespace ops {

// Sizes of a linear layer that every later product of sizes can bear, in the name of `who`.
Status check_linear_sizes(const char* who, std::int64_t rows, std::int64_t in_features, std::int64_t out_features);

}  // namespace ops
}  // namespace kvant
