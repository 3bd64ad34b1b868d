// How histograms grow and add up; see observer_histogram.h.
#include "ops/observer_histogram.h"

#include <algorithm>
#include <utility>

namespace kvant::ops {

void Histograms::grow(std::size_t segment, int exponent) {
  if (exponent <= exponents_[segment]) return;
  const int shift = std::min(exponent - exponents_[segment], 31);
  exponents_[segment] = exponent;
  const auto move = [&](std::int32_t s) {
    const std::int64_t count = std::exchange(counter(segment, s), 0);
    counter(segment, s >> shift) += count;
  };
  // From zero outwards: a bin goes to where the bins have been moved already.
  for (std::int32_t s = 0; s < half_; ++s) {
    move(s);
    move(-1 - s);
  }
}

void Histograms::add(std::size_t segment, const Histograms& other) {
  grow(segment, other.exponents_[segment]);
  const int shift = std::min(exponents_[segment] - other.exponents_[segment], 31);
  const semantics::Bins b = bins(segment);
  const std::int64_t* more = other.counters(segment);
  for (std::int32_t s = -half_; s < half_; ++s) counter(segment, s >> shift) += more[b.counter_of_bin(s)];
  counters_[segment * per_segment() + static_cast<std::size_t>(b.counter_of_zeros())] += more[b.counter_of_zeros()];
}

void Histograms::set(std::size_t segment, int exponent, std::span<const std::int64_t> counts, std::int64_t zeros) {
  exponents_[segment] = exponent;
  for (std::int32_t s = -half_; s < half_; ++s) counter(segment, s) = counts[static_cast<std::size_t>(s + half_)];
  counters_[segment * per_segment() + static_cast<std::size_t>(bins(segment).counter_of_zeros())] = zeros;
}

}  // namespace kvant::ops
