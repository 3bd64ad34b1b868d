#include "quantize/weight_tile.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/float_environment.h"
#include "format/element_dtype.h"
#include "format/stored_scale.h"
#include "format/widen.h"
#include "kvant/elementwise.h"
#include "kvant/range.h"

namespace kvant::quantize {
namespace {

// What is added to a code on its way into a word.
std::int32_t shift_of(const WeightForm& form) {
  return form.scheme.storage == format::Storage::words ? format::word_offset(form.scheme.code) : 0;
}

// A code as it is stored: in words without a sign, alone in a byte with all its bits.
ElementKind stored_code(const WeightForm& form) {
  switch (form.scheme.storage) {
    case format::Storage::words: return is_packed(form.scheme.code) ? ElementKind::u4 : ElementKind::u8;
    case format::Storage::nibbles: return form.scheme.code;
    case format::Storage::elements: break;
  }
  return is_packed(form.scheme.code) ? ElementKind::s8 : form.scheme.code;
}

std::int64_t elements_in(std::size_t bytes, ElementKind kind) {
  return static_cast<std::int64_t>(bytes) / (bits_per_element(kind) / 8);
}

double get(std::span<const std::byte> from, bool wide, std::size_t i) {
  if (wide) {
    double value;
    std::memcpy(&value, from.data() + 8 * i, sizeof value);
    return value;
  }
  float value;
  std::memcpy(&value, from.data() + 4 * i, sizeof value);
  return static_cast<double>(value);
}

void put(float value, std::vector<std::byte>& to, bool wide, std::size_t i) {
  if (wide) {
    const auto as_double = static_cast<double>(value);
    std::memcpy(to.data() + 8 * i, &as_double, sizeof as_double);
  } else {
    std::memcpy(to.data() + 4 * i, &value, sizeof value);
  }
}

// Weights whose scales are searched at once: enough that a call costs nothing beside them, few enough for L1.
constexpr std::size_t kSearchedWeights = 2048;

// matrix[:, j] * factors[j] in place, rounded once. Of all plans the backward pass of dequantize is this product:
// dq = dy * scale, whatever the codes are.
Status multiply_columns(const Stream& stream, const AnyMut& matrix, const AnyRef& factors) {
  const auto plan = ElementwisePlan::select(stream, {.op = QuantizeKind::dequantize_backward,
                                                     .shape = matrix.shape,
                                                     .granularity = PerChannel{1},
                                                     .input = ElementKind::s8,
                                                     .output = matrix.kind});
  if (!plan.ok()) return plan.status();
  ElementwiseArgs args;
  args.grad_output = matrix;
  args.output = matrix;
  args.scale = AnyParameter(factors);
  return plan->run(stream, {}, args);
}

}  // namespace

Status WeightTile::smooth(std::span<std::byte> weights, ElementKind weight, std::span<const float> s) {
  const auto columns = static_cast<std::int64_t>(s.size());
  const Shape shape = {columns == 0 ? 0 : elements_in(weights.size(), weight) / columns, columns};
  AnyRef factors{s.data(), ElementKind::f32, {columns}, 0};
  if (weight == ElementKind::f64) {
    s_.assign(s.begin(), s.end());
    factors = {s_.data(), ElementKind::f64, {columns}, 0};
  }
  return multiply_columns(stream_, {weights.data(), weight, shape, 0}, factors);
}

Status WeightTile::ranges(std::span<const std::byte> weights, const WeightForm& form, const TileSegments& segments,
                          bool accumulate) {
  const ElementKind compute = scale_kind(form.weight);
  const auto plan = AnyRangePlan::select(
      stream_,
      {.shape = segments.shape, .scope = segments.granularity, .accumulate = accumulate, .input = form.weight});
  if (!plan.ok()) return plan.status();
  workspace_.resize(plan->workspace_size());
  const auto bytes = static_cast<std::size_t>(row_bytes(compute, segments.count));
  const Shape parameters = segments.granularity.kind() == GranularityKind::tensor ? Shape{} : Shape{segments.count};
  high_.resize(bytes);
  AnyRangeArgs args;
  args.input = {weights.data(), form.weight, segments.shape, 0};
  if (form.scheme.asymmetric) {
    low_.resize(bytes);
    args.min_out = {low_.data(), compute, parameters, 0};
    args.max_out = {high_.data(), compute, parameters, 0};
  } else {
    args.max_abs_out = {high_.data(), compute, parameters, 0};
  }
  return plan->run(stream_, {workspace_.data(), workspace_.size()}, args);
}

double WeightTile::largest(const WeightForm& form) const {
  const bool wide = form.weight == ElementKind::f64;
  double largest = 0;
  for (std::size_t i = 0; i < high_.size() / (wide ? 8 : 4); ++i) largest = std::max(largest, get(high_, wide, i));
  return largest;
}

void WeightTile::make_scales(const WeightForm& form, float global) {
  const base::DefaultFloatEnvironment environment;
  const bool wide = form.weight == ElementKind::f64, asymmetric = form.scheme.asymmetric;
  const std::size_t count = high_.size() / (wide ? 8 : 4);
  const CodeRange range = code_range(form.scheme.code);
  make_room_for_scales(form, count);
  for (std::size_t i = 0; i < count; ++i) {
    format::SavedScale made;
    if (asymmetric) {
      // A segment without finite weights has an empty range, which asymmetric_scale takes for zeros.
      made = format::asymmetric_scale(std::min(get(low_, wide, i), 0.0), std::max(get(high_, wide, i), 0.0), range.min,
                                      range.max, form.scale, wide);
    } else if (form.scale == ElementKind::e8m0) {
      made = format::power_scale(get(high_, wide, i), form.scheme.code);
    } else if (form.scale == ElementKind::e4m3) {
      made = format::scale_under(global, get(high_, wide, i), form.scheme.code);
    } else {
      made = format::symmetric_scale(get(high_, wide, i), form.scheme.code, form.scale,
                                     form.choice == format::ScaleChoice::minmax_ct);
    }
    keep_scale(form, i, made);
  }
}

void WeightTile::make_room_for_scales(const WeightForm& form, std::size_t count) {
  scales_.resize(count * (form.weight == ElementKind::f64 ? 8 : 4));
  stored_scales_.resize(count * static_cast<std::size_t>(row_bytes(form.scale, 1)));
  zero_points_.resize(form.scheme.asymmetric ? count : 0);
  shifted_.resize(zero_points_.size());
}

void WeightTile::keep_scale(const WeightForm& form, std::size_t i, const format::SavedScale& made) {
  put(made.scale, scales_, form.weight == ElementKind::f64, i);
  if (const auto width = static_cast<std::size_t>(row_bytes(form.scale, 1)); width == 1)
    stored_scales_[i] = static_cast<std::byte>(made.bits);
  else
    format::store(made.scale, form.scale, stored_scales_.data() + width * i);
  if (!form.scheme.asymmetric) return;
  zero_points_[i] = made.zero_point;
  shifted_[i] = made.zero_point + shift_of(form);
}

Status WeightTile::search_scales(std::span<const std::byte> weights, const WeightForm& form,
                                 const TileSegments& segments, std::span<const float> importance, float global) {
  if (!rounding_) {
    auto rounding = WeightRounding::select(stream_);
    if (!rounding.ok()) return rounding.status();
    rounding_ = std::move(rounding).value();
  }
  const base::DefaultFloatEnvironment environment;
  const auto count = static_cast<std::size_t>(segments.count), length = static_cast<std::size_t>(segments.shape[1]);
  const auto bytes = static_cast<std::size_t>(row_bytes(form.weight, segments.shape[1]));
  const WeightRounding::Form searched = {
      .code = form.scheme.code, .scale = form.scale, .asymmetric = form.scheme.asymmetric, .global = global};
  make_room_for_scales(form, count);
  // Segments of a row at once, which have the importance of its columns.
  const std::size_t in_row = importance.empty() ? count : importance.size() / length;
  const std::size_t at_once = std::max(std::size_t{1}, kSearchedWeights / std::max(length, std::size_t{1}));
  searched_weights_.resize(at_once * length);
  searched_scales_.resize(at_once);
  for (std::size_t i = 0; i < count;) {
    const std::size_t n = std::min(at_once, in_row - i % in_row);
    const std::span<float> searched_weights = std::span(searched_weights_).first(n * length);
    widen_weights(form.weight, weights.subspan(i * bytes, n * bytes), searched_weights);
    for (float& weight : searched_weights) weight = std::isfinite(weight) ? weight : 0;
    const float* const counts = importance.empty() ? nullptr : importance.data() + i % in_row * length;
    rounding_->best_scales(searched_weights_.data(), counts, length, n, searched, searched_scales_.data());
    for (std::size_t j = 0; j < n; ++j, ++i) {
      const WeightRounding::Scale& best = searched_scales_[j];
      keep_scale(form, i, {best.scale, best.zero_point, best.bits});
    }
  }
  return {};
}

std::span<const float> WeightTile::scales() const {
  return {reinterpret_cast<const float*>(scales_.data()), scales_.size() / sizeof(float)};
}

void WeightTile::set_scale(const WeightForm& form, float scale) {
  scales_.resize(form.weight == ElementKind::f64 ? 8 : 4);
  put(scale, scales_, form.weight == ElementKind::f64, 0);
}

Status WeightTile::codes(std::span<const std::byte> weights, const WeightForm& form, const TileSegments& segments,
                         std::span<std::byte> codes) const {
  const ElementKind code = stored_code(form);
  ElementwiseDescriptor descriptor{.op = QuantizeKind::quantize,
                                   .shape = segments.shape,
                                   .granularity = segments.granularity,
                                   .input = form.weight,
                                   .output = code};
  if (code != form.scheme.code && form.scheme.storage == format::Storage::elements) {
    descriptor.q_min = code_range(form.scheme.code).min;
    descriptor.q_max = code_range(form.scheme.code).max;
  }
  const auto plan = ElementwisePlan::select(stream_, descriptor);
  if (!plan.ok()) return plan.status();
  const Shape parameters = segments.granularity.kind() == GranularityKind::tensor ? Shape{} : Shape{segments.count};
  ElementwiseArgs args;
  args.input = {weights.data(), form.weight, segments.shape, 0};
  args.output = {codes.data(), code, segments.shape, 0};
  args.scale = AnyParameter(AnyRef{scales_.data(), scale_kind(form.weight), parameters, 0});
  if (form.scheme.asymmetric)
    args.zero_point = AnyParameter(AnyRef{shifted_.data(), ElementKind::s32, parameters, 0});
  else if (shift_of(form) != 0)
    args.zero_point = AnyParameter(shift_of(form));
  return plan->run(stream_, {}, args);
}

namespace {

// Where the bits of the exponent are all ones. Counted in blocks short enough for a narrow counter, which lets the
// compiler compare a whole register at a time.
template <class Word>
std::uint64_t count_where(std::span<const std::byte> weights, Word exponent) {
  constexpr std::size_t kBlock = 8192;
  std::uint64_t found = 0;
  const std::size_t count = weights.size() / sizeof(Word);
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t end = std::min(count, begin + kBlock);
    Word in_block = 0;
    for (std::size_t i = begin; i < end; ++i) {
      Word word;
      std::memcpy(&word, weights.data() + i * sizeof(Word), sizeof(Word));
      in_block = static_cast<Word>(in_block + ((word & exponent) == exponent ? 1 : 0));
    }
    found += in_block;
  }
  return found;
}

}  // namespace

void widen_weights(ElementKind kind, std::span<const std::byte> from, std::span<float> to) {
  if (kind != ElementKind::f64) return format::widen(kind, from.data(), to.size(), to.data());
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<float>(get(from, true, i));
}

std::uint64_t count_non_finite(std::span<const std::byte> weights, ElementKind weight) {
  switch (weight) {
    case ElementKind::f64: return count_where<std::uint64_t>(weights, 0x7FF0'0000'0000'0000);
    case ElementKind::f16: return count_where<std::uint16_t>(weights, 0x7C00);
    case ElementKind::bf16: return count_where<std::uint16_t>(weights, 0x7F80);
    default: return count_where<std::uint32_t>(weights, 0x7F80'0000);
  }
}

}  // namespace kvant::quantize
