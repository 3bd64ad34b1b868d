#include "kvant/weight_rounding.h"

#include "core/weight_rounding_kernel.h"
#include "ops/preference.h"
#include "ops/registry.h"
#include "semantics/float_grid.h"
#include "semantics/stored_scale.h"

namespace kvant {
namespace {

constexpr const char* kWeightRounding = "weight_rounding";

template <ElementKind kCode>
constexpr detail::CodeNumbers kIntegerNumbers = {static_cast<float>(code_range(kCode).min),
                                                 static_cast<float>(code_range(kCode).max), nullptr,
                                                 semantics::largest_number(kCode), 0};
template <ElementKind kCode>
constexpr detail::CodeNumbers kGridNumbers = {0, 0, &semantics::kFloatGrid<kCode>, semantics::largest_number(kCode),
                                              info(kCode).format.max_exponent()};

const detail::CodeNumbers& numbers_of(ElementKind code) {
  switch (code) {
    case ElementKind::s8: return kIntegerNumbers<ElementKind::s8>;
    case ElementKind::s2: return kIntegerNumbers<ElementKind::s2>;
    case ElementKind::e4m3: return kGridNumbers<ElementKind::e4m3>;
    case ElementKind::e5m2: return kGridNumbers<ElementKind::e5m2>;
    case ElementKind::e2m1: return kGridNumbers<ElementKind::e2m1>;
    default: return kIntegerNumbers<ElementKind::s4>;
  }
}

}  // namespace

Result<WeightRounding> WeightRounding::select(const Stream& stream, const PlanPreference& preference) {
  if (Status s = ops::check_cpu_stream(kWeightRounding, stream, "copy the weights to the host"); !s.ok()) return s;
  const auto target = ops::target_of(kWeightRounding, stream, preference);
  if (!target.ok()) return target.status();
  return WeightRounding(ops::select_kernel<detail::WeightRoundingKernel>(QuantizeKind::weight_rounding,
                                                                         ElementKind::f32, ElementKind::f32, *target)
                            .kernel);
}

KernelSku WeightRounding::sku() const { return kernel_->sku; }

float WeightRounding::squared_error(const float* weights, const float* importance, std::size_t count, ElementKind code,
                                    const Scale& scale) const {
  return kernel_->squared_error({weights, importance, count}, numbers_of(code), scale.scale,
                                static_cast<float>(scale.zero_point));
}

WeightRounding::Fit WeightRounding::fit(const float* weights, const float* importance, std::size_t count,
                                        ElementKind code, const Scale& scale) const {
  return kernel_->fit({weights, importance, count}, numbers_of(code), scale.scale,
                      static_cast<float>(scale.zero_point));
}

WeightRounding::Scale WeightRounding::best_scale(const float* weights, const float* importance, std::size_t count,
                                                 const Form& form) const {
  Scale scale;
  best_scales(weights, importance, count, 1, form, &scale);
  return scale;
}

void WeightRounding::best_scales(const float* weights, const float* importance, std::size_t count, std::size_t segments,
                                 const Form& form, Scale* scales) const {
  kernel_->best_scales({weights, importance, count}, segments, numbers_of(form.code), form, scales);
}

void WeightRounding::settle(const Block& block, ElementKind code) const { kernel_->settle(block, numbers_of(code)); }

}  // namespace kvant
