// The names of the public enumerations, and of kernels.
#include "base/text.h"

#include <string>
#include <string_view>

#include "kvant/dynamic_range.h"
#include "kvant/element.h"
#include "kvant/granularity.h"
#include "kvant/observer.h"
#include "kvant/plan.h"
#include "kvant/sku.h"
#include "kvant/status.h"
#include "kvant/version.h"

namespace kvant {

std::string_view version() { return KVANT_VERSION; }

std::string_view name(StatusCode code) {
  switch (code) {
    case StatusCode::Ok: return "Ok";
    case StatusCode::InvalidProblem: return "InvalidProblem";
    case StatusCode::Unsupported: return "Unsupported";
    case StatusCode::MisalignedOperand: return "MisalignedOperand";
    case StatusCode::WorkspaceTooSmall: return "WorkspaceTooSmall";
    case StatusCode::DeviceUnavailable: return "DeviceUnavailable";
    case StatusCode::Internal: return "Internal";
  }
  return "unknown";
}

std::string_view name(GranularityKind kind) {
  switch (kind) {
    case GranularityKind::tensor: return "tensor";
    case GranularityKind::channel: return "channel";
    case GranularityKind::token: return "token";
    case GranularityKind::group: return "group";
    case GranularityKind::block: return "block";
  }
  return "unknown";
}

std::string_view name(QuantizeKind op) {
  if (is_elementwise(op)) return elementwise_operator(op).name;
  switch (op) {
    case QuantizeKind::range: return "range";
    case QuantizeKind::dynamic_range_quantize: return "dynamic_range_quantize";
    case QuantizeKind::w8a8_linear: return "w8a8_linear";
    case QuantizeKind::smoothquant_linear: return "smoothquant_linear";
    case QuantizeKind::quantized_linear: return "quantized_linear";
    case QuantizeKind::error_sums: return "error_sums";
    case QuantizeKind::f32_linear: return "f32_linear";
    case QuantizeKind::network_steps: return "network_steps";
    case QuantizeKind::weight_rounding: return "weight_rounding";
    default: return "unknown";
  }
}

std::string_view name(BackendKind backend) {
  switch (backend) {
    case BackendKind::cpu: return "cpu";
    case BackendKind::cuda: return "cuda";
  }
  return "unknown";
}

std::string_view name(Numerics numerics) {
  switch (numerics) {
    case Numerics::exact: return "exact";
    case Numerics::reciprocal: return "reciprocal";
  }
  return "unknown";
}

std::string_view name(DynamicRangeMode mode) {
  switch (mode) {
    case DynamicRangeMode::symmetric: return "symmetric";
    case DynamicRangeMode::asymmetric: return "asymmetric";
  }
  return "unknown";
}

std::string_view name(MxRule rule) {
  switch (rule) {
    case MxRule::floor: return "floor";
    case MxRule::round_up: return "round_up";
  }
  return "unknown";
}

std::string_view name(ObserverKind kind) {
  switch (kind) {
    case ObserverKind::min_max: return "min_max";
    case ObserverKind::percentile: return "percentile";
    case ObserverKind::mse: return "mse";
  }
  return "unknown";
}

std::string KernelSku::name() const {
  std::string types(kvant::name(element));
  if (aux_element != element) types += base::text("_{}", kvant::name(aux_element));
  return base::text("{}_{}__{}", kvant::name(op), types, kvant::name(arch));
}

}  // namespace kvant
