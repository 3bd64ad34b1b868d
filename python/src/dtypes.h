// Element kinds as dtypes of numpy and back. ml_dtypes adds to numpy what it lacks: bfloat16, float8, float4 and
// integers of less than eight bits (the last two with one element to a byte).
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>

#include "kvant/element.h"

namespace kvant::python {

namespace py = pybind11;

// What results are made for: the library that the argument came from.
enum class Flavor : std::uint8_t {
  numpy,
  ml_dtypes,  // numpy with ml_dtypes' bfloat16
  torch,
};

// Codes and scales that numpy itself has no dtype for: packed ones, and eight bits that are no integer. A PackedArray
// holds them.
constexpr bool is_foreign_to_numpy(ElementKind kind) {
  return is_packed(kind) || has_float_grid(kind) || info(kind).element_class == ElementClass::scale;
}

// The kind of elements that a dtype stands for, nothing if kvant has none. numpy's uint16 is `uint16`: bf16 among
// floats, u16 among codes.
std::optional<ElementKind> kind_of_dtype(const py::dtype& dtype, ElementKind uint16, Flavor& flavor);
// The same for dtypes that ml_dtypes registers, by its exact names; its float8_e4m3 and float8_e4m3fnuz, for example,
// are other formats than float8_e4m3fn.
std::optional<ElementKind> ml_dtypes_kind(const py::dtype& dtype);

// The dtype of numpy's that holds elements of a kind in memory: its own, else uint16 or uint8.
py::dtype memory_dtype(ElementKind kind);
// The dtype of results that are plain arrays. bfloat16 is ml_dtypes' own with that flavor; what is foreign to numpy is
// ml_dtypes' too, and nothing where that is not installed.
std::optional<py::dtype> result_dtype(ElementKind kind, Flavor flavor);

}  // namespace kvant::python
