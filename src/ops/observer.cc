// Static calibration: what batches come to, and the range that follows from it. The contract is in
// include/kvant/observer.h.
#include "kvant/observer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/float_environment.h"
#include "base/refuse.h"
#include "cpu/lanes/scalar.h"
#include "kvant/range.h"
#include "ops/code_range.h"
#include "ops/preference.h"
#include "ops/views.h"
#include "semantics/dynamic_range.h"
#include "semantics/quantize.h"

namespace kvant {
namespace {

using base::invalid_problem;
using base::unsupported;
using semantics::RangeRules;

// ---- Histograms -----------------------------------------------------------------------------------------------

constexpr int kMinBins = 16;
constexpr int kMaxBins = 1 << 20;

// 128 Ki channels, a large vocabulary, of 4096 bins take 4 GiB. Beyond 16 GiB the axis must be a mistake.
constexpr std::int64_t kMaxHistogramBytes = std::int64_t{1} << 34;

// The least k, and that of a segment of zeros only. It keeps a bin's width and its reciprocal normal numbers in f64 for
// every number of bins, so that multiplying by them is exact.
constexpr int kLeastExponent = -1000;

// The least k with magnitude < 2^k.
int exponent_above(double magnitude) {
  int exponent = kLeastExponent;
  if (magnitude > 0) std::frexp(magnitude, &exponent);
  return std::max(exponent, kLeastExponent);
}

// The bins of one segment at its k: bin s, from -half to half - 1, is s * width <= x < (s + 1) * width.
//
// Every bin has a counter, and the zeros have one of their own between the negative bins and the others: after a ReLU
// they are most of the values, and what is true of their bin (it has an error) is not true of them.
struct Bins {
  double width;
  double inverse;
  std::int32_t half;

  Bins(int exponent, std::int32_t half_count) : half(half_count) {
    const int half_exponent = std::countr_zero(static_cast<std::uint32_t>(half));
    width = std::ldexp(1.0, exponent - half_exponent);
    inverse = std::ldexp(1.0, half_exponent - exponent);
  }

  static std::int64_t counter_of_bin(std::int32_t s, std::int32_t half_count) { return half_count + s + (s >= 0); }
  std::int64_t counter_of_bin(std::int32_t s) const { return counter_of_bin(s, half); }
  std::int64_t counter_of_zeros() const { return half; }

  // For |x| < 2^k. Floor without a rounding: x * inverse is exact, or so small that it counts as 0, and the product
  // with the width is exact. Comparing x itself keeps a tiny negative x out of the positive bins where x * inverse has
  // underflown to -0.0.
  KVANT_INLINE std::int64_t counter_of(double x) const {
    const auto towards_zero = static_cast<std::int32_t>(x * inverse);
    return half + towards_zero - (x < towards_zero * width) + (x > 0);
  }
};

// The histograms of all segments. k and the counters depend on the values alone: floor(floor(x / w) / 2) is
// floor(x / 2w), so a bin that was counted and then added to its neighbour is the bin that counts at the larger k.
class Histograms {
 public:
  Histograms() = default;
  Histograms(std::size_t segments, int bins)
      : half_(bins / 2), exponents_(segments, kLeastExponent), counters_(segments * per_segment()) {}

  std::size_t per_segment() const { return 2 * static_cast<std::size_t>(half_) + 1; }
  std::int64_t* counters() { return counters_.data(); }
  const std::int64_t* counters(std::size_t segment) const { return counters_.data() + segment * per_segment(); }
  int exponent(std::size_t segment) const { return exponents_[segment]; }
  Bins bins(std::size_t segment) const { return {exponents_[segment], half_}; }

  // Makes k at least `exponent`.
  void grow(std::size_t segment, int exponent) {
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

  void add(std::size_t segment, const Histograms& other) {
    grow(segment, other.exponents_[segment]);
    const int shift = std::min(exponents_[segment] - other.exponents_[segment], 31);
    const Bins b = bins(segment);
    const std::int64_t* more = other.counters(segment);
    for (std::int32_t s = -half_; s < half_; ++s) counter(segment, s >> shift) += more[b.counter_of_bin(s)];
    counters_[segment * per_segment() + static_cast<std::size_t>(b.counter_of_zeros())] += more[b.counter_of_zeros()];
  }

 private:
  std::int64_t& counter(std::size_t segment, std::int32_t s) {
    return counters_[segment * per_segment() + static_cast<std::size_t>(Bins::counter_of_bin(s, half_))];
  }

  std::int32_t half_ = 0;
  std::vector<int> exponents_;
  std::vector<std::int64_t> counters_;
};

// One of them, to read.
struct Histogram {
  Bins bins;
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

// ---- Counting -------------------------------------------------------------------------------------------------

// A batch as nested loops: outer, channels, inner and, innermost, a run of neighbours in memory. Where the channels are
// the last axis, runs have length 1 and the channels are the neighbours.
enum Side : std::size_t { kOuter, kChannels, kInner, kRun };

struct Walk {
  const std::byte* data;
  std::int64_t first_channel;
  std::array<std::int64_t, 4> count;
  std::array<std::int64_t, 4> step;  // in bytes

