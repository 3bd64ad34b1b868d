#include "packed_int4.h"

#include "base/text.h"

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "array.h"
#include "refusal.h"
#include "threads.h"

namespace kvant::python {
namespace {

py::handle g_type;  // the Python class, for as long as the module lives

// The shape of the bytes.
std::vector<py::ssize_t> packed_sizes(const Shape& shape) {
  if (shape.rank() > kMaxRank)
    refuse(base::text("PackedInt4: shape of {} dimensions; kvant takes up to {}", shape.rank(), kMaxRank));
  if (!shape.element_count()) refuse(base::text("PackedInt4: shape {} is not possible", shape.to_string()));
  std::vector<py::ssize_t> sizes;
  for (int i = 0; i + 1 < shape.rank(); ++i) sizes.push_back(shape[i]);
  sizes.push_back(row_bytes(ElementKind::s4, shape.row_length()));
  return sizes;
}

std::int64_t row_count(const Shape& shape) {
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < shape.rank(); ++i) rows *= shape[i];
  return shape.rank() == 0 ? 1 : rows;
}

std::string indices(std::int64_t flat, const Shape& shape) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(shape.rank()));
  for (int i = shape.rank(); i-- > 0;) {
    index[static_cast<std::size_t>(i)] = flat % shape[i];
    flat /= shape[i];
  }
  return Shape(std::span<const std::int64_t>(index)).to_string();
}

template <class T>
bool fits(T value, const CodeRange& range) {
  return std::cmp_greater_equal(value, range.min) && std::cmp_less_equal(value, range.max);
}

// Packs integers in C order, or refuses the first that does not fit.
template <class T>
void pack(const py::array& integers, PackedInt4& packed) {
  const CodeRange range = code_range(packed.kind());
  const Shape& shape = packed.shape();
  const std::int64_t length = shape.row_length();
  const std::int64_t bytes = row_bytes(ElementKind::s4, length);
  const std::int64_t rows = length == 0 ? 0 : row_count(shape);
  const auto* const values = static_cast<const T*>(integers.data());
  auto* const codes = static_cast<std::uint8_t*>(const_cast<void*>(packed.packed().data()));
  bool all_fit = true;
  {
    const Unlocked unlocked(rows * length);
    for (std::int64_t i = 0; i < rows * length; ++i) all_fit &= fits(values[i], range);
    for (std::int64_t row = 0; all_fit && row < rows; ++row) {
      const T* const from = values + row * length;
      std::uint8_t* const to = codes + row * bytes;
      for (std::int64_t i = 0; i + 1 < length; i += 2)
        to[i / 2] = static_cast<std::uint8_t>((static_cast<unsigned>(from[i]) & 15) |
                                              (static_cast<unsigned>(from[i + 1]) & 15) << 4);
      if (length % 2 != 0) to[length / 2] = static_cast<std::uint8_t>(static_cast<unsigned>(from[length - 1]) & 15);
    }
  }
  if (all_fit) return;
  std::int64_t bad = 0;
  while (fits(values[bad], range)) ++bad;
  refuse(base::text("PackedInt4.from_array: {} at {} does not fit {} [{}, {}]", +values[bad], indices(bad, shape),
                    packed.is_signed() ? "int4" : "uint4", range.min, range.max));
}

std::string representation(const PackedInt4& self) {
  const py::object text = py::module_::import("numpy").attr("array2string")(
      self.unpacked(), py::arg("threshold") = 8, py::arg("edgeitems") = 3, py::arg("separator") = " ");
  std::string values = text.cast<std::string>();
  for (char& c : values)
    if (c == '\n') c = ' ';
  return base::text("PackedInt4(shape={}, signed={}, values={})", py::str(tuple_of(self.shape())).cast<std::string>(),
                    self.is_signed() ? "True" : "False", values);
}

