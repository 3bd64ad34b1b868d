// Counting one batch of an observer: into histograms, or only what is not finite, on the threads of a stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvant/granularity.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "kvant/tensor.h"
#include "ops/observer_histogram.h"

namespace kvant::ops {

// A batch as nested loops: outer, channels, inner and, innermost, a run of neighbours in memory. Where the channels are
// the last axis, runs have length 1 and the channels are the neighbours.
struct Walk {
  enum Side : std::size_t { kOuter, kChannels, kInner, kRun };

  const std::byte* data;
  std::int64_t first_channel;
  std::array<std::int64_t, 4> count;
  std::array<std::int64_t, 4> step;  // in bytes

  bool columns() const { return count[kInner] == 1 && count[kRun] == 1; }
  std::int64_t values() const { return count[kOuter] * count[kChannels] * count[kInner] * count[kRun]; }
  Walk piece(Side side, std::int64_t part, std::int64_t parts) const;
};

// One batch's worth of counting. All memory is taken before run(), so that a batch that does not fit changes nothing.
class BatchCounting {
 public:
  // Null histograms: only what is not finite is counted, and the scope does not matter.
  BatchCounting(const AnyRef& batch, const Granularity& scope, Histograms* histograms, int threads);

  // Each histogram's k must be large enough for the batch. A failure leaves it with a part of the batch.
  Status run(const Stream& stream);
  // Values that were not finite.
  std::int64_t ignored() const;

 private:
  Histograms* histograms_;
  ElementKind kind_;
  Walk walk_;
  std::int64_t counters_;  // of all segments
  // How the walk is cut for the threads. Parts that have channels of their own count in place; others need a copy of
  // all counters, which pays where a part has more values than there are counters.
  Walk::Side side_ = Walk::kChannels;
  std::int64_t parts_ = 1;
  std::vector<std::int64_t> ignored_;  // of each part
  std::vector<semantics::Bins> bins_;  // of each segment
  std::vector<std::int64_t> copies_;   // of the counters, one for each part; empty in place
};

}  // namespace kvant::ops
