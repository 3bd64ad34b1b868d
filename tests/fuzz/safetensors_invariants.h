// What holds for every header that the reader accepts, worked out apart from the reader.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "io/safetensors.h"

namespace kvant::tests {

// The bytes of a tensor, in 128 bits; -1 where they are no number of bytes of 63 bits.
inline __int128 expected_bytes(const io::TensorInfo& tensor) {
  constexpr __int128 kMax = static_cast<__int128>(1) << 63;
  __int128 elements = 1;
  bool empty = false;
  for (const std::uint64_t size : tensor.shape) {
    empty |= size == 0;
    if (size != 0) elements *= static_cast<__int128>(size);
    if (elements >= kMax) return -1;
  }
  const __int128 bits = elements * io::bits(tensor.dtype);
  if (bits / 8 >= kMax) return -1;
  if (empty) return 0;
  return bits % 8 == 0 ? bits / 8 : -1;
}

// Which of them is broken, as a sentence. Empty: none.
inline std::string broken_invariant(const io::SafetensorsHeader& header, std::uint64_t data_bytes) {
  std::uint64_t expected_begin = 0;
  std::set<std::string_view> names;
  for (const io::TensorInfo& tensor : header.tensors) {
    if (tensor.begin != expected_begin) return fmt::format("begins at {} instead of {}", tensor.begin, expected_begin);
    if (tensor.end < tensor.begin) return fmt::format("[{}, {}] is backwards", tensor.begin, tensor.end);
    if (expected_bytes(tensor) != static_cast<__int128>(tensor.end - tensor.begin))
      return fmt::format("{} bytes are not those of the shape", tensor.end - tensor.begin);
    if (tensor.shape.size() > 64) return fmt::format("{} dimensions", tensor.shape.size());
    if (!names.insert(tensor.name).second) return fmt::format("name {} twice", io::printable(tensor.name));
    if (tensor.name == "__metadata__") return "a tensor has the name of the metadata";
    expected_begin = tensor.end;
  }
  if (expected_begin != data_bytes) return fmt::format("ends at {} instead of {}", expected_begin, data_bytes);
  return {};
}

}  // namespace kvant::tests