py::object as_array(const PackedInt4& self, py::handle dtype, py::handle copy) {
  if (copy.ptr() == Py_False)
    refuse("PackedInt4 holds two elements in a byte: an array of them is always a copy, but copy=False was given");
  py::array array = self.unpacked();
  if (dtype.is_none()) return array;
  return array.attr("astype")(dtype, py::arg("copy") = false);
}

bool equal(const PackedInt4& a, const PackedInt4& b) {
  return a.is_signed() == b.is_signed() && a.shape() == b.shape() &&
         py::cast<bool>(py::module_::import("numpy").attr("array_equal")(a.packed(), b.packed()));
}

constexpr const char* kDocumentation = R"(4-bit codes, two to a byte: "int4" in [-8, 7], "uint4" in [0, 15].

PackedInt4(packed, shape, signed=True) is a view of bytes: uint8 in C order, with ceil(shape[-1] / 2) bytes in a row.
Element 2i of a row is the low nibble of byte i, element 2i + 1 the high one; the high nibble after an odd last element
is zero. numpy.asarray() unpacks it to int8 or uint8. Every function of kvant that takes codes takes it, and returns it
for dtype="int4" and "uint4".

>>> import numpy as np
>>> p = PackedInt4.from_array(np.array([[1, -2, 3], [7, -8, 0]], np.int8))
>>> p
PackedInt4(shape=(2, 3), signed=True, values=[[ 1 -2  3]  [ 7 -8  0]])
>>> p.packed
array([[225,   3],
       [135,   0]], dtype=uint8)
>>> np.asarray(p)
array([[ 1, -2,  3],
       [ 7, -8,  0]], dtype=int8)
)";

}  // namespace

PackedInt4::PackedInt4(const py::array& packed, const Shape& shape, bool is_signed)
    : packed_(packed.attr("view")()), shape_(shape), is_signed_(is_signed) {
  const std::vector<py::ssize_t> sizes = packed_sizes(shape);
  if (packed_.dtype().num() != numpy_dtype(ElementKind::u8).num())
    refuse(
        base::text("PackedInt4: packed has dtype {}; it must be uint8", py::str(packed_.dtype()).cast<std::string>()));
  if (std::vector<py::ssize_t>(packed_.shape(), packed_.shape() + packed_.ndim()) != sizes)
    refuse(base::text("PackedInt4: packed has shape {}; a shape of {} takes {} bytes", shape_of(packed_).to_string(),
                      shape.to_string(), Shape(std::vector<std::int64_t>(sizes.begin(), sizes.end())).to_string()));
  if (row_stride(packed_, true) != 0) refuse("PackedInt4: packed must be in C order");
}

PackedInt4 PackedInt4::empty(const Shape& shape, bool is_signed) {
  return {py::array(numpy_dtype(ElementKind::u8), packed_sizes(shape)), shape, is_signed};
}

PackedInt4 PackedInt4::from_array(py::handle object, bool is_signed) {
  const Array given = array_of(object, "a");
  const char letter = given.elements.dtype().kind();
  if (given.kind && is_packed(*given.kind)) refuse("PackedInt4.from_array: a is already packed");
  if ((letter != 'i' && letter != 'u') || given.only_bfloat16)
    refuse(base::text("PackedInt4.from_array: a has dtype {}; it must be an integer type",
                      py::str(given.elements.dtype()).cast<std::string>()));
  const py::array dense = in_c_order(given);
  PackedInt4 made = empty(given.shape, is_signed);
  const bool negative = letter == 'i';
  switch (dense.itemsize()) {
    case 1: negative ? pack<std::int8_t>(dense, made) : pack<std::uint8_t>(dense, made); break;
    case 2: negative ? pack<std::int16_t>(dense, made) : pack<std::uint16_t>(dense, made); break;
    case 4: negative ? pack<std::int32_t>(dense, made) : pack<std::uint32_t>(dense, made); break;
    default: negative ? pack<std::int64_t>(dense, made) : pack<std::uint64_t>(dense, made); break;
  }
  return made;
}

