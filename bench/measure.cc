#include "bench/measure.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

namespace kvant::bench {

Buffer::~Buffer() { std::free(data_); }

std::byte* Buffer::get(std::size_t bytes) {
  if (bytes > size_) {
    std::free(data_);
    constexpr std::size_t kHugePage = std::size_t{2} << 20;
    size_ = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    data_ = static_cast<std::byte*>(std::aligned_alloc(kHugePage, size_));
    if (data_ == nullptr) std::abort();
    madvise(data_, size_, MADV_HUGEPAGE);
    std::memset(data_, 0, size_);
  }
  return data_;
}

Buffer& input_buffer() {
  static Buffer buffer;
  return buffer;
}
Buffer& gradient_buffer() {
  static Buffer buffer;
  return buffer;
}
Buffer& output_buffer() {
  static Buffer buffer;
  return buffer;
}

void fill_normal(std::byte* data, ElementKind kind, std::int64_t n) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> some(4096);
  for (float& x : some) x = normal(random);
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = some[static_cast<std::size_t>(i * 7 + i / 4096) % some.size()];
    switch (kind) {
      case ElementKind::f32: reinterpret_cast<float*>(data)[i] = x; break;
      case ElementKind::f64: reinterpret_cast<double*>(data)[i] = x; break;
      case ElementKind::f16: reinterpret_cast<Half*>(data)[i] = to_half(x); break;
      case ElementKind::bf16: reinterpret_cast<BFloat16*>(data)[i] = to_bfloat16(x); break;
      default: data[i / (is_packed(kind) ? 2 : 1)] = static_cast<std::byte>(i * 37 >> 2); break;
    }
  }
}

std::string granularity_name(const Granularity& g) {
  switch (g.kind()) {
    case GranularityKind::channel: return fmt::format("channel{}", g.axis());
    case GranularityKind::group: return fmt::format("group{}", g.group_size());
    case GranularityKind::block: return fmt::format("block{}x{}", g.block_rows(), g.block_columns());
    default: return std::string(name(g.kind()));
  }
}

std::string shape_name(const Shape& shape) {
  std::string text;
  for (int i = 0; i < shape.rank(); ++i) text += fmt::format("{}{}", i == 0 ? "" : "x", shape[i]);
  return text;
}

std::vector<int> thread_counts() {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<int> counts = {1};
  if (cores > 1) counts.push_back(2);
  if (cores > 2) counts.push_back(cores);
  return counts;
}

}  // namespace kvant::bench
