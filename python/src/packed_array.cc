#include "packed_array.h"

#include "base/text.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "array.h"
#include "dtypes.h"
#include "kvant/elementwise.h"
#include "names.h"
#include "refusal.h"
#include "threads.h"

namespace kvant::python {
namespace {

py::handle g_type;  // the Python class, for as long as the module lives

// The shape of the bytes.
std::vector<py::ssize_t> packed_sizes(const Shape& shape, ElementKind kind) {
  if (shape.rank() > kMaxRank)
    refuse(base::text("PackedArray: shape of {} dimensions; kvant takes up to {}", shape.rank(), kMaxRank));
  if (!shape.element_count()) refuse(base::text("PackedArray: shape {} is not possible", shape.to_string()));
  std::vector<py::ssize_t> sizes;
  for (int i = 0; i + 1 < shape.rank(); ++i) sizes.push_back(shape[i]);
  sizes.push_back(row_bytes(kind, shape.row_length()));
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

// The bytes of an array that belongs to nobody else yet.
std::uint8_t* bytes_of(const PackedArray& made) {
  return static_cast<std::uint8_t*>(const_cast<void*>(made.packed().data()));
}

// Packs code(i), of which the lowest bits count, for every element in C order.
template <class Code>
void pack_codes(const PackedArray& packed, const Code& code) {
  const Shape& shape = packed.shape();
  const int bits = bits_per_element(packed.kind());
  const int per_byte = elements_per_byte(packed.kind());
  const unsigned mask = (1U << bits) - 1;
  const std::int64_t length = shape.row_length();
  const std::int64_t rows = length == 0 ? 0 : row_count(shape);
  std::uint8_t* to = bytes_of(packed);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t first = 0; first < length; first += per_byte) {
      const std::int64_t count = std::min<std::int64_t>(per_byte, length - first);
      unsigned byte = 0;
      for (std::int64_t i = count; i-- > 0;) byte = byte << bits | (code(row * length + first + i) & mask);
      *to++ = static_cast<std::uint8_t>(byte);
    }
  }
}

// Calls use(i, code) for every element in C order.
template <class Use>
void unpack_codes(const PackedArray& packed, const Use& use) {
  const int bits = bits_per_element(packed.kind());
  const int per_byte = elements_per_byte(packed.kind());
  const unsigned mask = (1U << bits) - 1;
  const std::int64_t length = packed.shape().row_length();
  const std::int64_t bytes = row_bytes(packed.kind(), length);
  const std::int64_t rows = length == 0 ? 0 : row_count(packed.shape());
  const auto* from = static_cast<const std::uint8_t*>(packed.packed().data());
  for (std::int64_t row = 0; row < rows; ++row, from += bytes)
    for (std::int64_t i = 0; i < length; ++i)
      use(row * length + i, from[i / per_byte] >> (bits * static_cast<int>(i % per_byte)) & mask);
}

// Packs integers in C order, or refuses the first that does not fit.
template <class T>
void pack_integers(const py::array& integers, const PackedArray& packed) {
  const CodeRange range = code_range(packed.kind());
  const std::int64_t count = element_count(packed.shape());
  const auto* const values = static_cast<const T*>(integers.data());
  std::int64_t good = 0;
  {
    const Unlocked unlocked(count);
    good = std::find_if_not(values, values + count, [&](T value) { return fits(value, range); }) - values;
    if (good == count) pack_codes(packed, [&](std::int64_t i) { return static_cast<unsigned>(values[i]); });
  }
  if (good != count)
    refuse(base::text("PackedArray.from_array: {} at {} does not fit {} [{}, {}]", +values[good],
                      indices(good, packed.shape()), dtype_name(packed.kind()), range.min, range.max));
}

using Numbers = std::array<float, 256>;

// The number that each code stands for, as the library dequantizes it: codes with the scale 1, and scales times 1.
Numbers numbers_of(ElementKind kind) {
  Numbers numbers{};
  const bool scales = !is_code(kind);
  const std::int64_t count = std::int64_t{1} << bits_per_element(kind);
  std::array<std::uint8_t, 256> codes{};
  std::array<std::uint8_t, 256> ones{};
  ones.fill(1);
  for (std::size_t i = 0; i < codes.size(); ++i)  // two codes to a byte: 0x10, 0x32 and so on
    codes[i] = static_cast<std::uint8_t>(bits_per_element(kind) == 8 ? i : 2 * i | (2 * i + 1) << 4);
  const Shape shape{count};
  const ElementwiseDescriptor descriptor{
      .op = QuantizeKind::dequantize,
      .shape = shape,
      .granularity = scales ? Granularity::per_channel(0) : Granularity::per_tensor(),
      .input = scales ? ElementKind::u8 : kind,
      .output = ElementKind::f32};
  const Stream stream = current_stream();
  const AnyRef table{codes.data(), kind, shape, 0};
  check(value_of(ElementwisePlan::select(stream, descriptor))
            .run(stream, {},
                 {.input = scales ? AnyRef{ones.data(), ElementKind::u8, shape, 0} : table,
                  .grad_output = {},
                  .output = {numbers.data(), ElementKind::f32, shape, 0},
                  .scale = scales ? AnyParameter(table) : AnyParameter(1.0F)}));
  return numbers;
}

// Packs numbers in C order, or refuses the first that no code stands for. All NaN are one.
void pack_numbers(const py::array& values, const PackedArray& packed) {
  const Numbers numbers = numbers_of(packed.kind());
  std::unordered_map<std::uint64_t, unsigned> codes;
  const auto key = [](double value) {
    return std::isnan(value) ? ~std::uint64_t{0} : std::bit_cast<std::uint64_t>(value);
  };
  for (unsigned code = 0; code < 1U << bits_per_element(packed.kind()); ++code)
    codes.try_emplace(key(static_cast<double>(numbers[code])), code);
  const std::int64_t count = element_count(packed.shape());
  const auto* const from = static_cast<const double*>(values.data());
  std::int64_t good = 0;
  {
    const Unlocked unlocked(count);
    good = std::find_if_not(from, from + count, [&](double value) { return codes.contains(key(value)); }) - from;
    if (good == count) pack_codes(packed, [&](std::int64_t i) { return codes.find(key(from[i]))->second; });
  }
  if (good != count)
    refuse(base::text("PackedArray.from_array: {} at {} is not a number of {}", from[good],
                      indices(good, packed.shape()), dtype_name(packed.kind())));
}

std::string representation(const PackedArray& self) {
  const py::object text = py::module_::import("numpy").attr("array2string")(
      self.unpacked(), py::arg("threshold") = 8, py::arg("edgeitems") = 3, py::arg("separator") = " ");
  std::string values = text.cast<std::string>();
  for (char& c : values)
    if (c == '\n') c = ' ';
  return base::text("PackedArray(shape={}, dtype='{}', values={})", py::str(tuple_of(self.shape())).cast<std::string>(),
                    dtype_name(self.kind()), values);
}

py::object as_array(const PackedArray& self, py::handle dtype, py::handle copy) {
  if (copy.ptr() == Py_False) refuse("PackedArray is unpacked by a copy, but copy=False was given");
  py::array array = self.unpacked();
  if (dtype.is_none()) return array;
  return array.attr("astype")(dtype, py::arg("copy") = false);
}

bool equal(const PackedArray& a, const PackedArray& b) {
  return a.kind() == b.kind() && a.shape() == b.shape() &&
         py::cast<bool>(py::module_::import("numpy").attr("array_equal")(a.packed(), b.packed()));
}

const char* const kDefault = dtype_name(ElementKind::s4);

constexpr const char* kDocumentation =
    R"(Codes that numpy has no dtype for: integers of 4 and 2 bits, float4 and float8.

PackedArray(packed, shape, dtype="int4") is a view of bytes: uint8 in C order, with ceil(shape[-1] / n) bytes in a row
of n elements to a byte. The first element of a byte is in its lowest bits; the bits after a row's last element are
zero.

====================================== ===========
dtype                                  in a byte
====================================== ===========
"int4", "uint4", "float4_e2m1fn"       two
"int2", "uint2"                        four
"float8_e4m3fn", "float8_e5m2"         one
"float8_e8m0fnu" (scales)              one
====================================== ===========

unpack() and numpy.asarray() give int8 or uint8, and float32 for the last four. Every function of kvant that takes codes
or scales takes it, and returns it for codes of less than eight bits; for float8 only where neither torch nor ml_dtypes
has a dtype for the result.

>>> import numpy as np
>>> p = PackedArray.from_array(np.array([[1, -2, 3], [7, -8, 0]], np.int8))
>>> p
PackedArray(shape=(2, 3), dtype='int4', values=[[ 1 -2  3]  [ 7 -8  0]])
>>> p.packed
array([[225,   3],
       [135,   0]], dtype=uint8)
>>> p.unpack()
array([[ 1, -2,  3],
       [ 7, -8,  0]], dtype=int8)
>>> PackedArray.from_array([0.5, -6.0, 3.0], "float4_e2m1").packed
array([241,   5], dtype=uint8)
)";

}  // namespace

