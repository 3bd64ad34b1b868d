// The front desk of smoothing, and its loops over channels. What is as large as a weight is left to plans: the maxima
// of its columns to ranges, its product with s to multiply_channels.h. The formulas are in semantics/smoothing.h.
#include "kvant/smoothing.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/float_environment.h"
#include "base/refuse.h"
#include "core/element_names.h"
#include "kvant/range.h"
#include "ops/multiply_channels.h"
#include "ops/overlap.h"
#include "ops/preference.h"
#include "ops/views.h"
#include "semantics/half.h"
#include "semantics/one_number.h"
#include "semantics/smoothing.h"

namespace kvant {
namespace {

using base::invalid_problem;
using base::unsupported;

// A view and its name in sentences, such as "weights[1]".
struct Operand {
  std::string name;
  AnyRef view;
};

template <class View>
std::vector<Operand> named_weights(std::span<const View> weights) {
  std::vector<Operand> operands;
  operands.reserve(weights.size());
  for (const View& weight : weights) operands.push_back({base::text("weights[{}]", operands.size()), weight});
  return operands;
}

// f(std::type_identity<T>()) for the floating-point type T of that kind.
template <class Function>
auto with_float_type(ElementKind kind, const Function& f) {
  switch (kind) {
    case ElementKind::f64: return f(std::type_identity<double>());
    case ElementKind::f16: return f(std::type_identity<Half>());
    case ElementKind::bf16: return f(std::type_identity<BFloat16>());
    default: return f(std::type_identity<float>());
  }
}

// ---- Checks of the views --------------------------------------------------------------------------------------

Status check_float(const char* who, const Operand& o) {
  if (is_float(o.view.kind)) return {};
  return unsupported("{}: {} has element {}, must be one of {}", who, o.name, name(o.view.kind),
                     core::names_of(ElementClass::real));
}

Status check_f32(const char* who, const Operand& o) {
  if (o.view.kind == ElementKind::f32) return {};
  return unsupported("{}: {} has element {}, must be f32", who, o.name, name(o.view.kind));
}

// Of a shape whose elements can be counted.
std::int64_t rows_of(const AnyRef& view) {
  const std::int64_t elements = *view.shape.element_count();
  return elements == 0 ? 0 : elements / view.shape.row_length();
}

// Sizes, stride and address, whatever the shape.
Status check_memory(const char* who, const Operand& o) {
  const auto sizes =
      ops::checked_parameter_shape([&] { return base::text("{}: {}", who, o.name); }, o.view.shape, PerTensor{});
  if (!sizes.ok()) return sizes.status();
  return ops::check_view(who, o.name.c_str(), o.view, o.view.kind, o.view.shape, rows_of(o.view));
}

// The tensor whose size says how many channels there are.
Status check_first(const char* who, const Operand& o) {
  if (Status status = check_f32(who, o); !status.ok()) return status;
  if (o.view.shape.rank() != 1)
    return invalid_problem("{}: {} has shape {}, must have one dimension", who, o.name, o.view.shape.to_string());
  return check_memory(who, o);
}

Status check_vector(const char* who, const Operand& o, std::int64_t channels) {
  if (o.view.shape == Shape{channels}) return check_memory(who, o);
  return invalid_problem("{}: {} has shape {}, must have [{}]", who, o.name, o.view.shape.to_string(), channels);
}

Status check_weights(const char* who, std::span<const Operand> weights, std::int64_t channels) {
  if (weights.empty()) return invalid_problem("{}: there are 0 weights, must be at least 1", who);
  for (const Operand& o : weights) {
    if (Status status = check_float(who, o); !status.ok()) return status;
    if (o.view.shape.rank() != 2)
      return invalid_problem("{}: {} has shape {}, must have two dimensions", who, o.name, o.view.shape.to_string());
    if (o.view.shape[1] != channels)
      return invalid_problem("{}: {} has shape {}, must have {} columns", who, o.name, o.view.shape.to_string(),
                             channels);
    if (Status status = check_memory(who, o); !status.ok()) return status;
  }
  return {};
}

Status check_overlap(const char* who, const Operand& written, const Operand& other) {
  if (!ops::overlap(ops::extent(written.view, rows_of(written.view)), ops::extent(other.view, rows_of(other.view))))
    return {};
  return invalid_problem("{}: {} overlaps {}", who, written.name, other.name);
}

// ---- Channels -------------------------------------------------------------------------------------------------

// A copy that is aligned.
std::vector<float> read_channels(const AnyRef& view) {
  std::vector<float> values(static_cast<std::size_t>(view.shape[0]));
  const auto* bytes = static_cast<const std::byte*>(view.data);
  std::copy_n(bytes, values.size() * sizeof(float), reinterpret_cast<std::byte*>(values.data()));
  return values;
}

// max|W_j| of every column, in the type that products with it are formed in.
template <class C>
Result<std::vector<C>> column_maxima(const Stream& stream, const AnyRef& weight) {
  const auto plan = AnyRangePlan::select(stream, {.shape = weight.shape, .scope = PerChannel{1}, .input = weight.kind});
  if (!plan.ok()) return plan.status();
  std::vector<C> maxima(static_cast<std::size_t>(weight.shape[1]));
  std::vector<std::byte> scratch(plan->workspace_size());
  const Status status = plan->run(stream, {scratch.data(), scratch.size()},
                                  {.input = weight, .max_abs_out = {maxima.data(), kind_of<C>, {weight.shape[1]}, 0}});
  if (!status.ok()) return status;
  return maxima;
}

// ---- smooth_scales --------------------------------------------------------------------------------------------

constexpr const char* kFind = "smooth_scales";

Status check_alpha(double alpha) {
  const base::DefaultFloatEnvironment environment;
  if (alpha >= 0 && alpha <= 1) return {};
  return invalid_problem("{}: alpha {} must lie in [0, 1]", kFind, alpha);
}

Status check_find(const Operand& act_absmax, std::span<const Operand> weights, double alpha, const Operand& scales) {
  if (Status status = check_first(kFind, act_absmax); !status.ok()) return status;
  const std::int64_t channels = act_absmax.view.shape[0];
  if (Status status = check_weights(kFind, weights, channels); !status.ok()) return status;
  if (Status status = check_alpha(alpha); !status.ok()) return status;
  if (Status status = check_f32(kFind, scales); !status.ok()) return status;
  if (Status status = check_vector(kFind, scales, channels); !status.ok()) return status;
  if (scales.view.data != act_absmax.view.data)
    if (Status status = check_overlap(kFind, scales, act_absmax); !status.ok()) return status;
  for (const Operand& weight : weights)
    if (Status status = check_overlap(kFind, scales, weight); !status.ok()) return status;
  return {};
}

Status check_act_absmax(const std::vector<float>& x) {
  const base::DefaultFloatEnvironment environment;
  for (std::size_t j = 0; j < x.size(); ++j)
    if (!(std::isfinite(x[j]) && x[j] >= 0))
      return invalid_problem("{}: act_absmax[{}] is {}, must be finite and not negative", kFind, j, x[j]);
  return {};
}

template <class C>
Status extend_maxima(const Stream& stream, const AnyRef& weight, std::vector<double>& w) {
  const auto maxima = column_maxima<C>(stream, weight);
  if (!maxima.ok()) return maxima.status();
  const base::DefaultFloatEnvironment environment;  // widening a denormal would raise the caller's flag
  for (std::size_t j = 0; j < w.size(); ++j) w[j] = std::max(w[j], static_cast<double>((*maxima)[j]));
  return {};
}

Status find_scales(const Stream& stream, const TensorRef<float>& act_absmax, std::span<const AnyRef> weights,
                   double alpha, const TensorMut<float>& scales) {
  if (Status s = ops::check_cpu_stream(kFind, stream, "smooth weights before they go to the GPU"); !s.ok()) return s;
  if (const auto target = ops::target_of(kFind, stream, {}); !target.ok()) return target.status();
  if (Status status = check_find({"act_absmax", act_absmax}, named_weights(weights), alpha, {"scales", scales});
      !status.ok())
    return status;
  std::vector<float> s = read_channels(act_absmax);
  if (Status status = check_act_absmax(s); !status.ok()) return status;
  std::vector<double> w(s.size(), semantics::kMinSmoothing);
  for (const AnyRef& weight : weights) {
    Status status = weight.kind == ElementKind::f64 ? extend_maxima<double>(stream, weight, w)
                                                    : extend_maxima<float>(stream, weight, w);
    if (!status.ok()) return status;
  }
  const base::DefaultFloatEnvironment environment;
  for (std::size_t j = 0; j < s.size(); ++j) s[j] = semantics::smooth_scale(static_cast<double>(s[j]), w[j], alpha);
  std::copy_n(reinterpret_cast<const std::byte*>(s.data()), s.size() * sizeof(float),
              static_cast<std::byte*>(scales.data));
  return {};
}

// ---- apply_smoothing ------------------------------------------------------------------------------------------

constexpr const char* kApply = "apply_smoothing";

Status check_apply(const Operand& scales, std::span<const Operand> norms, std::span<const Operand> weights) {
  if (Status status = check_first(kApply, scales); !status.ok()) return status;
  const std::int64_t channels = scales.view.shape[0];
  for (const Operand& norm : norms) {
    if (Status status = check_float(kApply, norm); !status.ok()) return status;
    if (Status status = check_vector(kApply, norm, channels); !status.ok()) return status;
  }
  if (Status status = check_weights(kApply, weights, channels); !status.ok()) return status;
  std::vector<const Operand*> others = {&scales};
  for (const std::span<const Operand> some : {norms, weights})
    for (const Operand& written : some) {
      for (const Operand* other : others)
        if (Status status = check_overlap(kApply, written, *other); !status.ok()) return status;
      others.push_back(&written);
    }
  return {};
}

Status check_scales(const std::vector<float>& s) {
  const base::DefaultFloatEnvironment environment;
  for (std::size_t j = 0; j < s.size(); ++j)
    if (!(std::isfinite(s[j]) && s[j] > 0))
      return invalid_problem("{}: scales[{}] is {}, must be finite and positive", kApply, j, s[j]);
  return {};
}

template <class T>
using LanesOf = semantics::OneNumber<compute_t<T>>;

// norm[j] / s_j, as the bytes of the whole tensor.
template <class T>
Result<std::vector<std::byte>> quotients(const Operand& norm, const std::vector<float>& s) {
  const base::DefaultFloatEnvironment environment;
  const auto* from = static_cast<const std::byte*>(norm.view.data);
  std::vector<std::byte> bytes(from, from + s.size() * sizeof(T));
  for (std::size_t j = 0; j < s.size(); ++j) {
    const compute_t<T> value = semantics::widen(ops::read_unaligned<T>(&bytes[j * sizeof(T)]));
    if (!std::isfinite(value)) continue;
    const T quotient = semantics::narrow<T>(semantics::smoothed<LanesOf<T>>(value, static_cast<compute_t<T>>(s[j])));
    if (!std::isfinite(semantics::widen(quotient)))
      return invalid_problem("{}: {} would overflow {} in channel {}: {} divided by scale {}", kApply, norm.name,
                             name(norm.view.kind), j, value, s[j]);
    std::memcpy(&bytes[j * sizeof(T)], &quotient, sizeof(T));
  }
  return bytes;
}

// Rounding keeps the order, so the largest magnitude of a column overflows if any does.
template <class T>
Status check_products(const Stream& stream, const Operand& weight, const std::vector<float>& s) {
  using C = compute_t<T>;
  const auto maxima = column_maxima<C>(stream, weight.view);
  if (!maxima.ok()) return maxima.status();
  const base::DefaultFloatEnvironment environment;
  for (std::size_t j = 0; j < s.size(); ++j) {
    const C magnitude = (*maxima)[j];
    const C product = semantics::smoothed_weight<LanesOf<T>>(magnitude, static_cast<C>(s[j]));
    if (!std::isfinite(semantics::widen(semantics::narrow<T>(product))))
      return invalid_problem("{}: {} would overflow {} in channel {}: magnitude {} times scale {}", kApply, weight.name,
                             name(weight.view.kind), j, magnitude, s[j]);
  }
  return {};
}

Result<std::vector<std::vector<std::byte>>> all_quotients(std::span<const Operand> norms, const std::vector<float>& s) {
  std::vector<std::vector<std::byte>> all;
  for (const Operand& norm : norms) {
    auto one =
        with_float_type(norm.view.kind, [&](auto type) { return quotients<typename decltype(type)::type>(norm, s); });
    if (!one.ok()) return one.status();
    all.push_back(*std::move(one));
  }
  return all;
}

// W[:, j] * s_j in place. Plans for all weights are there before the first of them is written.
class Products {
 public:
  explicit Products(const std::vector<float>& s) : f32_(s) {
    const base::DefaultFloatEnvironment environment;  // widening would flush denormals
    f64_.assign(s.begin(), s.end());
  }

