// What is kept of the keys and values of one attention layer: the max magnitude of each channel. A max does not depend
// on order, so batches and threads do not matter.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "format/kv_cache.h"
#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant::measure {

class CacheStatistics {
 public:
  // `width` channels of keys, and as many of values.
  explicit CacheStatistics(std::int64_t width);

  Status add(const Stream& stream, const float* keys, const float* values, std::int64_t stride, std::int64_t rows);
  const std::vector<float>& absmax(format::CacheHalf half) const { return absmax_[static_cast<std::size_t>(half)]; }

  // The tensors of a file, in this order, and their bytes.
  std::vector<io::TensorInfo> tensors(const std::string& attention) const;
  Status write(io::AtomicFile& file) const;

 private:
  std::array<std::vector<float>, format::kCacheHalves.size()> absmax_;
};

}  // namespace kvant::measure
