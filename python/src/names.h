// Words and numbers that Python callers write: "int8", "token", axis=-1. What is not one of them is refused by name.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kvant/dynamic_range.h"
#include "kvant/element.h"
#include "kvant/granularity.h"
#include "kvant/observer.h"
#include "kvant/plan.h"
#include "kvant/sku.h"

namespace kvant::python {

namespace py = pybind11;

// What Python calls an element: "float32", "int4" and so on.
struct Dtype {
  ElementKind kind;
  std::string_view name;  // of a literal
};
const char* dtype_name(ElementKind kind);
// What callers can name, in the order of the documentation.
std::span<const Dtype> float_dtypes();
std::span<const Dtype> code_dtypes();

// A dtype as a string, a numpy dtype or type, or a torch dtype.
struct NamedKind {
  ElementKind kind;
  bool ml_dtypes = false;  // bfloat16 was asked for as ml_dtypes' own type
};
NamedKind float_kind(py::handle dtype, const char* argument = "dtype");
NamedKind code_kind(py::handle dtype, const char* argument = "dtype");

Numerics numerics_of(py::handle text);
DynamicRangeMode mode_of(py::handle text);
ObserverKind observer_kind_of(py::handle text);
std::optional<ArchSku> isa_of(py::handle text);  // None: the best that this machine runs

// scope None: what axis and group_size say. An axis or group size that the scope has no use for is refused.
Granularity granularity_of(py::handle scope, py::handle axis, py::handle group_size);

// An int (or what has __index__), never a float. `argument` is for the sentence.
std::int64_t integer(py::handle object, const char* argument);
std::int32_t integer32(py::handle object, const char* argument);
std::optional<std::int32_t> optional_integer32(py::handle object, const char* argument);
// An int or float (or what has __float__).
double number(py::handle object, const char* argument);
bool boolean(py::handle object, const char* argument);

}  // namespace kvant::python