const PackedInt4* PackedInt4::from(py::handle object) {
  if (Py_TYPE(object.ptr()) != reinterpret_cast<PyTypeObject*>(g_type.ptr()) && !py::isinstance<PackedInt4>(object))
    return nullptr;
  return object.cast<const PackedInt4*>();
}

py::array PackedInt4::unpacked() const {
  Output made = new_output(is_signed_ ? ElementKind::s8 : ElementKind::u8, shape_, Flavor::numpy);
  const std::int64_t length = shape_.row_length();
  const std::int64_t bytes = row_bytes(ElementKind::s4, length);
  const auto* packed = static_cast<const std::uint8_t*>(packed_.data());
  auto* codes = static_cast<std::uint8_t*>(made.view.data);
  const int flip = is_signed_ ? 8 : 0;  // (v ^ 8) - 8 extends the sign of four bits
  const Unlocked unlocked(element_count(shape_));
  for (std::int64_t row = 0; row < (length == 0 ? 0 : row_count(shape_)); ++row, packed += bytes, codes += length) {
    for (std::int64_t i = 0; i < length; ++i) {
      const int nibble = packed[i / 2] >> (4 * (i % 2)) & 15;
      codes[i] = static_cast<std::uint8_t>((nibble ^ flip) - flip);
    }
  }
  return made.elements;
}

void register_packed_int4(py::module_& module) {
  py::class_<PackedInt4> type(module, "PackedInt4", py::is_final(), py::module_local(), kDocumentation);
  g_type = type;
  type.def(py::init([](const py::array& packed, py::handle shape, bool is_signed) {
             return PackedInt4(packed, shape_from(shape, "shape"), is_signed);
           }),
           py::arg("packed").noconvert(), py::arg("shape"), py::arg("signed") = true)
      .def_static("from_array", &PackedInt4::from_array, py::arg("a"), py::arg("signed") = true,
                  "Packs an array of integers; one that four bits do not hold is refused with its index.")
      .def_property_readonly(
          "packed", [](const PackedInt4& self) { return self.packed().attr("view")(); },
          "The bytes: uint8, shape[:-1] + (ceil(shape[-1] / 2),).")
      .def_property_readonly(
          "shape", [](const PackedInt4& self) { return tuple_of(self.shape()); }, "In elements.")
      .def_property_readonly(
          "signed", [](const PackedInt4& self) { return self.is_signed(); }, "True for int4, False for uint4.")
      .def_property_readonly("ndim", [](const PackedInt4& self) { return self.shape().rank(); })
      .def_property_readonly("size", [](const PackedInt4& self) { return element_count(self.shape()); })
      .def_property_readonly("nbytes", [](const PackedInt4& self) { return self.packed().nbytes(); })
      .def("__array__", &as_array, py::arg("dtype") = py::none(), py::arg("copy") = py::none(),
           "int8 or uint8, one element to a byte; always a copy.")
      .def("__len__",
           [](const PackedInt4& self) {
             if (self.shape().rank() == 0) throw py::type_error("len() of a PackedInt4 without dimensions");
             return self.shape()[0];
           })
      .def("__eq__",
           [](const PackedInt4& self, py::handle other) -> py::object {
             if (const PackedInt4* const packed = PackedInt4::from(other)) return py::bool_(equal(self, *packed));
             return py::reinterpret_borrow<py::object>(Py_NotImplemented);
           })
      .def("__repr__", &representation)
      .def("__copy__", [](const PackedInt4& self) { return self; })
      .def(
          "__deepcopy__",
          [](const PackedInt4& self, const py::dict&) {
            return PackedInt4(self.packed().attr("copy")(), self.shape(), self.is_signed());
          },
          py::arg("memo"))
      .def("__reduce__", [](const PackedInt4& self) {
        return py::make_tuple(g_type, py::make_tuple(self.packed(), tuple_of(self.shape()), self.is_signed()));
      });
  type.attr("__hash__") = py::none();  // it can be written to
}

}  // namespace kvant::python