PackedArray::PackedArray(const py::array& packed, const Shape& shape, ElementKind kind)
    : packed_(packed.attr("view")()), shape_(shape), kind_(kind) {
  const std::vector<py::ssize_t> sizes = packed_sizes(shape, kind);
  if (packed_.dtype().num() != memory_dtype(ElementKind::u8).num())
    refuse(
        base::text("PackedArray: packed has dtype {}; it must be uint8", py::str(packed_.dtype()).cast<std::string>()));
  if (std::vector<py::ssize_t>(packed_.shape(), packed_.shape() + packed_.ndim()) != sizes)
    refuse(base::text("PackedArray: packed has shape {}; a shape of {} takes {} bytes", shape_of(packed_).to_string(),
                      shape.to_string(), Shape(std::vector<std::int64_t>(sizes.begin(), sizes.end())).to_string()));
  if (row_stride(packed_, true) != 0) refuse("PackedArray: packed must be in C order");
}

PackedArray PackedArray::empty(const Shape& shape, ElementKind kind) {
  return {py::array(memory_dtype(ElementKind::u8), packed_sizes(shape, kind)), shape, kind};
}

PackedArray PackedArray::from_bytes(const py::array& codes, const Shape& shape, ElementKind kind) {
  PackedArray made = empty(shape, kind);
  const auto* const bytes = static_cast<const std::uint8_t*>(codes.data());
  const Unlocked unlocked(element_count(shape));
  pack_codes(made, [&](std::int64_t i) { return static_cast<unsigned>(bytes[i]); });
  return made;
}