  bool columns() const { return count[kInner] == 1 && count[kRun] == 1; }

  Walk piece(Side side, std::int64_t part, std::int64_t parts) const {
    const std::int64_t size = count[side] / parts, longer = count[side] % parts;
    const std::int64_t begin = part * size + std::min(part, longer);
    Walk walk = *this;
    walk.data += begin * step[side];
    walk.count[side] = size + (part < longer);
    if (side == kChannels) walk.first_channel = begin;
    return walk;
  }

  // f(where the run begins, its segment)
  template <class F>
  void for_each_run(const F& f) const {
    for (std::int64_t o = 0; o < count[kOuter]; ++o)
      for (std::int64_t c = 0; c < count[kChannels]; ++c)
        for (std::int64_t i = 0; i < count[kInner]; ++i)
          f(data + o * step[kOuter] + c * step[kChannels] + i * step[kInner], first_channel + c);
  }
};

Walk walk_of(const AnyRef& batch, const Granularity& scope) {
  const auto* data = static_cast<const std::byte*>(batch.data);
  const std::int64_t width = bits_per_element(batch.kind) / 8;
  const std::int64_t row = batch.shape.row_length();
  const std::int64_t row_step = ops::stride_bytes(batch);
  const bool channel = scope.kind() == GranularityKind::channel;
  const int axis = scope.axis() < 0 ? scope.axis() + batch.shape.rank() : scope.axis();

  std::int64_t outer = 1, channels = 1, inner = 1;
  for (int i = 0; i < batch.shape.rank(); ++i)
    (!channel || i > axis ? inner : i == axis ? channels : outer) *= batch.shape[i];
  if (channel && axis == batch.shape.rank() - 1)
    return {data, 0, {outer, channels, 1, 1}, {row_step, width, width, width}};

  const std::int64_t run = ops::has_gaps(batch) ? row : inner;
  const std::int64_t inner_step = ops::has_gaps(batch) ? row_step : run * width;
  const std::int64_t channel_step = inner / run * inner_step;
  return {data, 0, {outer, channels, inner / run, run}, {channels * channel_step, channel_step, inner_step, width}};
}

// Counts the finite values of one segment that lie side by side; returns how many others there were.
template <class T>
std::int64_t count_run(const std::byte* values, std::int64_t length, const Bins& of_segment, std::int64_t* counters) {
  const Bins bins = of_segment;  // the counters could be part of it, for all that the compiler knows
  std::int64_t ignored = 0;
  for (std::int64_t i = 0; i < length; ++i) {
    const T value = ops::read_unaligned<T>(values + i * static_cast<std::int64_t>(sizeof(T)));
    const double x = cpu::ScalarLanes<compute_t<T>>::widen(value);
    if (std::fabs(x) <= std::numeric_limits<double>::max())
      ++counters[bins.counter_of(x)];
    else
      ++ignored;
  }
  return ignored;
}

// Columns are gathered into runs, some at a time. Row by row the counters of 4096 channels, 32 KiB each, would fall out
// of every cache before they are needed again: with 1024 rows on Zen 3 a value took 26 ns, against 8 to 11 like this.
constexpr std::int64_t kSlab = 32;
constexpr std::int64_t kGatheredBytes = 1024;  // of each column

template <class T>
std::int64_t count_columns(const Walk& walk, const Bins* bins, std::int64_t* counters, std::int64_t per_segment) {
  constexpr auto kWidth = static_cast<std::int64_t>(sizeof(T));
  constexpr std::int64_t kRows = kGatheredBytes / kWidth;
  std::byte gathered[kSlab * kGatheredBytes];
  std::int64_t ignored = 0;
  for (std::int64_t first = 0; first < walk.count[kChannels]; first += kSlab) {
    const std::int64_t columns = std::min(kSlab, walk.count[kChannels] - first);
    for (std::int64_t top = 0; top < walk.count[kOuter]; top += kRows) {
      const std::int64_t rows = std::min(kRows, walk.count[kOuter] - top);
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::byte* row = walk.data + (top + r) * walk.step[kOuter] + first * walk.step[kChannels];
        for (std::int64_t c = 0; c < columns; ++c)
          std::memcpy(gathered + c * kGatheredBytes + r * kWidth, row + c * walk.step[kChannels], sizeof(T));
      }
      for (std::int64_t c = 0; c < columns; ++c) {
        const std::int64_t segment = walk.first_channel + first + c;
        ignored += count_run<T>(gathered + c * kGatheredBytes, rows, bins[segment], counters + segment * per_segment);
      }
    }
  }
  return ignored;
}

template <class T>
std::int64_t count_values(const Walk& walk, const Bins* bins, std::int64_t* counters, std::int64_t per_segment) {
  if (walk.columns()) return count_columns<T>(walk, bins, counters, per_segment);
  std::int64_t ignored = 0;
  walk.for_each_run([&](const std::byte* run, std::int64_t segment) {
    ignored += count_run<T>(run, walk.count[kRun], bins[segment], counters + segment * per_segment);
  });
  return ignored;
}

// Counts NaN and infinities by their bits: the exponent is all ones. Blocks of a fixed length become vector code.
template <class Bits>
std::int64_t count_non_finite(const Walk& walk, Bits exponent) {
  constexpr std::int64_t kBlock = 1024;
  constexpr auto kWidth = static_cast<std::int64_t>(sizeof(Bits));
  const auto is_one = [exponent](const std::byte* p) KVANT_INLINE_LAMBDA {
    return static_cast<Bits>((ops::read_unaligned<Bits>(p) & exponent) == exponent);
  };
  std::int64_t total = 0;
  walk.for_each_run([&](const std::byte* p, std::int64_t) {
    std::int64_t left = walk.count[kRun];
    for (; left >= kBlock; left -= kBlock, p += kBlock * kWidth) {
      Bits in_block = 0;
      for (std::int64_t j = 0; j < kBlock; ++j) in_block = static_cast<Bits>(in_block + is_one(p + j * kWidth));
      total += static_cast<std::int64_t>(in_block);
    }
    for (; left > 0; --left, p += kWidth) total += static_cast<std::int64_t>(is_one(p));
  });
  return total;
}

std::int64_t count_non_finite(const Walk& walk, ElementKind kind) {
  switch (kind) {
    case ElementKind::f64: return count_non_finite<std::uint64_t>(walk, 0x7FF0000000000000);
    case ElementKind::f16: return count_non_finite<std::uint16_t>(walk, 0x7C00);
    case ElementKind::bf16: return count_non_finite<std::uint16_t>(walk, 0x7F80);
    default: return count_non_finite<std::uint32_t>(walk, 0x7F800000);
  }
}

std::int64_t count_values(const Walk& walk, ElementKind kind, const Bins* bins, std::int64_t* counters,
                          std::int64_t per_segment) {
  switch (kind) {
    case ElementKind::f64: return count_values<double>(walk, bins, counters, per_segment);
    case ElementKind::f16: return count_values<Half>(walk, bins, counters, per_segment);
    case ElementKind::bf16: return count_values<BFloat16>(walk, bins, counters, per_segment);
    default: return count_values<float>(walk, bins, counters, per_segment);
  }
}

// How the walk is cut for the threads. Parts that have channels of their own count in place; others need a copy of all
// counters, which pays where a part has more values than there are counters.
struct Cut {
  Side side;
  std::int64_t parts;
  bool in_place;
};

Cut cut(const Walk& walk, std::int64_t counters, int threads) {
  constexpr std::int64_t kValuesPerPart = 1 << 15;  // 70 µs of counting; waking a thread takes 3 µs
  const std::int64_t values = walk.count[kOuter] * walk.count[kChannels] * walk.count[kInner] * walk.count[kRun];
  const std::int64_t wanted = std::clamp<std::int64_t>(values / kValuesPerPart, 1, threads);
  const std::int64_t by_channels =
      std::clamp<std::int64_t>(walk.count[kChannels] / (walk.columns() ? kSlab : 1), 1, wanted);
  Side longest = kRun;
  for (const Side side : {kOuter, kInner})
    if (walk.count[side] > walk.count[longest]) longest = side;
  const std::int64_t by_copies = std::min({wanted, walk.count[longest], values / counters});
  return by_copies > by_channels ? Cut{longest, by_copies, false} : Cut{kChannels, by_channels, true};
}

// One batch's worth of counting, on the stream's threads.
struct Counting {
  Walk walk;
  Cut cut;
  ElementKind kind;
  const Bins* bins;  // of each segment; null where histograms are not kept
  std::int64_t* counters;
  std::int64_t per_segment;
  std::int64_t copy;      // counters from one part's copy to the next; 0 in place
  std::int64_t* ignored;  // of each part