  Status prepare(const Stream& stream, std::span<const Operand> weights) {
    for (const Operand& weight : weights) {
      Status status = with_float_type(weight.view.kind, [&](auto type) {
        return check_products<typename decltype(type)::type>(stream, weight, f32_);
      });
      if (!status.ok()) return status;
      const auto plan = ops::MultiplyChannelsPlan::select(stream, weight.view.shape, 1, weight.view.kind);
      if (!plan.ok()) return plan.status();
      plans_.push_back(*plan);
    }
    return {};
  }

  Status write(const Stream& stream, std::span<const AnyMut> weights) const {
    for (std::size_t i = 0; i < weights.size(); ++i)
      if (Status status = plans_[i].run(stream, weights[i], scales(weights[i].kind)); !status.ok()) return status;
    return {};
  }

 private:
  AnyRef scales(ElementKind weight) const {
    const Shape shape = {static_cast<std::int64_t>(f32_.size())};
    return weight == ElementKind::f64 ? AnyRef{f64_.data(), ElementKind::f64, shape, 0}
                                      : AnyRef{f32_.data(), ElementKind::f32, shape, 0};
  }

  const std::vector<float>& f32_;
  std::vector<double> f64_;
  std::vector<ops::MultiplyChannelsPlan> plans_;
};

// What can be refused or run out of memory comes first. Once writing has begun, only a stream whose threads fail stops
// it.
Status fold(const Stream& stream, const TensorRef<float>& scales, const AnyMut& norm_weight, const AnyMut& norm_bias,
            std::span<const AnyMut> weights) {
  if (Status s = ops::check_cpu_stream(kApply, stream, "smooth weights before they go to the GPU"); !s.ok()) return s;
  if (const auto target = ops::target_of(kApply, stream, {}); !target.ok()) return target.status();
  std::vector<Operand> norms = {{"norm_weight", norm_weight}};
  if (norm_bias.data != nullptr) norms.push_back({"norm_bias", norm_bias});
  const std::vector<Operand> weight_operands = named_weights(weights);
  if (Status status = check_apply({"scales", scales}, norms, weight_operands); !status.ok()) return status;
  const std::vector<float> s = read_channels(scales);
  if (Status status = check_scales(s); !status.ok()) return status;
  const auto folded = all_quotients(norms, s);
  if (!folded.ok()) return folded.status();
  Products products(s);
  if (Status status = products.prepare(stream, weight_operands); !status.ok()) return status;

  if (Status status = products.write(stream, weights); !status.ok()) return status;
  void* const targets[] = {norm_weight.data, norm_bias.data};
  for (std::size_t i = 0; i < folded->size(); ++i)
    std::copy((*folded)[i].begin(), (*folded)[i].end(), static_cast<std::byte*>(targets[i]));
  return {};
}

Status out_of_memory(const char* who, const AnyRef& channels) {
  return base::refuse(StatusCode::Internal, "{}: out of memory for {} channels", who, channels.shape[0]);
}

}  // namespace

Status smooth_scales(const Stream& stream, const TensorRef<float>& act_absmax, std::span<const AnyRef> weights,
                     double alpha, const TensorMut<float>& scales) {
  try {
    return find_scales(stream, act_absmax, weights, alpha, scales);
  } catch (const std::bad_alloc&) {
    return out_of_memory(kFind, act_absmax);
  }
}

Status apply_smoothing(const Stream& stream, const TensorRef<float>& scales, const AnyMut& norm_weight,
                       const AnyMut& norm_bias, std::span<const AnyMut> weights) {
  try {
    return fold(stream, scales, norm_weight, norm_bias, weights);
  } catch (const std::bad_alloc&) {
    return out_of_memory(kApply, scales);
  }
}

}  // namespace kvant
