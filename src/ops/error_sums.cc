#include "kvant/error_sums.h"

#include <cmath>

#include "core/error_sums_kernel.h"
#include "ops/preference.h"
#include "ops/registry.h"
#include "semantics/code_numbers.h"
#include "semantics/error_sums.h"
#include "semantics/float_grid.h"

namespace kvant {
namespace {

constexpr const char* kErrorSums = "error_sums";

template <class T>
detail::CodedWeights stretch_of(const T* weights, const ErrorSums::Codes& c) {
  const bool floating = has_float_grid(c.code);
  const semantics::FloatGrid grid = floating ? semantics::float_grid(c.code, true) : semantics::FloatGrid{};
  return {weights,
          c.codes,
          c.count,
          static_cast<double>(c.scale),
          c.zero_point,
          semantics::numbers_of(c.code),
          static_cast<std::int8_t>(floating ? grid.magnitude_mask : -1),
          static_cast<std::int8_t>(floating ? grid.max_code : code_range(c.code).max)};
}

}  // namespace

ErrorSums::Sums& ErrorSums::Sums::operator+=(const Sums& other) {
  weights += other.weights;
  errors += other.errors;
  products += other.products;
  values += other.values;
  return *this;
}

ErrorSums::OutputLoss& ErrorSums::OutputLoss::operator+=(const OutputLoss& other) {
  outputs += other.outputs;
  weight_errors += other.weight_errors;
  input_errors += other.input_errors;
  return *this;
}

Result<ErrorSums> ErrorSums::select(const Stream& stream, const PlanPreference& preference) {
  if (Status s = ops::check_cpu_stream(kErrorSums, stream, "copy the weights to the host"); !s.ok()) return s;
  const auto target = ops::target_of(kErrorSums, stream, preference);
  if (!target.ok()) return target.status();
  const auto find = [&](ElementKind element) {
    return ops::select_kernel<detail::ErrorSumsKernel>(QuantizeKind::error_sums, element, ElementKind::f64, *target)
        .kernel;
  };
  return ErrorSums(find(ElementKind::f32), find(ElementKind::f64));
}

KernelSku ErrorSums::sku() const { return f32_->sku; }

template <>
const detail::ErrorSumsKernel& ErrorSums::kernel<float>() const {
  return *f32_;
}
template <>
const detail::ErrorSumsKernel& ErrorSums::kernel<double>() const {
  return *f64_;
}

template <class T>
ErrorSums::Loss ErrorSums::loss(const T* weights, const Codes& c) const {
  Loss loss;
  const detail::CodedWeights stretch = stretch_of(weights, c);
  kernel<T>().loss(stretch, loss);
  if (std::isfinite(loss.sums.weights)) return loss;
  // A weight is not finite: once more without those, as if they were 0 and came back as 0.
  T finite[kMaxCount];
  std::int8_t finite_codes[kMaxCount];
  const auto zero = static_cast<std::int8_t>(c.zero_point);
  const bool zero_is_end = zero <= -stretch.largest || zero >= stretch.largest;
  std::uint64_t left_out = 0;
  for (std::size_t i = 0; i < c.count; ++i) {
    const bool keep = std::isfinite(weights[i]);
    finite[i] = keep ? weights[i] : T{0};
    finite_codes[i] = keep ? c.codes[i] : zero;
    left_out += keep ? 0u : 1u;
  }
  Codes without = c;
  without.codes = finite_codes;
  kernel<T>().loss(stretch_of(finite, without), loss);
  loss.at_ends -= zero_is_end ? left_out : 0;
  loss.non_finite = left_out;
  return loss;
}

template <class T>
ErrorSums::OutputLoss ErrorSums::output_loss(const T* weights, const Codes& c, const float* m, const float* n) const {
  OutputLoss loss;
  kernel<T>().output_loss(stretch_of(weights, c), m, n, loss);
  return loss;
}

template <class T>
void ErrorSums::error_magnitudes(const T* weights, const Codes& c, double* magnitudes) const {
  kernel<T>().error_magnitudes(stretch_of(weights, c), magnitudes);
}

double ErrorSums::value(const Codes& c, std::size_t i) {
  const float* const numbers = semantics::numbers_of(c.code);
  const double d = numbers != nullptr ? static_cast<double>(numbers[static_cast<std::uint8_t>(c.codes[i])])
                                      : static_cast<double>(c.codes[i] - c.zero_point);
  return static_cast<double>(c.scale) * d;
}

template <class T>
std::size_t ErrorSums::place_of_error(const T* weights, const Codes& c, double largest) {
  for (std::size_t i = 0; i < c.count; ++i)
    if (std::fabs(static_cast<double>(weights[i]) - value(c, i)) == largest) return i;
  return c.count;
}

template <class T>
void ErrorSums::add_cell_errors(const T* weights, const Codes& c, std::size_t offset, std::size_t cell,
                                double* errors) const {
  kernel<T>().add_cell_errors(stretch_of(weights, c), offset, cell, errors);
}

template <class T>
void ErrorSums::count_on_grid(const T* weights, std::size_t count, float scale, std::int32_t zero_point, int first_code,
                              float bins_per_code, std::size_t bins, std::uint64_t* counts) const {
  const detail::Grid grid{
      scale, static_cast<float>(zero_point), static_cast<float>(first_code) - 0.5f, bins_per_code, bins, counts};
  kernel<T>().count_on_grid(weights, count, grid);
}

template <class T>
void ErrorSums::raise_to_magnitudes(const T* weights, std::size_t count, float* largest) const {
  kernel<T>().raise_to_magnitudes(weights, count, largest);
}

template <class T>
ErrorSums::Values ErrorSums::values(const T* x, std::size_t count) const {
  Values values;
  kernel<T>().values(x, count, values);
  if (std::isfinite(values.squares)) return values;
  T finite[kMaxCount];
  std::uint64_t nan = 0, infinite = 0;
  for (std::size_t i = 0; i < count; ++i) {
    nan += std::isnan(x[i]) ? 1u : 0u;
    infinite += std::isinf(x[i]) ? 1u : 0u;
    finite[i] = std::isfinite(x[i]) ? x[i] : T{0};
  }
  kernel<T>().values(finite, count, values);
  values.nan = nan;
  values.infinite = infinite;
  values.zeros -= nan + infinite;
  return values;
}

template ErrorSums::Loss ErrorSums::loss(const float*, const Codes&) const;
template ErrorSums::OutputLoss ErrorSums::output_loss(const float*, const Codes&, const float*, const float*) const;
template void ErrorSums::error_magnitudes(const float*, const Codes&, double*) const;
template std::size_t ErrorSums::place_of_error(const float*, const Codes&, double);
template void ErrorSums::add_cell_errors(const float*, const Codes&, std::size_t, std::size_t, double*) const;
template void ErrorSums::count_on_grid(const float*, std::size_t, float, std::int32_t, int, float, std::size_t,
                                       std::uint64_t*) const;
template void ErrorSums::raise_to_magnitudes(const float*, std::size_t, float*) const;
template ErrorSums::Values ErrorSums::values(const float*, std::size_t) const;
template ErrorSums::Loss ErrorSums::loss(const double*, const Codes&) const;
template ErrorSums::OutputLoss ErrorSums::output_loss(const double*, const Codes&, const float*, const float*) const;
template void ErrorSums::error_magnitudes(const double*, const Codes&, double*) const;
template std::size_t ErrorSums::place_of_error(const double*, const Codes&, double);
template void ErrorSums::add_cell_errors(const double*, const Codes&, std::size_t, std::size_t, double*) const;
template void ErrorSums::count_on_grid(const double*, std::size_t, float, std::int32_t, int, float, std::size_t,
                                       std::uint64_t*) const;
template void ErrorSums::raise_to_magnitudes(const double*, std::size_t, float*) const;
template ErrorSums::Values ErrorSums::values(const double*, std::size_t) const;

}  // namespace kvant