  static void run_part(const void* context, std::int64_t part) {
    const Counting& c = *static_cast<const Counting*>(context);
    const base::DefaultFloatEnvironment environment;
    const Walk walk = c.walk.piece(c.cut.side, part, c.cut.parts);
    c.ignored[part] = c.bins == nullptr ? count_non_finite(walk, c.kind)
                                        : count_values(walk, c.kind, c.bins, c.counters + part * c.copy, c.per_segment);
  }
};

// ---- Ranges ---------------------------------------------------------------------------------------------------

struct Ranges {
  std::vector<double> min;
  std::vector<double> max;
};

// C is the scale type of the batch.
template <class C>
Result<Ranges> ranges_of(const Stream& stream, const AnyRef& batch, const Granularity& scope, const Shape& segments) {
  const auto plan = AnyRangePlan::select(stream, {.shape = batch.shape, .scope = scope, .input = batch.kind});
  if (!plan.ok()) return plan.status();
  const auto count = static_cast<std::size_t>(*segments.element_count());
  std::vector<C> min(count), max(count);
  std::vector<std::byte> scratch(plan->workspace_size());
  const Status status = plan->run(stream, {scratch.data(), scratch.size()},
                                  {.input = batch,
                                   .min_out = {min.data(), kind_of<C>, segments, 0},
                                   .max_out = {max.data(), kind_of<C>, segments, 0}});
  if (!status.ok()) return status;
  const base::DefaultFloatEnvironment environment;  // widening would flush a denormal that the caller's mode flushes
  return Ranges{{min.begin(), min.end()}, {max.begin(), max.end()}};
}

double largest_magnitude(double min, double max) {
  using L = cpu::ScalarLanes<double>;
  return semantics::largest_magnitude<L>({min, max});
}

// ---- percentile -----------------------------------------------------------------------------------------------

// How many of `values` lie outside, `share` of them (1: all, 0.5: half) at one end. 99.9 and its like are off by up to
// half a unit in the last place, 2^-47, as binary numbers. The slack makes 0.1 % of 1000 values one value, not none.
std::int64_t values_outside(std::int64_t values, double percentile, double share) {
  if (percentile == 100) return 0;
  const double percent = (100 - percentile + 0x1p-46) * share;
  return static_cast<std::int64_t>(std::floor(static_cast<double>(values) * percent / 100));
}

// Ends are edges of bins, cut to the observed range.
template <class L>
semantics::Range<L> percentile_range(const Histogram& h, double min, double max, bool symmetric, double percentile) {
  using C = typename L::C;
  const std::int64_t values = h.total();
  const std::int32_t half = h.bins.half;
  if (symmetric) {
    const std::int64_t outside = values_outside(values, percentile, 1);
    std::int32_t s = half;
    for (std::int64_t passed = 0; passed <= outside && s > 0; --s) passed += h.count(s - 1) + h.count(-s);
    const auto magnitude = static_cast<C>(std::min((s + 1) * h.bins.width, largest_magnitude(min, max)));
    return {-magnitude, magnitude};
  }
  const std::int64_t outside = values_outside(values, percentile, 0.5);
  std::int32_t lo = -half, hi = half;
  for (std::int64_t passed = 0; passed <= outside && lo < half; ++lo) passed += h.count(lo);
  for (std::int64_t passed = 0; passed <= outside && hi > -half; --hi) passed += h.count(hi - 1);
  return {static_cast<C>(std::max((lo - 1) * h.bins.width, min)),
          static_cast<C>(std::min((hi + 1) * h.bins.width, max))};
}

// ---- mse ------------------------------------------------------------------------------------------------------

// The squared error that quantization would make on a histogram. The values of a bin count as spread evenly over it;
// taken at its centre they would all fall on or between the steps of a scale that divides the width, and the search
// would find that scale. Zeros are zeros, and the outermost bins end at the observed range.
//
// Everything is in units of 2^k: the numbers stay near 1, whatever the data, and their cubes do not overflow.
class SquaredError {
 public:
  void set(const Histogram& h, double min, double max) {
    edges_.clear();
    densities_.clear();
    at_max_ = 0;
    zeros_ = static_cast<double>(h.zeros());
    const double first = std::ldexp(min, -h.exponent);
    max_ = std::ldexp(max, -h.exponent);
    const double width = 1.0 / h.bins.half;
    for (std::int32_t s = -h.bins.half; s < h.bins.half; ++s) {
      if (h.nonzeros(s) == 0) continue;
      const auto values = static_cast<double>(h.nonzeros(s));
      const double from = std::max(s * width, first), to = std::min((s + 1) * width, max_);
      if (from == to) {  // all of them equal the greatest value
        at_max_ = values;
        continue;
      }
      if (edges_.empty() || edges_.back() != from) put(from, 0);
      put(to, values / (to - from));
    }
  }

