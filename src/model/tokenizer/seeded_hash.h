// Hashes with a seed that every process draws anew, so that no file can choose keys that fall on each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string_view>

namespace kvant::model::tokenizer {

inline std::uint64_t hash_seed() {
  static const std::uint64_t seed = [] {
    std::random_device device;
    return std::uint64_t{device()} << 32 | device();
  }();
  return seed;
}

inline std::uint64_t mixed(std::uint64_t value) {
  value ^= value >> 32;
  value *= 0x9E3779B97F4A7C15u;
  value ^= value >> 29;
  value *= 0xBF58476D1CE4E5B9u;
  return value ^ value >> 32;
}

inline std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = hash_seed() ^ text.size();
  std::size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, text.data() + at, 8);
    hash = mixed(hash ^ bytes);
  }
  if (at < text.size()) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, text.data() + at, text.size() - at);
    hash = mixed(hash ^ bytes);
  }
  return mixed(hash);
}

struct SeededHash {
  std::size_t operator()(std::string_view text) const { return hash_of(text); }
};

}  // namespace kvant::model::tokenizer
