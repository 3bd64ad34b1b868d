#include "kvant/error_sums.h"

#include <cmath>

#include "core/error_sums_kernel.h"
#include "ops/preference.h"
#include "ops/registry.h"
#include "semantics/error_sums.h"

namespace kvant {
namespace {

constexpr const char* kErrorSums = "error_sums";

template <class T>
detail::CodedWeights stretch_of(const T* weights, const std::int8_t* codes, std::size_t count, float scale,
                                std::int32_t zero_point) {
  return {weights, codes, count, static_cast<double>(scale), zero_point};
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
ErrorSums::Loss ErrorSums::loss(const T* weights, const std::int8_t* codes, std::size_t count, float scale,
                                std::int32_t zero_point, int q_max) const {
  Loss loss;
  kernel<T>().loss(stretch_of(weights, codes, count, scale, zero_point), q_max, loss);
  if (std::isfinite(loss.sums.weights)) return loss;
  // A weight is not finite: once more without those, as if they were 0 and came back as 0.
  T finite[kMaxCount];
  std::int8_t finite_codes[kMaxCount];
  std::uint64_t left_out = 0, left_out_at_ends = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const bool keep = std::isfinite(weights[i]);
    finite[i] = keep ? weights[i] : T{0};
    finite_codes[i] = keep ? codes[i] : static_cast<std::int8_t>(zero_point);
    if (keep) continue;
    ++left_out;
    left_out_at_ends += zero_point <= -q_max || zero_point >= q_max ? 1u : 0u;
  }
  kernel<T>().loss(stretch_of(finite, finite_codes, count, scale, zero_point), q_max, loss);
  loss.at_ends -= left_out_at_ends;
  loss.non_finite = left_out;
  return loss;
}

template <class T>
ErrorSums::OutputLoss ErrorSums::output_loss(const T* weights, const std::int8_t* codes, std::size_t count, float scale,
                                             std::int32_t zero_point, const float* m, const float* n) const {
  OutputLoss loss;
  kernel<T>().output_loss(stretch_of(weights, codes, count, scale, zero_point), m, n, loss);
  return loss;
}

template <class T>
void ErrorSums::error_magnitudes(const T* weights, const std::int8_t* codes, std::size_t count, float scale,
                                 std::int32_t zero_point, double* magnitudes) const {
  kernel<T>().error_magnitudes(stretch_of(weights, codes, count, scale, zero_point), magnitudes);
}

template <class T>
std::size_t ErrorSums::place_of_error(const T* weights, const std::int8_t* codes, std::size_t count, float scale,
                                      std::int32_t zero_point, double largest) {
  for (std::size_t i = 0; i < count; ++i)
    if (std::fabs(semantics::code_error(static_cast<double>(weights[i]), static_cast<double>(scale),
                                        static_cast<double>(codes[i] - zero_point))) == largest)
      return i;
  return count;
}

template <class T>
void ErrorSums::add_cell_errors(const T* weights, const std::int8_t* codes, std::size_t count, float scale,
                                std::int32_t zero_point, std::size_t offset, std::size_t cell, double* errors) const {
  kernel<T>().add_cell_errors(stretch_of(weights, codes, count, scale, zero_point), offset, cell, errors);
}

template <class T>
void ErrorSums::count_on_grid(const T* weights, std::size_t count, float scale, std::int32_t zero_point, int first_code,
                              int bins_per_code, std::size_t bins, std::uint64_t* counts) const {
  const detail::Grid grid{scale,
                          static_cast<float>(zero_point),
                          static_cast<float>(first_code) - 0.5f,
                          static_cast<float>(bins_per_code),
                          bins,
                          counts};
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

template ErrorSums::Loss ErrorSums::loss(const float*, const std::int8_t*, std::size_t, float, std::int32_t, int) const;
template ErrorSums::OutputLoss ErrorSums::output_loss(const float*, const std::int8_t*, std::size_t, float,
                                                      std::int32_t, const float*, const float*) const;
template void ErrorSums::error_magnitudes(const float*, const std::int8_t*, std::size_t, float, std::int32_t,
                                          double*) const;
template std::size_t ErrorSums::place_of_error(const float*, const std::int8_t*, std::size_t, float, std::int32_t,
                                               double);
template void ErrorSums::add_cell_errors(const float*, const std::int8_t*, std::size_t, float, std::int32_t,
                                         std::size_t, std::size_t, double*) const;
template void ErrorSums::count_on_grid(const float*, std::size_t, float, std::int32_t, int, int, std::size_t,
                                       std::uint64_t*) const;
template void ErrorSums::raise_to_magnitudes(const float*, std::size_t, float*) const;
template ErrorSums::Values ErrorSums::values(const float*, std::size_t) const;
template ErrorSums::Loss ErrorSums::loss(const double*, const std::int8_t*, std::size_t, float, std::int32_t,
                                         int) const;
template ErrorSums::OutputLoss ErrorSums::output_loss(const double*, const std::int8_t*, std::size_t, float,
                                                      std::int32_t, const float*, const float*) const;
template void ErrorSums::error_magnitudes(const double*, const std::int8_t*, std::size_t, float, std::int32_t,
                                          double*) const;
template std::size_t ErrorSums::place_of_error(const double*, const std::int8_t*, std::size_t, float, std::int32_t,
                                               double);
template void ErrorSums::add_cell_errors(const double*, const std::int8_t*, std::size_t, float, std::int32_t,
                                         std::size_t, std::size_t, double*) const;
template void ErrorSums::count_on_grid(const double*, std::size_t, float, std::int32_t, int, int, std::size_t,
                                       std::uint64_t*) const;
template void ErrorSums::raise_to_magnitudes(const double*, std::size_t, float*) const;
template ErrorSums::Values ErrorSums::values(const double*, std::size_t) const;

}  // namespace kvant
