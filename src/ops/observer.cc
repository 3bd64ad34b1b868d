// Static calibration: what batches come to (observer_counting.h), and the range that follows from it
// (observer_search.h). The contract is in include/kvant/observer.h.
#include "kvant/observer.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "base/float_environment.h"
#include "base/refuse.h"
#include "core/element_names.h"
#include "kvant/range.h"
#include "ops/code_range.h"
#include "ops/observer_counting.h"
#include "ops/observer_histogram.h"
#include "ops/observer_search.h"
#include "ops/preference.h"
#include "ops/views.h"
#include "semantics/dynamic_range.h"
#include "semantics/histogram.h"
#include "semantics/one_number.h"
#include "semantics/squared_error.h"

namespace kvant {
namespace {

using base::invalid_problem;
using base::unsupported;
using semantics::RangeRules;

constexpr int kMinBins = 16;
constexpr int kMaxBins = 1 << 20;

// 128 Ki channels, a large vocabulary, of 4096 bins take 4 GiB. Beyond 16 GiB the axis must be a mistake.
constexpr std::int64_t kMaxHistogramBytes = std::int64_t{1} << 34;

// ---- Ranges ---------------------------------------------------------------------------------------------------

struct Ranges {
  std::vector<double> min;
  std::vector<double> max;