PackedArray PackedArray::from_array(py::handle object, ElementKind kind) {
  if (from(object) != nullptr) refuse("PackedArray.from_array: a is already packed");
  const Array given = array_of(object, "a", ElementKind::u16);
  if (given.kind == kind)  // of a library that has the dtype
    return is_packed(kind) ? PackedArray(in_c_order(given), given.shape, kind)
                           : from_bytes(in_c_order(given), given.shape, kind);
  const char letter = given.elements.dtype().kind();
  const bool integers = (letter == 'i' || letter == 'u') && !(given.kind && is_foreign_to_numpy(*given.kind));
  PackedArray made = empty(given.shape, kind);
  if (info(kind).grid != GridKind::integer) {
    if (!integers && !(given.kind && is_float(*given.kind)))
      refuse(base::text("PackedArray.from_array: a has dtype {}; it must hold numbers", dtype_text(given)));
    if (given.kind == ElementKind::bf16)
      refuse("PackedArray.from_array: a has dtype bfloat16; give its numbers as float32");
    pack_numbers(call_python(given.elements.attr("astype"), py::make_tuple("float64", "C")), made);
    return made;
  }
  if (!integers || given.only_bfloat16)
    refuse(base::text("PackedArray.from_array: a has dtype {}; it must be an integer type", dtype_text(given)));
  const py::array dense = in_c_order(given);
  const bool negative = letter == 'i';
  switch (dense.itemsize()) {
    case 1: negative ? pack_integers<std::int8_t>(dense, made) : pack_integers<std::uint8_t>(dense, made); break;
    case 2: negative ? pack_integers<std::int16_t>(dense, made) : pack_integers<std::uint16_t>(dense, made); break;
    case 4: negative ? pack_integers<std::int32_t>(dense, made) : pack_integers<std::uint32_t>(dense, made); break;
    default: negative ? pack_integers<std::int64_t>(dense, made) : pack_integers<std::uint64_t>(dense, made); break;
  }
  return made;
}

