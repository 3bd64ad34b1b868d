// The histograms of an observer: counters of every segment, which grow coarser as larger values come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "semantics/histogram.h"

namespace kvant::ops {

// The histograms of all segments. k and the counters depend on the values alone: floor(floor(x / w) / 2) is
// floor(x / 2w), so a bin that was counted and then added to its neighbour is the bin that counts at the larger k.
class Histograms {
 public:
  Histograms() = default;
  Histograms(std::size_t segments, int bins)
      : half_(bins / 2), exponents_(segments, semantics::kMinBinExponent), counters_(segments * per_segment()) {}

  std::size_t per_segment() const { return 2 * static_cast<std::size_t>(half_) + 1; }
  std::size_t segments() const { return exponents_.size(); }
  std::int64_t* counters() { return counters_.data(); }
  const std::int64_t* counters(std::size_t segment) const { return counters_.data() + segment * per_segment(); }
  int exponent(std::size_t segment) const { return exponents_[segment]; }
  semantics::Bins bins(std::size_t segment) const { return {exponents_[segment], half_}; }

  // Makes k at least `exponent`.
  void grow(std::size_t segment, int exponent);
  void add(std::size_t segment, const Histograms& other);
  // Of a segment that has seen nothing: bins over [-2^exponent, 2^exponent] in order, and zeros.
  void set(std::size_t segment, int exponent, std::span<const std::int64_t> counts, std::int64_t zeros);

 private:
  std::int64_t& counter(std::size_t segment, std::int32_t s) {
    return counters_[segment * per_segment() + static_cast<std::size_t>(semantics::Bins::counter_of_bin(s, half_))];
  }

  std::int32_t half_ = 0;
  std::vector<int> exponents_;
  std::vector<std::int64_t> counters_;
};

// One of them, to read.
struct Histogram {
  semantics::Bins bins;
  int exponent;
  const std::int64_t* counters;

  Histogram(const Histograms& all, std::size_t segment)
      : bins(all.bins(segment)), exponent(all.exponent(segment)), counters(all.counters(segment)) {}

  std::int64_t zeros() const { return counters[bins.counter_of_zeros()]; }
  // Without the zeros, which the definition puts into bin 0.
  std::int64_t nonzeros(std::int32_t s) const { return counters[bins.counter_of_bin(s)]; }
  std::int64_t count(std::int32_t s) const { return nonzeros(s) + (s == 0 ? zeros() : 0); }
  std::int64_t total() const {
    std::int64_t sum = 0;
    for (std::int32_t s = -bins.half; s < bins.half; ++s) sum += count(s);
    return sum;
  }
};

}  // namespace kvant::ops