  // Of q = clamp(rne(x / scale) + zero_point, q_min, q_max), where `steps` is [q_min - zero_point, q_max - zero_point].
  //
  // With u = x / scale and m = clamp(rne(u)), the squared error (u - m)^2 has the antiderivative m/12 + (u - m)^3/3: it
  // is continuous where m changes, at u = m + 1/2.
  double operator()(double scale, const semantics::Bounds<cpu::ScalarLanes<double>>& steps) const {
    using L = cpu::ScalarLanes<double>;
    const double inverse = 1 / scale;
    const auto rest = [&](double u) { return u - L::round_even(steps.clamp(u)); };
    double integral = 0, before = 0;
    for (std::size_t i = 0; i < edges_.size(); ++i) {
      const double u = edges_[i] * inverse;
      const double d = rest(u);
      const double upto = (u - d) * (1.0 / 12) + d * d * d * (1.0 / 3);
      integral += densities_[i] * (upto - before);
      before = upto;
    }
    const double of_zero = rest(0), of_max = rest(max_ * inverse);
    return scale * scale * (scale * integral + zeros_ * of_zero * of_zero + at_max_ * of_max * of_max);
  }

 private:
  void put(double edge, double density_before) {
    edges_.push_back(edge);
    densities_.push_back(density_before);
  }

