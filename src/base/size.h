// Sizes of tensors are signed, those of memory are not.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvant::base {

// `n` is not negative.
constexpr std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

}  // namespace kvant::base
