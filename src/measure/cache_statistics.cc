#include "measure/cache_statistics.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/divide_up.h"
#include "base/for_each_part.h"
#include "format/activation_stats.h"

namespace kvant::measure {

CacheStatistics::CacheStatistics(std::int64_t width) {
  for (std::vector<float>& absmax : absmax_) absmax.assign(static_cast<std::size_t>(width), 0.0f);
}

Status CacheStatistics::add(const Stream& stream, const float* keys, const float* values, std::int64_t stride,
                            std::int64_t rows) {
  constexpr std::size_t kChannels = 256;
  const std::size_t width = absmax_[0].size();
  const std::uint64_t parts = base::parts_of(width, kChannels);
  return base::for_each_part(stream, 0, 2 * parts, [&](std::size_t /*worker*/, std::uint64_t part) -> Status {
    const float* const x = part < parts ? keys : values;
    std::vector<float>& absmax = absmax_[part < parts ? 0 : 1];
    const std::size_t first = (part % parts) * kChannels, last = std::min(first + kChannels, width);
    // A NaN is lost here; attention makes it one of what the next linear reads, where it is refused.
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::size_t i = first; i < last; ++i)
        absmax[i] = std::max(absmax[i], std::fabs(x[r * stride + static_cast<std::int64_t>(i)]));
    return {};
  });
}

std::vector<io::TensorInfo> CacheStatistics::tensors(const std::string& attention) const {
  std::vector<io::TensorInfo> tensors;
  for (const format::CacheHalf half : format::kCacheHalves)
    tensors.push_back(format::statistic_tensor(format::cache_statistics_module(attention, half),
                                               format::Statistic::absmax, absmax(half).size(), 0));
  return tensors;
}

Status CacheStatistics::write(io::AtomicFile& file) const {
  for (const std::vector<float>& absmax : absmax_)
    if (Status s = file.write(std::as_bytes(std::span(absmax))); !s.ok()) return s;
  return {};
}

}  // namespace kvant::measure
