// What the benchmarks of all operators share: memory, data, and a clock.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kvant/element.h"
#include "kvant/granularity.h"
#include "kvant/tensor.h"

namespace kvant::bench {

// Memory in huge pages that grows and never shrinks, so that every case and its limit see the same pages.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();
  std::byte* get(std::size_t bytes);

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};
// One for each role, shared by all cases.
Buffer& input_buffer();
Buffer& gradient_buffer();
Buffer& output_buffer();

// Normal numbers; any bits for codes.
void fill_normal(std::byte* data, ElementKind kind, std::int64_t n);

// "tensor", "channel1", "group128"
std::string granularity_name(const Granularity& granularity);

// "16384x4096"
std::string shape_name(const Shape& shape);

// 1, 2, and all cores where there are more.
std::vector<int> thread_counts();

// Seconds that one call of f takes, over `repeat` of them.
template <class Function>
double seconds_of(const Function& f, int repeat) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < repeat; ++i) f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / repeat;
}

}  // namespace kvant::bench
