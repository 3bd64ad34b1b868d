// What tests of NetworkSteps share: every kernel that runs here, and rows of numbers that end at a guard page.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include "kvant/network_steps.h"
#include "tests/support/elementwise_case.h"
#include "tests/support/isas.h"
#include "tests/support/kernel_log.h"

namespace kvant::tests {

// What runs here, the scalar reference last.
inline std::vector<NetworkSteps> every_network_steps() {
  std::vector<NetworkSteps> all;
  for (const ArchSku isa : compiled_isas()) {
    if (!cpu::can_run(isa)) continue;
    all.push_back(NetworkSteps::select(Stream::cpu(1), {.isa = isa}).value());
    EXPECT_EQ(all.back().sku().arch, isa);
    note_kernel(all.back().sku());
  }
  return all;
}

// A copy of numbers that ends right before memory that may not be touched.
template <class T>
class Guarded {
 public:
  explicit Guarded(const std::vector<T>& values)
      : buffer_(static_cast<std::int64_t>(values.size() * sizeof(T))), size_(values.size()) {
    std::copy(values.begin(), values.end(), data());
  }
  T* data() { return reinterpret_cast<T*>(buffer_.data()); }
  std::vector<T> values() { return {data(), data() + size_}; }

 private:
  GuardedBuffer buffer_;
  std::size_t size_;
};

// Normal numbers; `special`: with every seventh NaN, infinite, denormal, huge or -0.
template <class T = float>
std::vector<T> some_numbers(std::size_t count, std::uint32_t seed, bool special = false) {
  std::mt19937 random(seed);
  std::normal_distribution<T> normal(T(0.25), T(2));
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] =
        special && i % 7 == 3 ? static_cast<T>(special_value(static_cast<std::uint32_t>(random()))) : normal(random);
  return values;
}

// Where two rows first differ in a bit; NaN is NaN. Their size if nowhere.
template <class T>
std::size_t first_difference(const std::vector<T>& a, const std::vector<T>& b) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  std::size_t i = 0;
  while (i < a.size() && i < b.size() &&
         (std::bit_cast<Bits>(a[i]) == std::bit_cast<Bits>(b[i]) || (std::isnan(a[i]) && std::isnan(b[i]))))
    ++i;
  return i;
}

template <class T>
::testing::AssertionResult same_bits(const std::vector<T>& got, const std::vector<T>& want) {
  const std::size_t i = first_difference(got, want);
  if (got.size() == want.size() && i == want.size()) return ::testing::AssertionSuccess();
  if (i == got.size() || i == want.size())
    return ::testing::AssertionFailure() << got.size() << " numbers, not " << want.size();
  return ::testing::AssertionFailure() << "number " << i << " is " << std::hexfloat << got[i] << ", not " << want[i];
}

}  // namespace kvant::tests