  std::vector<double> edges_;      // where the density changes, ascending
  std::vector<double> densities_;  // between an edge and the one before it
  double zeros_ = 0, at_max_ = 0;  // values that are not spread
  double max_ = 0;
};

// The middle of the bin with the median.
double middle(const Histogram& h) {
  const std::int64_t half_of_them = h.total() / 2;
  std::int32_t s = -h.bins.half;
  for (std::int64_t passed = h.count(s); passed <= half_of_them && s < h.bins.half - 1;) passed += h.count(++s);
  return (s + 0.5) * h.bins.width;
}

// From coarse to fine: both ends together, then each alone while that helps, then smaller steps. A range that is as
// good as another but wider is preferred, so that new data is less likely to clip.
template <class L>
semantics::Range<L> least_error_range(const Histogram& h, double min, double max, const RangeRules& rules,
                                      SquaredError& squared_error) {
  using C = typename L::C;
  squared_error.set(h, min, max);
  // Ends move between the whole range and a pivot.
  double pivot = 0;
  if (rules.symmetric) {
    max = largest_magnitude(min, max);
    min = -max;
  } else if (rules.include_zero) {
    min = std::min(min, 0.0);
    max = std::max(max, 0.0);
  } else {
    pivot = std::clamp(middle(h), min, max);
  }

  struct Kept {  // of the distance from the pivot to either end
    double lo;
    double hi;
  };
  const auto range = [&](const Kept& kept) -> semantics::Range<L> {
    return {static_cast<C>(min * kept.lo + pivot * (1 - kept.lo)),
            static_cast<C>(max * kept.hi + pivot * (1 - kept.hi))};
  };
  Kept best{1, 1};
  if (min == max) return range(best);  // a constant

  const auto error = [&](const Kept& kept) {
    const auto p = semantics::parameters_of_range<L>(range(kept), rules);
    return squared_error(
        std::ldexp(static_cast<double>(p.scale), -h.exponent),
        {static_cast<double>(rules.q_min - p.zero_point), static_cast<double>(rules.q_max - p.zero_point)});
  };
  double least = error(best);
  const auto consider = [&](const Kept& kept) {
    const double e = error(kept);
    if (e < least || (e == least && kept.lo + kept.hi > best.lo + best.hi)) {
      least = e;
      best = kept;
    }
  };

  // 1, 7/8, 6/8, 5/8, then half of those, down to 1/256. Fractions that are exact keep the math library, and its
  // version, out of the result.
  constexpr int kCoarse = 33;
  const auto coarse = [](int i) { return std::ldexp(8 - i % 4, -3 - i / 4); };
  for (int i = 1; i < kCoarse; ++i) consider({coarse(i), coarse(i)});
  constexpr int kMaxRounds = 3;
  for (int round = 0; round < kMaxRounds && !rules.symmetric; ++round) {
    const Kept before = best;
    for (int i = 0; i < kCoarse && min < pivot; ++i) consider({coarse(i), best.hi});
    for (int i = 0; i < kCoarse && pivot < max; ++i) consider({best.lo, coarse(i)});
    if (best.lo == before.lo && best.hi == before.hi) break;
  }
  for (const double step : {1.0 / 16, 1.0 / 32, 1.0 / 64, 1.0 / 128, 1.0 / 256})
    for (const double factor : {1 + step, 1 - step}) {
      const auto moved = [factor](double kept) { return std::min(1.0, kept * factor); };
      if (rules.symmetric) {
        consider({moved(best.lo), moved(best.hi)});
      } else {
        consider({moved(best.lo), best.hi});
        consider({best.lo, moved(best.hi)});
      }
    }
  return range(best);
}

// ---- Descriptors ----------------------------------------------------------------------------------------------

bool keeps_histograms(const ObserverDescriptor& d) { return d.kind != ObserverKind::min_max; }

std::string_view who() { return "observer"; }

Result<RangeRules> checked_rules(const ObserverDescriptor& d) {
  const CodeRange limits = code_range(d.output);
  const auto range =
      ops::checked_code_range(who, d.q_min, d.q_max, limits, limits, base::text("of {}", name(d.output)));
  if (!range.ok()) return range.status();
  const bool symmetric = d.mode == DynamicRangeMode::symmetric;
  if (symmetric && range->max <= 0)
    return invalid_problem("observer: symmetric mode divides by q_max, which is {} and must be positive", range->max);
  if (!symmetric && range->min == range->max)
    return invalid_problem("observer: asymmetric mode needs q_min below q_max, both are {}", range->min);
  return RangeRules{symmetric, d.include_zero, range->min, range->max};
}

Status check(const ObserverDescriptor& d) {
  if (d.scope.kind() == GranularityKind::token || d.scope.kind() == GranularityKind::group)
    return unsupported(
        "observer: scope {} has no range that outlasts a batch; observe per tensor or per channel, or use a "
        "DynamicRangeQuantizePlan",
        name(d.scope.kind()));
  if (!is_float(d.input))
    return unsupported("observer: input element {} must be one of f32, f64, f16, bf16", name(d.input));
  if (!is_code(d.output))
    return unsupported("observer: output element {} must be one of s8, u8, s4, u4", name(d.output));
  const bool percentile_is_legal = d.percentile > 50 && d.percentile <= 100;
  if (d.kind == ObserverKind::percentile && !percentile_is_legal)
    return invalid_problem("observer: percentile {} must be above 50 and at most 100", d.percentile);
  const bool power_of_two = d.bins > 0 && std::has_single_bit(static_cast<unsigned>(d.bins));
  if (keeps_histograms(d) && (!power_of_two || d.bins < kMinBins || d.bins > kMaxBins))
    return invalid_problem("observer: bins {} must be a power of two from {} to {}", d.bins, kMinBins, kMaxBins);
  return {};
}

// A code range that is spelled out equals the same one by default. Fields that the kind does not use do not count.
Status check_equal(const ObserverDescriptor& a, const RangeRules& rules, const ObserverDescriptor& b,
                   const RangeRules& other_rules) {
  const auto differ = [](std::string_view field, const auto& other, const auto& own) {
    return invalid_problem("observer: {} {} of the other observer differs from {}", field, other, own);
  };
  if (a.kind != b.kind) return differ("kind", name(b.kind), name(a.kind));
  if (a.scope.kind() != b.scope.kind()) return differ("scope", name(b.scope.kind()), name(a.scope.kind()));
  if (a.scope.axis() != b.scope.axis()) return differ("axis", b.scope.axis(), a.scope.axis());
  if (a.mode != b.mode) return differ("mode", name(b.mode), name(a.mode));
  if (!rules.symmetric && a.include_zero != b.include_zero)
    return differ("include_zero", b.include_zero, a.include_zero);
  if (a.input != b.input) return differ("input element", name(b.input), name(a.input));
  if (a.output != b.output) return differ("output element", name(b.output), name(a.output));
  if (rules.q_min != other_rules.q_min) return differ("q_min", other_rules.q_min, rules.q_min);
  if (rules.q_max != other_rules.q_max) return differ("q_max", other_rules.q_max, rules.q_max);
  if (a.kind == ObserverKind::percentile && a.percentile != b.percentile)
    return differ("percentile", b.percentile, a.percentile);
  if (keeps_histograms(a) && a.bins != b.bins) return differ("bins", b.bins, a.bins);
  return {};
}

Status check_segments(const char* whose, std::int64_t segments, std::size_t own) {
  if (own == 0 || segments == static_cast<std::int64_t>(own)) return {};
  return invalid_problem("observer: {} {} channels, earlier batches had {}", whose, segments, own);
}

std::int64_t histogram_bytes(const ObserverDescriptor& d) {
  return keeps_histograms(d) ? 8 * (std::int64_t{d.bins} + 1) : 0;
}

}  // namespace

// ---- Observer -------------------------------------------------------------------------------------------------

struct Observer::Impl {
  ObserverDescriptor descriptor;
  RangeRules rules;
  Ranges ranges;  // empty until there was a batch
  Histograms histograms;
  std::int64_t observed = 0;
  std::int64_t ignored = 0;
  Status fault;  // why the counters cannot be trusted any more

