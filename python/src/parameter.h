// Scales, zero points and other small vectors: numbers or arrays of any reasonable dtype, in the one that plans take.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>

#include "array.h"
#include "kvant/element.h"
#include "kvant/elementwise.h"
#include "kvant/tensor.h"

namespace kvant::python {

// A value for AnyParameter, and what keeps its memory alive.
struct ParameterInput {
  AnyParameter value;
  py::object kept;
};

// The kind that scales of an element-wise operator have: that of whichever side of it is floating point.
constexpr ElementKind scale_kind_of(const ElementwiseDescriptor& descriptor) {
  return scale_kind(is_float(descriptor.input) ? descriptor.input : descriptor.output);
}

// `kind` is f32 or f64; floating-point arrays of other kinds are converted (to f32 by rounding to nearest even).
// StoredScales: e4m3 and e8m0, as checkpoints have them, stay as they are where the operator takes them.
// one_for_all: an array of one element counts as a number, which plans check; otherwise a number is an array without
// dimensions, as the scale of the only token of a vector is.
enum class StoredScales : std::uint8_t { refused, allowed };
ParameterInput scale_input(py::handle object, const char* argument, ElementKind kind, bool one_for_all,
                           StoredScales stored = StoredScales::refused);
// One number over scales of e4m3. None: not given.
ParameterInput global_scale_input(py::handle object);
// Integers of any width; what int32 does not hold becomes its nearest limit (plans take up to ±2^23). None is 0.
ParameterInput zero_point_input(py::handle object, const char* argument);
// A floating-point array as `kind`, f32 or f64, converted if need be; `also` is a kind that may stay as it is.
// None: no view.
Input vector_input(py::handle object, const char* argument, ElementKind kind, ElementKind also);

// For plans: numbers are converted, arrays must be what they are.
ParameterInput plan_scale(py::handle object, const char* argument, ElementKind kind);
ParameterInput plan_global_scale(py::handle object);
ParameterInput plan_zero_point(py::handle object, const char* argument);

}  // namespace kvant::python