  void extend(std::size_t i, const Ranges& more) {
    using Range = semantics::Range<semantics::OneNumber<double>>;
    const Range both = Range{min[i], max[i]}.with(Range{more.min[i], more.max[i]});
    min[i] = both.lo;
    max[i] = both.hi;
  }
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

// ---- Descriptors ----------------------------------------------------------------------------------------------

bool keeps_histograms(const ObserverDescriptor& d) { return d.kind != ObserverKind::min_max; }

constexpr const char* kObserver = "observer";

Result<RangeRules> checked_rules(const ObserverDescriptor& d) {
  const auto range = ops::checked_grid_range(kObserver, d.q_min, d.q_max, d.output);
  if (!range.ok()) return range.status();
  const bool symmetric = d.mode == DynamicRangeMode::symmetric;
  if (has_float_grid(d.output) && !symmetric)
    return invalid_problem("observer: asymmetric mode needs a zero point, and {} has none; use symmetric mode",
                           name(d.output));
  if (has_float_grid(d.output) && d.kind == ObserverKind::mse)
    return unsupported("observer: mse searches for integer codes, and {} is floating-point; use min_max or percentile",
                       name(d.output));
  if (symmetric && range->max <= 0)
    return invalid_problem("observer: symmetric mode divides by q_max, which is {} and must be positive", range->max);
  if (!symmetric && range->min == range->max)
    return invalid_problem("observer: asymmetric mode needs q_min below q_max, both are {}", range->min);
  return RangeRules{symmetric, d.include_zero, range->min, range->max};
}

Status check(const ObserverDescriptor& d) {
  if (d.scope.kind() != GranularityKind::tensor && d.scope.kind() != GranularityKind::channel)
    return unsupported(
        "observer: scope {} has no range that lasts beyond a batch; observe per tensor or per channel, or use a "
        "DynamicRangeQuantizePlan",
        name(d.scope.kind()));
  if (!is_float(d.input))
    return unsupported("observer: input element {} must be one of {}", name(d.input),
                       core::names_of(ElementClass::real));
  if (!is_code(d.output))
    return unsupported("observer: output element {} must be one of {}", name(d.output),
                       core::names_of(ElementClass::code));
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
  ops::Histograms histograms;
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
  ops::Histograms fresh = first && counts_bins ? ops::Histograms(count, descriptor.bins) : ops::Histograms();
  ops::Histograms& target = first ? fresh : histograms;

  ops::BatchCounting counting(batch, descriptor.scope, counts_bins ? &target : nullptr, stream.threads());

  if (counts_bins) {
    const base::DefaultFloatEnvironment environment;
    for (std::size_t i = 0; i < count; ++i)
      target.grow(i, semantics::exponent_above(ops::largest_magnitude(seen->min[i], seen->max[i])));
  }
  if (Status status = counting.run(stream); !status.ok()) return fault = status;

  ignored += counting.ignored();
  observed += *batch.shape.element_count() - counting.ignored();
  if (first) {
    ranges = *std::move(seen);
    histograms = std::move(fresh);
    return {};
  }
  const base::DefaultFloatEnvironment environment;
  for (std::size_t i = 0; i < count; ++i) ranges.extend(i, *seen);
  return {};
}

// C is the scale type of the input.
template <class C>
QuantizationParameters Observer::Impl::parameters() const {
  using L = semantics::OneNumber<C>;
  const base::DefaultFloatEnvironment environment;
  QuantizationParameters result;
  result.scale.reserve(segments());
  result.zero_point.reserve(segments());
  semantics::SquaredError<semantics::OneNumber<double>> squared_error;
  for (std::size_t i = 0; i < segments(); ++i) {
    const double min = ranges.min[i], max = ranges.max[i];
    semantics::Range<L> range{static_cast<C>(min), static_cast<C>(max)};
    const bool any = min <= max;
    if (any && descriptor.kind == ObserverKind::percentile)
      range = ops::percentile_range<C>(ops::Histogram(histograms, i), min, max, rules.symmetric, descriptor.percentile);
    if (any && descriptor.kind == ObserverKind::mse)
      range = ops::min_error_range<C>(ops::Histogram(histograms, i), min, max, rules, squared_error);
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

Result<Observer> Observer::resume(const ObserverDescriptor& descriptor, const ObserverHistogram& histogram, double min,
                                  double max) {
  auto made = create(descriptor);
  if (!made.ok()) return made;
  const base::DefaultFloatEnvironment environment;
  if (descriptor.scope.kind() != GranularityKind::tensor || !keeps_histograms(descriptor))
    return unsupported("observer: resume takes scope tensor and a kind that keeps a histogram, not {} and {}",
                       name(descriptor.scope.kind()), name(descriptor.kind));
  if (histogram.counts.size() != static_cast<std::size_t>(descriptor.bins))
    return invalid_problem("observer: the histogram has {} bins, the observer {}", histogram.counts.size(),
                           descriptor.bins);
  std::int64_t observed = histogram.zeros;
  for (std::size_t i = 0; i <= histogram.counts.size(); ++i) {
    const std::int64_t count = i == 0 ? histogram.zeros : histogram.counts[i - 1];
    if (count < 0 || (i > 0 && __builtin_add_overflow(observed, count, &observed)))
      return invalid_problem("observer: the histogram counts {} values, must be positive and fit 63 bits", count);
  }
  if (!(min <= max) || semantics::exponent_above(ops::largest_magnitude(min, max)) > histogram.exponent ||
      histogram.exponent < semantics::kMinBinExponent || histogram.exponent > 1024)
    return invalid_problem("observer: a histogram over 2^{} does not hold the range from {} to {}", histogram.exponent,
                           min, max);
  Impl& o = *made->impl_;
  try {
    o.histograms = ops::Histograms(1, descriptor.bins);
    o.ranges = {{min}, {max}};
  } catch (const std::bad_alloc&) {
    return o.out_of_memory(1);
  }
  o.histograms.set(0, histogram.exponent, histogram.counts, histogram.zeros);
  o.observed = observed;
  return made;
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
  const auto segment_shape = ops::checked_parameter_shape(kObserver, batch.shape, d.scope);
  if (!segment_shape.ok()) return segment_shape.status();
  const std::int64_t segments = *segment_shape->element_count(), elements = *batch.shape.element_count();
  if (Status status = check_segments("batch has", segments, o.segments()); !status.ok()) return status;
  const std::int64_t rows = elements == 0 ? 0 : elements / batch.shape.row_length();
  if (Status status = ops::check_view(kObserver, "batch", batch, d.input, batch.shape, rows); !status.ok())
    return status;
  if (elements == 0) return {};
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(histogram_bytes(d), segments, &bytes) || bytes > kMaxHistogramBytes)
    return invalid_problem("observer: histograms of {} channels and {} bins take {} bytes each, more than {} in total",
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
    o.ranges.extend(i, more.ranges);
    if (keeps_histograms(o.descriptor)) o.histograms.add(i, more.histograms);
  }
  o.observed += more.observed;
  o.ignored += more.ignored;
  return {};
}

Result<QuantizationParameters> Observer::parameters() const {
  if (!impl_->fault.ok()) return impl_->fault;
  if (impl_->segments() == 0) return invalid_problem("observer: no elements were observed, so there is no range");
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
    magnitudes.push_back(ops::largest_magnitude(impl_->ranges.min[i], impl_->ranges.max[i]));
  return magnitudes;
}

Result<ObserverHistogram> Observer::histogram(std::int64_t segment) const {
  if (!impl_->fault.ok()) return impl_->fault;
  if (!keeps_histograms(impl_->descriptor))
    return invalid_problem("observer: {} keeps no histogram", name(impl_->descriptor.kind));
  if (segment < 0 || static_cast<std::size_t>(segment) >= impl_->segments())
    return invalid_problem("observer: segment {} is not one of {} that were observed", segment, impl_->segments());
  const ops::Histogram kept(impl_->histograms, static_cast<std::size_t>(segment));
  ObserverHistogram histogram{.exponent = kept.exponent, .counts = {}, .zeros = kept.zeros()};
  try {
    for (std::int32_t s = -kept.bins.half; s < kept.bins.half; ++s) histogram.counts.push_back(kept.nonzeros(s));
  } catch (const std::bad_alloc&) {
    return impl_->out_of_memory(static_cast<std::int64_t>(impl_->segments()));
  }
  return histogram;
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