  std::size_t segments() const { return ranges.min.size(); }
  Status add(const Stream& stream, const AnyRef& batch, const Shape& segment_shape);
  template <class C>
  QuantizationParameters parameters() const;

  Status out_of_memory(std::int64_t of_segments) const {
    const std::int64_t bytes = histogram_bytes(descriptor) + 2 * static_cast<std::int64_t>(sizeof(double));
    return base::refuse(StatusCode::Internal,
                        "observer: out of memory; {} segments take {} bytes each for range and histogram", of_segments,
                        bytes);
  }
};

// What can be refused or run out of memory comes first and on the side; only then is the observer changed.
Status Observer::Impl::add(const Stream& stream, const AnyRef& batch, const Shape& segment_shape) {
  auto seen = descriptor.input == ElementKind::f64 ? ranges_of<double>(stream, batch, descriptor.scope, segment_shape)
                                                   : ranges_of<float>(stream, batch, descriptor.scope, segment_shape);
  if (!seen.ok()) return seen.status();
  const bool first = segments() == 0;
  const std::size_t count = seen->min.size();
  const bool counts_bins = keeps_histograms(descriptor);
  Histograms fresh = first && counts_bins ? Histograms(count, descriptor.bins) : Histograms();
  Histograms& target = first ? fresh : histograms;

  const auto per_segment = static_cast<std::int64_t>(target.per_segment());
  const auto counters = counts_bins ? static_cast<std::int64_t>(count) * per_segment : 1;
  // Without histograms channels do not matter, and runs are as long as they can be.
  const Walk walk = walk_of(batch, counts_bins ? descriptor.scope : Granularity::per_tensor());
  const Cut parts = cut(walk, counters, stream.threads());
  const bool copies = counts_bins && !parts.in_place;
  std::vector<std::int64_t> ignored_in(static_cast<std::size_t>(parts.parts));
  std::vector<Bins> bins;
  bins.reserve(counts_bins ? count : 0);
  std::vector<std::int64_t> counted(copies ? static_cast<std::size_t>(parts.parts * counters) : 0);

  if (counts_bins) {
    const base::DefaultFloatEnvironment environment;
    for (std::size_t i = 0; i < count; ++i) {
      target.grow(i, exponent_above(largest_magnitude(seen->min[i], seen->max[i])));
      bins.push_back(target.bins(i));
    }
  }
  const Counting counting{walk,
                          parts,
                          descriptor.input,
                          counts_bins ? bins.data() : nullptr,
                          copies ? counted.data() : target.counters(),
                          per_segment,
                          copies ? counters : 0,
                          ignored_in.data()};
  if (Status status = stream.parallel_for(parts.parts, Task(&Counting::run_part, &counting)); !status.ok())
    return fault = status;
  for (auto copy = counted.begin(); copy != counted.end(); copy += counters)
    std::transform(copy, copy + counters, target.counters(), target.counters(), std::plus<>());

  const std::int64_t left_out = std::accumulate(ignored_in.begin(), ignored_in.end(), std::int64_t{0});
  ignored += left_out;
  observed += *batch.shape.element_count() - left_out;
  if (first) {
    ranges = *std::move(seen);
    histograms = std::move(fresh);
    return {};
  }
  const base::DefaultFloatEnvironment environment;
  for (std::size_t i = 0; i < count; ++i) {
    ranges.min[i] = std::min(ranges.min[i], seen->min[i]);
    ranges.max[i] = std::max(ranges.max[i], seen->max[i]);
  }
  return {};
}

// C is the scale type of the input.
template <class C>
QuantizationParameters Observer::Impl::parameters() const {
  using L = cpu::ScalarLanes<C>;
  const base::DefaultFloatEnvironment environment;
  QuantizationParameters result;
  result.scale.reserve(segments());
  result.zero_point.reserve(segments());
  SquaredError squared_error;
  for (std::size_t i = 0; i < segments(); ++i) {
    const double min = ranges.min[i], max = ranges.max[i];
    semantics::Range<L> range{static_cast<C>(min), static_cast<C>(max)};
    const bool any = min <= max;
    if (any && descriptor.kind == ObserverKind::percentile)
      range = percentile_range<L>(Histogram(histograms, i), min, max, rules.symmetric, descriptor.percentile);
    if (any && descriptor.kind == ObserverKind::mse)
      range = least_error_range<L>(Histogram(histograms, i), min, max, rules, squared_error);
    const auto p = semantics::parameters_of_range<L>(range, rules);
    result.scale.push_back(static_cast<double>(p.scale));
    result.zero_point.push_back(p.zero_point);
  }
  return result;
}

Result<Observer> Observer::create(const ObserverDescriptor& descriptor) {
  const base::DefaultFloatEnvironment environment;  // comparing and printing a percentile computes with it
  if (Status status = check(descriptor); !status.ok()) return status;
  const auto rules = checked_rules(descriptor);
  if (!rules.ok()) return rules.status();
  auto impl = std::make_unique<Impl>();
  impl->descriptor = descriptor;
  impl->rules = *rules;
  return Observer(std::move(impl));
}

Status Observer::observe(const Stream& stream, const AnyRef& batch) {
  Impl& o = *impl_;
  const ObserverDescriptor& d = o.descriptor;
  if (Status s = ops::check_cpu_stream("observer", stream, "a RangePlan with accumulate finds ranges on CUDA"); !s.ok())
    return s;
  if (!o.fault.ok()) return o.fault;
  if (batch.kind != d.input)
    return unsupported("observer: batch has element {}, the observer was created for {}", name(batch.kind),
                       name(d.input));
  const auto segment_shape = ops::checked_parameter_shape(who, batch.shape, d.scope);
  if (!segment_shape.ok()) return segment_shape.status();
  const std::int64_t segments = *segment_shape->element_count(), elements = *batch.shape.element_count();
  if (Status status = check_segments("batch has", segments, o.segments()); !status.ok()) return status;
  const std::int64_t rows = elements == 0 ? 0 : elements / batch.shape.row_length();
  if (Status status = ops::check_view(who, "batch", batch, d.input, batch.shape, rows); !status.ok()) return status;
  if (elements == 0) return {};
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(histogram_bytes(d), segments, &bytes) || bytes > kMaxHistogramBytes)
    return invalid_problem("observer: histograms of {} channels and {} bins take {} bytes each, more than {} in all",
                           segments, d.bins, histogram_bytes(d), kMaxHistogramBytes);
  try {
    return o.add(stream, batch, *segment_shape);
  } catch (const std::bad_alloc&) {
    return o.out_of_memory(segments);
  }
}

Status Observer::merge(const Observer& other) {
  Impl& o = *impl_;
  const Impl& more = *other.impl_;
  if (!o.fault.ok()) return o.fault;
  if (!more.fault.ok()) return more.fault;
  const base::DefaultFloatEnvironment environment;
  if (Status status = check_equal(o.descriptor, o.rules, more.descriptor, more.rules); !status.ok()) return status;
  if (more.segments() == 0) return {};
  if (Status status =
          check_segments("the other observer has", static_cast<std::int64_t>(more.segments()), o.segments());
      !status.ok())
    return status;
  if (o.segments() == 0) {
    try {
      auto copy = std::make_unique<Impl>(more);
      copy->descriptor = o.descriptor;
      impl_ = std::move(copy);
      return {};
    } catch (const std::bad_alloc&) {
      return o.out_of_memory(static_cast<std::int64_t>(more.segments()));
    }
  }
  for (std::size_t i = 0; i < o.segments(); ++i) {
    o.ranges.min[i] = std::min(o.ranges.min[i], more.ranges.min[i]);
    o.ranges.max[i] = std::max(o.ranges.max[i], more.ranges.max[i]);
    if (keeps_histograms(o.descriptor)) o.histograms.add(i, more.histograms);
  }
  o.observed += more.observed;
  o.ignored += more.ignored;
  return {};
}

Result<QuantizationParameters> Observer::parameters() const {
  if (!impl_->fault.ok()) return impl_->fault;
  if (impl_->segments() == 0)
    return invalid_problem("observer: 0 batches with elements were observed; there is no range");
  try {
    return scale_kind(impl_->descriptor.input) == ElementKind::f64 ? impl_->parameters<double>()
                                                                   : impl_->parameters<float>();
  } catch (const std::bad_alloc&) {
    return impl_->out_of_memory(static_cast<std::int64_t>(impl_->segments()));
  }
}

const std::vector<double>& Observer::min() const { return impl_->ranges.min; }
const std::vector<double>& Observer::max() const { return impl_->ranges.max; }
std::vector<double> Observer::max_abs() const {
  const base::DefaultFloatEnvironment environment;
  std::vector<double> magnitudes;
  magnitudes.reserve(impl_->segments());
  for (std::size_t i = 0; i < impl_->segments(); ++i)
    magnitudes.push_back(largest_magnitude(impl_->ranges.min[i], impl_->ranges.max[i]));
  return magnitudes;
}

std::int64_t Observer::observed() const { return impl_->observed; }
std::int64_t Observer::ignored() const { return impl_->ignored; }
const ObserverDescriptor& Observer::descriptor() const { return impl_->descriptor; }

void Observer::reset() {
  Impl empty;
  empty.descriptor = impl_->descriptor;
  empty.rules = impl_->rules;
  *impl_ = std::move(empty);
}

Observer::Observer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Observer::~Observer() = default;
Observer::Observer(Observer&&) noexcept = default;
Observer& Observer::operator=(Observer&&) noexcept = default;
Observer::Observer(const Observer& other) : impl_(std::make_unique<Impl>(*other.impl_)) {}
Observer& Observer::operator=(const Observer& other) {
  if (this != &other) impl_ = std::make_unique<Impl>(*other.impl_);
  return *this;
}

}  // namespace kvant
