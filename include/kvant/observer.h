// Observer: static calibration. It watches batches of a tensor, then yields the scale and zero point that the static
// plans (quantize.h, fake_quantize.h, SmoothQuant's linear layer) take.
//
//   min_max      the range of everything seen
//   percentile   the range without the outermost values: the least and greatest that keep `percentile` percent of all
//                values inside (symmetric: of all magnitudes; asymmetric: half of the rest is cut at each end)
//   mse          the range, inside the observed one, whose quantization has the least squared error over the histogram,
//                as far as a search from coarse to fine finds it (the whole range is where it starts)
//
// The range [lo, hi] becomes scale and zero point by the rules of dynamic_range.h, symmetric or asymmetric.
//
// percentile and mse keep a histogram for each segment: `bins` equal bins over [-2^k, 2^k], where 2^k is the least
// power of two above the largest magnitude (at least 2^-1000). When a larger value comes, k grows and neighbouring bins
// are added up. Because `bins` is a power of two, the edges are exact, and a value is in the bin that it would be in
// had k been larger from the start. So the histogram, and with it the result, depends only on the values, not on how
// they were cut into batches, on their order or on the threads.
//
// - A histogram takes 8 * (bins + 1) bytes: 32 KiB for each channel by default. More than 16 GiB in all is refused.
// - A percentile is known to the width of a bin, 2^(k + 1) / bins. It is the bin's outer edge, cut to the observed
//   range; 100 is min_max.
// - mse takes the values of a bin as spread evenly over it, and zeros as zeros. Between ranges of equal error it
//   prefers the wider. Neither it nor percentile can tell apart what lies in one bin: beside an outlier `bins` times
//   larger than everything else there is little to choose from.
//
// NaN and infinities are left out and counted (`ignored()`). A segment that has seen nothing finite counts as all zero:
// scale 1. Scope is PerTensor, or PerChannel with an axis of the same size in all batches; other sizes may change from
// batch to batch. Tokens and groups along a row have a range of their own in every batch: use dynamic_range.h.
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
  bool include_zero = true;                          // asymmetric: real zero has a code, as padding and ReLU want
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

class KVANT_API Observer {
 public:
  static Result<Observer> create(const ObserverDescriptor& descriptor);

  // Adds a batch, by row strides as in tensor.h. A batch without elements changes nothing, and neither does one that is
  // refused. Only a stream that fails (Internal) in the middle of counting leaves a state that cannot be trusted; then
  // every call returns that status until reset(). Allocates; not to be called from two threads at once.
  Status observe(const Stream& stream, const AnyRef& batch);

  // Adds what another observer with the same descriptor has seen; the same as observing its batches too. One of them
  // may have seen nothing.
  Status merge(const Observer& other);

  // From all that was seen. Refuses where nothing was: there is no range to speak of, nor a number of channels.
  Result<QuantizationParameters> parameters() const;

  // The ranges themselves, one for each segment, as range.h defines them. Empty before the first batch.
  const std::vector<double>& min() const;
  const std::vector<double>& max() const;
  std::vector<double> max_abs() const;

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
