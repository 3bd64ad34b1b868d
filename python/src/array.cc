#include "array.h"

#include "base/text.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "foreign_array.h"
#include "packed_array.h"
#include "refusal.h"
#include "threads.h"

namespace kvant::python {
namespace {

Array from_numpy(py::handle object, ElementKind wanted) {
  Array array{.elements = py::reinterpret_borrow<py::array>(object), .kind = std::nullopt, .shape = {}};
  const py::dtype dtype = array.elements.dtype();
  const bool codes = wanted == ElementKind::u16;
  array.kind = kind_of_dtype(dtype, codes ? ElementKind::u16 : ElementKind::bf16, array.flavor);
  array.native = dtype.byteorder() != '>';
  array.shape = shape_of(array.elements);
  array.writable = array.elements.writeable();
  if (array.kind && is_packed(*array.kind)) {
    array.elements = PackedArray::from_bytes(in_c_order(array), array.shape, *array.kind).packed();
    array.packed_here = true;
  }
  return array;
}

bool accepts(Elements elements, ElementKind kind) {
  switch (elements) {
    case Elements::floats: return is_float(kind);
    case Elements::codes: return is_code(kind);
    case Elements::bytes: return kind == ElementKind::s8 || kind == ElementKind::u8;
  }
  return false;
}

std::string description(Elements elements) {
  switch (elements) {
    case Elements::floats: return "float32, float64, float16 or bfloat16 (uint16 in numpy)";
    case Elements::codes: return base::text("{}, or a PackedArray", names_of(code_dtypes()));
    case Elements::bytes: return "int8 or uint8";
  }
  return {};
}

std::string order_sentence(const char* argument, const Array& array) {
  if (!array.native) return base::text("{} must be in this machine's byte order", argument);
  return base::text("{} must be in C order, up to gaps between rows; its shape is {} and its strides are {} bytes",
                    argument, py::str(array.elements.attr("shape")).cast<std::string>(),
                    py::str(array.elements.attr("strides")).cast<std::string>());
}

// A view in place.
AnyRef view_in_place(const Array& array, const char* argument) {
  if (array.packed_here)
    refuse(base::text("{} has one element of {} in a byte; only a PackedArray is read and written in place", argument,
                      dtype_name(*array.kind)));
  const auto stride = row_stride(array.elements, array.kind && is_packed(*array.kind));
  if (!stride || !array.native) refuse(order_sentence(argument, array));
  return array.view(*stride);
}

AnyMut writable_view(const Array& array, const char* argument) {
  if (!array.writable) refuse(base::text("{} is read-only", argument));
  const AnyRef view = view_in_place(array, argument);
  return {const_cast<void*>(view.data), view.kind, view.shape, view.row_stride};
}

}  // namespace

std::string dtype_text(const Array& array) {
  const bool stands_for_itself =
      array.kind == ElementKind::bf16 && !array.only_bfloat16 && array.flavor == Flavor::numpy;
  if (array.kind && array.native && !stands_for_itself) return dtype_name(*array.kind);
  return py::str(array.elements.dtype()).cast<std::string>();
}

Array array_of(py::handle object, const char* argument, ElementKind wanted) {
  if (py::isinstance<py::array>(object)) return from_numpy(object, wanted);
  if (const PackedArray* const packed = PackedArray::from(object)) {
    return {.elements = packed->packed(),
            .kind = packed->kind(),
            .shape = packed->shape(),
            .flavor = Flavor::numpy,
            .native = true,
            .writable = packed->packed().writeable()};
  }
  if (!PyType_Check(object.ptr()) && py::hasattr(object, "__dlpack__")) return from_dlpack(object, argument);
  py::object made;
  try {
    made = call_python(py::module_::import("numpy").attr("asarray"), py::make_tuple(object));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw;
    refuse(base::text("{} is not an array: {}", argument, words_of(error)));
  }
  Array array = from_numpy(made, wanted);
  array.writable = false;  // nobody would see what was written
  return array;
}

Input input(py::handle object, const char* argument, Elements elements, Copies copies) {
  Input made{array_of(object, argument, elements == Elements::codes ? ElementKind::u16 : ElementKind::bf16), {}};
  Array& array = made.array;
  if (!array.kind || !accepts(elements, *array.kind))
    refuse(base::text("{} has dtype {}; it must be {}", argument, dtype_text(array), description(elements)));
  const auto stride = row_stride(array.elements, is_packed(*array.kind));
  if (stride && array.native) {
    made.view = array.view(*stride);
  } else if (copies == Copies::refused) {
    refuse(order_sentence(argument, array));
  } else {
    array.elements = in_c_order(array);
    array.native = true;
    made.view = array.view(0);
  }
  return made;
}

Output new_output(ElementKind kind, const Shape& shape, Flavor flavor) {
  Output made;
  const bool for_torch = flavor == Flavor::torch && !is_packed(kind) && has_torch_dtype(kind);
  const auto dtype = is_packed(kind) ? std::nullopt : for_torch ? memory_dtype(kind) : result_dtype(kind, flavor);
  if (!dtype) {
    PackedArray packed = PackedArray::empty(shape, kind);
    made.elements = packed.packed();
    made.view = {made.elements.mutable_data(), kind, shape, 0};
    made.object = py::cast(std::move(packed));
    return made;
  }
  made.flavor = flavor;
  std::array<py::ssize_t, kMaxRank> sizes{};
  if (shape.rank() > kMaxRank)
    refuse(base::text("an array of {} dimensions; kvant takes up to {}", shape.rank(), kMaxRank));
  py::ssize_t bytes = bits_per_element(kind) / 8;  // of the sizes that are not 0, as numpy counts them, too
  for (int i = 0; i < shape.rank(); ++i) {
    sizes[static_cast<std::size_t>(i)] = shape[i];
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(shape[i], 1), &bytes))
      refuse(base::text("a result of shape {} has more bytes than any memory", shape.to_string()));
  }
  made.elements = py::array(*dtype, py::array::ShapeContainer(sizes.begin(), sizes.begin() + shape.rank()));
  made.view = {made.elements.mutable_data(), kind, shape, 0};
  return made;
}

