// Words and numbers that Python callers write: "int8", "token", axis=-1. What is not one of them is refused by name.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kvant/dynamic_range.h"
#include "kvant/element.h"
#include "kvant/granularity.h"
#include "kvant/observer.h"
#include "kvant/plan.h"
#include "kvant/sku.h"
#include "signature.h"

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
// "int8, uint8 or int4"
std::string names_of(std::span<const Dtype> dtypes);

// A dtype as a string, a numpy dtype or type, or a torch dtype. Strings may leave out the "fn" and "fnu" at the end of
// the names of float8 and float4; dtypes of other libraries must be exactly these, since they have others without it.
struct NamedKind {
  ElementKind kind;
  bool ml_dtypes = false;  // bfloat16 was asked for as ml_dtypes' own type
};
NamedKind float_kind(py::handle dtype, const char* argument = "dtype");
NamedKind code_kind(py::handle dtype, const char* argument = "dtype");
// What a W8A8 linear layer can write: floating point, or codes of 8 bits.
NamedKind linear_output_kind(py::handle dtype, const char* argument = "dtype");
// What a PackedArray holds.
ElementKind packed_kind(py::handle dtype);
// None: nothing.
std::optional<ElementKind> grid_kind(py::handle dtype);
std::optional<ElementKind> scale_dtype(py::handle dtype);

Numerics numerics_of(py::handle text);
DynamicRangeMode mode_of(py::handle text);
MxRule mx_rule_of(py::handle text);
ObserverKind observer_kind_of(py::handle text);
std::optional<ArchSku> isa_of(py::handle text);  // None: the best that this machine runs

// scope None: what the others say. One of them that the scope has no use for is refused.
struct ScopeArguments {
  py::handle scope;
  py::handle axis;
  py::handle group_size = Py_None;
  py::handle block_size = Py_None;
};
Granularity granularity_of(const ScopeArguments& given);
template <class Arguments>
Granularity granularity_in(const Arguments& a) {
  return granularity_of({a["scope"_name], a["axis"_name], a["group_size"_name], a["block_size"_name]});
}

// An int (or what has __index__), never a float. `argument` is for the sentence.
std::int64_t integer(py::handle object, const char* argument);
std::int32_t integer32(py::handle object, const char* argument);
std::optional<std::int32_t> optional_integer32(py::handle object, const char* argument);
// An int or float (or what has __float__).
double number(py::handle object, const char* argument);
// The same, rounded to f32. None: nothing.
std::optional<float> optional_number32(py::handle object, const char* argument);
bool boolean(py::handle object, const char* argument);

}  // namespace kvant::python
