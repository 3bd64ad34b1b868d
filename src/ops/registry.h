// Every kernel of this build, in the order of preference: select() takes the first that serves the problem and the
// machine. Tests and benchmarks walk the same lists, so a new kernel is covered without being named.
#pragma once

#include <optional>
#include <span>

#include "core/device_kernel.h"
#include "core/dynamic_range_kernel.h"
#include "core/elementwise_kernel.h"
#include "core/f32_linear_kernel.h"
#include "core/linear_kernel.h"
#include "core/range_kernel.h"
#include "kvant/export.h"
#include "ops/preference.h"

namespace kvant::ops {

KVANT_API std::span<const detail::ElementwiseKernel* const> elementwise_kernels();
KVANT_API std::span<const detail::RangeKernel* const> range_kernels();
KVANT_API std::span<const detail::DynamicRangeKernel* const> dynamic_range_kernels();
std::span<const detail::LinearKernel* const> linear_kernels();
std::span<const detail::F32LinearKernel* const> f32_linear_kernels();

// The kernel of the CPU for an operator and its element kinds, on the instruction set asked for or on the best that
// this machine runs. Null if there is none, or if the target is another backend.
const detail::ElementwiseKernel* find_elementwise_kernel(QuantizeKind op, ElementKind element, ElementKind aux_element,
                                                         const Target& target);
const detail::DynamicRangeKernel* find_dynamic_range_kernel(ElementKind element, ElementKind aux_element,
                                                            const Target& target);
const detail::RangeKernel* find_range_kernel(ElementKind element, const Target& target);
const detail::LinearKernel* find_linear_kernel(ElementKind output, const Target& target);
const detail::F32LinearKernel* find_f32_linear_kernel(ElementKind weight, const Target& target);

// The same of a GPU's.
const detail::DeviceElementwiseKernel* find_device_elementwise_kernel(QuantizeKind op, ElementKind element,
                                                                      ElementKind aux_element, const Target& target);
const detail::DeviceDynamicRangeKernel* find_device_dynamic_range_kernel(ElementKind element, ElementKind aux_element,
                                                                         const Target& target);
const detail::DeviceRangeKernel* find_device_range_kernel(ElementKind element, const Target& target);
const detail::DeviceLinearKernel* find_device_linear_kernel(ElementKind output, const Target& target);

}  // namespace kvant::ops