const PackedArray* PackedArray::from(py::handle object) {
  if (Py_TYPE(object.ptr()) != reinterpret_cast<PyTypeObject*>(g_type.ptr()) && !py::isinstance<PackedArray>(object))
    return nullptr;
  return object.cast<const PackedArray*>();
}

py::array PackedArray::unpacked() const {
  const CodeRange range = code_range(kind_);
  const bool integers = info(kind_).grid == GridKind::integer;
  Output made = new_output(!integers       ? ElementKind::f32
                           : range.min < 0 ? ElementKind::s8
                                           : ElementKind::u8,
                           shape_, Flavor::numpy);
  if (!integers) {
    const Numbers numbers = numbers_of(kind_);
    auto* const to = static_cast<float*>(made.view.data);
    const Unlocked unlocked(element_count(shape_));
    unpack_codes(*this, [&](std::int64_t i, unsigned code) { to[i] = numbers[code]; });
    return made.elements;
  }
  auto* const to = static_cast<std::uint8_t*>(made.view.data);
  const unsigned sign = range.min < 0 ? 1U << (bits_per_element(kind_) - 1) : 0;  // (v ^ sign) - sign extends the sign
  const Unlocked unlocked(element_count(shape_));
  unpack_codes(*this, [&](std::int64_t i, unsigned code) { to[i] = static_cast<std::uint8_t>((code ^ sign) - sign); });
  return made.elements;
}

void register_packed_array(py::module_& module) {
  py::class_<PackedArray> type(module, "PackedArray", py::is_final(), py::module_local(), kDocumentation);
  g_type = type;
  type.def(py::init([](const py::array& packed, py::handle shape, py::handle dtype) {
             return PackedArray(packed, shape_from(shape, "shape"), packed_kind(dtype));
           }),
           py::arg("packed").noconvert(), py::arg("shape"), py::arg("dtype") = kDefault)
      .def_static(
          "from_array", [](py::handle a, py::handle dtype) { return PackedArray::from_array(a, packed_kind(dtype)); },
          py::arg("a"), py::arg("dtype") = kDefault,
          "Packs an array of integers or, for float4 and float8, of numbers; one that the dtype does not hold is "
          "refused "
          "with its index.")
      .def("unpack", &PackedArray::unpacked, "A new array: int8 or uint8, float32 for float4 and float8.")
      .def_property_readonly(
          "packed", [](const PackedArray& self) { return self.packed().attr("view")(); },
          "The bytes: uint8, shape[:-1] + (ceil(shape[-1] / n),) for n elements in a byte.")
      .def_property_readonly(
          "shape", [](const PackedArray& self) { return tuple_of(self.shape()); }, "In elements.")
      .def_property_readonly(
          "dtype", [](const PackedArray& self) { return dtype_name(self.kind()); }, "Its name, as in \"int4\".")
      .def_property_readonly("ndim", [](const PackedArray& self) { return self.shape().rank(); })
      .def_property_readonly("size", [](const PackedArray& self) { return element_count(self.shape()); })
      .def_property_readonly("nbytes", [](const PackedArray& self) { return self.packed().nbytes(); })
      .def("__array__", &as_array, py::arg("dtype") = py::none(), py::arg("copy") = py::none(), "As unpack() gives it.")
      .def("__len__",
           [](const PackedArray& self) {
             if (self.shape().rank() == 0) throw py::type_error("len() of a PackedArray without dimensions");
             return self.shape()[0];
           })
      .def("__eq__",
           [](const PackedArray& self, py::handle other) -> py::object {
             if (const PackedArray* const packed = PackedArray::from(other)) return py::bool_(equal(self, *packed));
             return py::reinterpret_borrow<py::object>(Py_NotImplemented);
           })
      .def("__repr__", &representation)
      .def("__copy__", [](const PackedArray& self) { return self; })
      .def(
          "__deepcopy__",
          [](const PackedArray& self, const py::dict&) {
            return PackedArray(self.packed().attr("copy")(), self.shape(), self.kind());
          },
          py::arg("memo"))
      .def("__reduce__", [](const PackedArray& self) {
        return py::make_tuple(g_type, py::make_tuple(self.packed(), tuple_of(self.shape()), dtype_name(self.kind())));
      });
  type.attr("__hash__") = py::none();  // it can be written to
}

}  // namespace kvant::python
