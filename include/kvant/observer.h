// Observer: static calibration. It sees batches of a tensor, then gives the scale and zero point that the static
// plans (quantize.h, fake_quantize.h, SmoothQuant's linear layer) take.
//
//   min_max      the range of all values
//   percentile   the range without the outermost values: it keeps `percentile` percent of all values inside (symmetric:
//                of all magnitudes; asymmetric: half of the rest is cut at each end)
//   mse          the range, inside the observed one, with the min squared error of quantization over the histogram, as
//                found by a search from coarse to fine that starts with the whole range
//
// The range [lo, hi] becomes scale and zero point by the rules of dynamic_range.h, symmetric or asymmetric. Codes with
// a floating-point grid are symmetric, and have no mse.
//
// percentile and mse keep a histogram for each segment: `bins` equal bins over [-2^k, 2^k], where 2^k is the smallest
// power of two above the max magnitude (at least 2^-1000). When a larger value arrives, k grows and neighbouring bins
// are merged. Because `bins` is a power of two, the edges are exact, and a value is in the bin that it would be in if
// k had been larger from the start. So the histogram, and with it the result, depends only on the values, not on
// batches, order or threads.
//
// - A histogram takes 8 * (bins + 1) bytes: 32 KiB for each channel by default. More than 16 GiB in total is refused.
// - The resolution of a percentile is the width of a bin, 2^(k + 1) / bins. It is the bin's outer edge, limited to the
//   observed range; 100 is min_max.
// - mse assumes that the values of a bin are spread evenly over it, and that zeros are zeros. Between ranges of equal
//   error it prefers the wider. Neither it nor percentile can distinguish values in one bin, so they do little if an
//   outlier is `bins` times larger than everything else.
//
// NaN and infinities are left out and counted (`ignored()`). A segment without finite values counts as all zero:
// scale 1. Scope is PerTensor, or PerChannel with an axis of the same size in all batches; other sizes may change from
// batch to batch. Tokens and groups along a row have their own range in every batch: use dynamic_range.h.
//
//   auto observer = kvant::Observer::create({.kind = kvant::ObserverKind::mse, .scope = kvant::PerChannel{1}});
//   if (!observer.ok()) return fail(observer.status());
//   for (const std::vector<float>& x : batches) {
//     kvant::Status seen = observer->observe(stream, kvant::TensorRef<float>(x.data(), {64, 128}));
//     if (!seen.ok()) return fail(seen);
//   }
//   auto parameters = observer->parameters();  // 128 scales and zero points
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "kvant/dynamic_range.h"
#include "kvant/export.h"
#include "kvant/granularity.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "kvant/tensor.h"

namespace kvant {

enum class ObserverKind : std::uint8_t { min_max, percentile, mse };
KVANT_API std::string_view name(ObserverKind kind);

struct ObserverDescriptor {
  ObserverKind kind = ObserverKind::min_max;
  Granularity scope = PerTensor{};
  DynamicRangeMode mode = DynamicRangeMode::symmetric;
  bool include_zero = true;                          // asymmetric: 0 has a code of its own, as padding and ReLU need
  ElementKind input = ElementKind::f32;              // of the batches: f32, f64, f16 or bf16
  ElementKind output = ElementKind::s8;              // the codes that the parameters are for
  std::optional<std::int32_t> q_min = std::nullopt;  // default: the output type's limits
  std::optional<std::int32_t> q_max = std::nullopt;
  double percentile = 99.99;  // above 50, at most 100
  int bins = 4096;            // of a histogram: a power of two from 16 to 2^20
};

// What the static plans take. A scale for f32, f16 or bf16 input is an f32 number: converting it to float is exact.
struct QuantizationParameters {
  std::vector<double> scale;
  std::vector<std::int32_t> zero_point;
};

// What percentile and mse keep of a segment.
struct ObserverHistogram {
  int exponent = 0;                  // k: the bins lie over [-2^k, 2^k]
  std::vector<std::int64_t> counts;  // of the bins in order
  std::int64_t zeros = 0;            // which are in no bin
};

class KVANT_API Observer {
 public:
  static Result<Observer> create(const ObserverDescriptor& descriptor);

  // Adds a batch; row strides as in tensor.h. A batch without elements changes nothing, and neither does one that is
  // refused. Only a stream that fails (Internal) in the middle of counting leaves an undefined state; then every call
  // returns that status until reset(). Allocates. Do not call it from two threads at once.
  Status observe(const Stream& stream, const AnyRef& batch);

  // Adds what another observer with the same descriptor has seen, with the same result as observing its batches. One of
  // them may have seen nothing.
  Status merge(const Observer& other);

  // One that has seen what another kept of a tensor: its histogram and its range. Scope is PerTensor, and the kind one
  // that keeps a histogram. Refuses another number of bins, negative counts, and a range that is none or lies outside
  // the bins.
  static Result<Observer> resume(const ObserverDescriptor& descriptor, const ObserverHistogram& histogram, double min,
                                 double max);

  // From all that was seen. Refuses if nothing was seen: there is no range and no number of channels.
  Result<QuantizationParameters> parameters() const;

  // The ranges themselves, one for each segment, as range.h defines them. Empty before the first batch.
  const std::vector<double>& min() const;
  const std::vector<double>& max() const;
  std::vector<double> max_abs() const;

  // Of a segment. Refuses if nothing was seen, if the kind keeps none, and a segment that is not there.
  Result<ObserverHistogram> histogram(std::int64_t segment = 0) const;

  std::int64_t observed() const;  // finite values
  std::int64_t ignored() const;   // NaN and infinities
  const ObserverDescriptor& descriptor() const;

  // Forgets all batches, and with them the number of channels.
  void reset();

  ~Observer();
  Observer(Observer&&) noexcept;
  Observer& operator=(Observer&&) noexcept;
  Observer(const Observer&);  // copying throws std::bad_alloc where copying a vector would
  Observer& operator=(const Observer&);

 private:
  struct Impl;
  explicit Observer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvant
