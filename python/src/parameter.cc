#include "parameter.h"

#include "base/text.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "names.h"
#include "refusal.h"

namespace kvant::python {
namespace {

AnyParameter number_parameter(double value, ElementKind kind) {
  return kind == ElementKind::f64 ? AnyParameter(value) : AnyParameter(static_cast<float>(value));
}

// A number, not an array. Booleans count as numbers in Python; they are not what was meant here.
bool is_number(py::handle object) {
  return PyFloat_Check(object.ptr()) || (PyLong_Check(object.ptr()) && !PyBool_Check(object.ptr()));
}

double element_as_double(const char* data, ElementKind kind) {
  const auto read = [data](auto value) {
    std::memcpy(&value, data, sizeof value);
    return value;
  };
  switch (kind) {
    case ElementKind::f64: return read(0.0);
    case ElementKind::f16: return static_cast<double>(to_float(read(Half{})));
    case ElementKind::bf16: return static_cast<double>(to_float(read(BFloat16{})));
    default: return static_cast<double>(read(0.0F));
  }
}

// A dense copy as f32 or f64.
py::array converted(const Array& array, ElementKind kind) {
  const py::array dense = in_c_order(array);
  Output made = new_output(kind, array.shape, Flavor::numpy);
  const auto* from = static_cast<const char*>(dense.data());
  const py::ssize_t item = dense.itemsize();
  const std::int64_t count = element_count(array.shape);
  for (std::int64_t i = 0; i < count; ++i, from += item) {
    const double value = element_as_double(from, *array.kind);
    if (kind == ElementKind::f64)
      static_cast<double*>(made.view.data)[i] = value;
    else
      static_cast<float*>(made.view.data)[i] = static_cast<float>(value);
  }
  return made.elements;
}

void check_float(const Array& array, const char* argument) {
  if (!array.kind || !is_float(*array.kind))
    refuse(base::text("{} has dtype {}; it must hold floating-point numbers", argument, dtype_text(array)));
}

// Whether the memory is a dense array that a plan can read as `kind`.
bool is_dense(const Array& array, ElementKind kind) {
  return array.kind == kind && array.native && row_stride(array.elements) == 0;
}

AnyRef dense_view(const py::array& elements, ElementKind kind) {
  return {elements.data(), kind, shape_of(elements), 0};
}

template <class T>
void saturate(const py::array& from, std::int64_t count, std::int32_t* to) {
  const auto* const values = static_cast<const T*>(from.data());
  for (std::int64_t i = 0; i < count; ++i) {
    if (std::cmp_less(values[i], std::numeric_limits<std::int32_t>::min()))
      to[i] = std::numeric_limits<std::int32_t>::min();
    else if (std::cmp_greater(values[i], std::numeric_limits<std::int32_t>::max()))
      to[i] = std::numeric_limits<std::int32_t>::max();
    else
      to[i] = static_cast<std::int32_t>(values[i]);
  }
}

py::array as_int32(const Array& array) {
  const py::array dense = in_c_order(array);
  Output made = new_output(ElementKind::s32, array.shape, Flavor::numpy);
  auto* const to = static_cast<std::int32_t*>(made.view.data);
  const std::int64_t count = element_count(array.shape);
  const bool is_signed = dense.dtype().kind() == 'i';
  switch (dense.itemsize()) {
    case 1: is_signed ? saturate<std::int8_t>(dense, count, to) : saturate<std::uint8_t>(dense, count, to); break;
    case 2: is_signed ? saturate<std::int16_t>(dense, count, to) : saturate<std::uint16_t>(dense, count, to); break;
    case 4: is_signed ? saturate<std::int32_t>(dense, count, to) : saturate<std::uint32_t>(dense, count, to); break;
    default: is_signed ? saturate<std::int64_t>(dense, count, to) : saturate<std::uint64_t>(dense, count, to); break;
  }
  return made.elements;
}

void check_integers(const Array& array, const char* argument) {
  const char letter = array.elements.dtype().kind();
  const bool something_else = array.only_bfloat16 || (array.kind && is_foreign_to_numpy(*array.kind));
  if ((letter != 'i' && letter != 'u') || something_else)
    refuse(base::text("{} has dtype {}; it must be an integer or an array of integers", argument, dtype_text(array)));
}

}  // namespace

ParameterInput scale_input(py::handle object, const char* argument, ElementKind kind, bool one_for_all,
                           StoredScales stored) {
  if (one_for_all && is_number(object)) return {number_parameter(number(object, argument), kind), {}};
  if (object.is_none()) refuse(base::text("{} is None; it must be a number or an array", argument));
  Array array = array_of(object, argument);
  if (array.elements.dtype().kind() == 'i' && array.elements.itemsize() >= 4) {  // [1, 2] is a list of scales, too
    array.elements = array.elements.attr("astype")("float64");
    array.kind = ElementKind::f64;
    array.native = true;
  }
  // What is wider is converted, exactly; these have their meaning from the library.
  const bool is_code_or_power = array.kind == ElementKind::e4m3 || array.kind == ElementKind::e8m0;
  if (is_code_or_power && stored == StoredScales::allowed) {
    if (row_stride(array.elements) != 0) array.elements = in_c_order(array);
    return {AnyParameter(array.view(0)), array.elements};
  }
  check_float(array, argument);
  if (one_for_all && array.shape.element_count() == 1) {
    const py::array dense = in_c_order(array);
    return {number_parameter(element_as_double(static_cast<const char*>(dense.data()), *array.kind), kind), {}};
  }
  py::array kept = is_dense(array, kind) ? array.elements : converted(array, kind);
  const AnyRef view = dense_view(kept, kind);
  return {AnyParameter(view), std::move(kept)};
}

ParameterInput global_scale_input(py::handle object) {
  if (object.is_none()) return {};
  const char* const argument = "global_scale";
  // An array of several numbers is for the plan to refuse.
  return scale_input(object, argument, ElementKind::f32, true);
}

ParameterInput zero_point_input(py::handle object, const char* argument) {
  if (object.is_none()) return {AnyParameter(std::int32_t{0}), {}};
  if (PyLong_Check(object.ptr())) return {AnyParameter(integer32(object, argument)), {}};
  if (PyFloat_Check(object.ptr())) refuse(base::text("{} {} must be an integer", argument, printed(object)));
  const Array array = array_of(object, argument);
  check_integers(array, argument);
  if (array.shape.rank() == 0) return {AnyParameter(integer32(array.elements.attr("item")(), argument)), {}};
  py::array kept = is_dense(array, ElementKind::s32) ? array.elements : as_int32(array);
  const AnyRef view = dense_view(kept, ElementKind::s32);
  return {AnyParameter(view), std::move(kept)};
}

Input vector_input(py::handle object, const char* argument, ElementKind kind, ElementKind also) {
  if (object.is_none()) return {};
  Input made{array_of(object, argument), {}};
  check_float(made.array, argument);
  if (!is_dense(made.array, kind) && !is_dense(made.array, also)) {
    made.array.elements = converted(made.array, kind);
    made.array.kind = kind;
  }
  made.view = dense_view(made.array.elements, *made.array.kind);
  return made;
}

ParameterInput plan_scale(py::handle object, const char* argument, ElementKind kind) {
  if (is_number(object)) return {number_parameter(number(object, argument), kind), {}};
  const Input made = plan_input(object, argument);
  return {AnyParameter(made.view), made.array.elements};
}

ParameterInput plan_global_scale(py::handle object) {
  if (object.is_none()) return {};
  return plan_scale(object, "global_scale", ElementKind::f32);
}

ParameterInput plan_zero_point(py::handle object, const char* argument) {
  if (object.is_none() || PyLong_Check(object.ptr())) return zero_point_input(object, argument);
  const Input made = plan_input(object, argument);
  return {AnyParameter(made.view), made.array.elements};
}

}  // namespace kvant::python
