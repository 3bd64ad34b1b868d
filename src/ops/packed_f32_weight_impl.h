// What a PackedF32Weight holds, for the f32 linear plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/f32_linear_kernel.h"
#include "kvant/packed_f32_weight.h"

namespace kvant {

struct PackedF32Weight::Impl {
  const detail::F32LinearKernel* kernel;  // that it was packed for
  std::int64_t out_features;
  std::int64_t in_features;
  std::size_t size;
  std::shared_ptr<std::byte> bytes;  // a header, then the panels

  const std::byte* panels() const;
};

}  // namespace kvant