Output given_output(py::handle object, const char* argument, ElementKind kind, const Shape& shape) {
  const Array array = array_of(object, argument, kind);
  if (!array.kind || *array.kind != kind)
    refuse(base::text("{} has dtype {}; it must be {}", argument, dtype_text(array), dtype_name(kind)));
  if (!(array.shape == shape))
    refuse(base::text("{} has shape {}; it must be {}", argument, array.shape.to_string(), shape.to_string()));
  return {py::reinterpret_borrow<py::object>(object), array.elements, writable_view(array, argument), array.flavor};
}

Output output(py::handle object, const char* argument, ElementKind kind, const Shape& shape, Flavor flavor) {
  return object.is_none() ? new_output(kind, shape, flavor) : given_output(object, argument, kind, shape);
}

Output plan_output(py::handle object, const char* argument, Presence presence, ElementKind wanted) {
  if (object.is_none()) {
    if (presence == Presence::required) refuse(base::text("{} is None; it must be an array", argument));
    return {};
  }
  const Array array = array_of(object, argument, wanted);
  if (!array.kind) refuse(base::text("{} has dtype {}, which no plan takes", argument, dtype_text(array)));
  return {py::reinterpret_borrow<py::object>(object), array.elements, writable_view(array, argument), array.flavor};
}

Input plan_input(py::handle object, const char* argument, ElementKind wanted) {
  if (object.is_none()) return {};
  Input made{array_of(object, argument, wanted), {}};
  if (!made.array.kind) refuse(base::text("{} has dtype {}, which no plan takes", argument, dtype_text(made.array)));
  made.view = view_in_place(made.array, argument);
  return made;
}

py::object Output::finish() {
  if (object) {
    if (flavor == Flavor::torch) mark_written(object);
    return object;
  }
  return flavor == Flavor::torch ? torch_tensor(elements, view.kind) : elements;
}

std::optional<std::int64_t> row_stride(const py::array& elements, bool packed_bytes) {
  const py::ssize_t ndim = elements.ndim();
  const py::ssize_t* const shape = elements.shape();
  const py::ssize_t* const strides = elements.strides();
  const py::ssize_t item = elements.itemsize();
  if ((elements.flags() & py::array::c_style) != 0) return 0;
  if (packed_bytes) return std::nullopt;  // PackedArray holds dense bytes only
  for (py::ssize_t i = 0; i < ndim; ++i)
    if (shape[i] == 0) return 0;
  if (shape[ndim - 1] > 1 && strides[ndim - 1] != item) return std::nullopt;
  py::ssize_t stride = 0;  // of the rows, in bytes
  py::ssize_t rows = 1;
  for (py::ssize_t i = ndim - 1; i-- > 0;) {
    if (shape[i] == 1) continue;
    if (stride == 0) {
      stride = strides[i];
      if (stride <= 0 || stride % item != 0 || stride / item < shape[ndim - 1]) return std::nullopt;
    } else if (strides[i] != stride * rows) {
      return std::nullopt;
    }
    rows *= shape[i];
  }
  return stride / item;
}

Shape shape_of(const py::array& array) {
  std::array<std::int64_t, kMaxDimensions> sizes{};
  const auto rank = static_cast<std::size_t>(array.ndim());
  for (std::size_t i = 0; i < rank; ++i) sizes[i] = array.shape()[i];
  return Shape(std::span<const std::int64_t>(sizes.data(), rank));
}

py::tuple tuple_of(const Shape& shape) {
  py::tuple sizes(shape.rank());
  for (int i = 0; i < shape.rank(); ++i) sizes[static_cast<std::size_t>(i)] = py::int_(shape[i]);
  return sizes;
}

Shape shape_from(py::handle object, const char* argument) {
  std::vector<std::int64_t> sizes;
  if (PyIndex_Check(object.ptr())) {
    sizes.push_back(integer(object, argument));
  } else {
    const auto items = py::reinterpret_steal<py::object>(PySequence_Fast(object.ptr(), ""));
    if (!items) {
      PyErr_Clear();
      refuse(base::text("{} {} must be a sequence of sizes", argument, printed(object)));
    }
    for (py::ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.ptr()); ++i)
      sizes.push_back(integer(PySequence_Fast_GET_ITEM(items.ptr(), i), argument));
  }
  return Shape(std::span<const std::int64_t>(sizes));
}

std::int64_t element_count(const Shape& shape) { return shape.element_count().value_or(0); }

py::array in_c_order(const Array& array) {
  const py::object native =
      array.native ? py::object(array.elements.dtype()) : array.elements.dtype().attr("newbyteorder")("=");
  return call_python(array.elements.attr("astype"), py::make_tuple(native, "C"));
}

}  // namespace kvant::python
