// Arrays from Python as views for plans, and results as arrays for Python.
//
// Whatever comes in (numpy's array, a DLPack capsule of torch's or another library's, a PackedArray, a list) becomes a
// numpy array around the same memory, so that one path reads them all. numpy has no bfloat16: uint16 stands for it
// among floats, and so does the type that ml_dtypes registers.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>

#include "dtypes.h"
#include "kvant/element.h"
#include "kvant/tensor.h"
#include "names.h"

namespace kvant::python {

inline constexpr int kMaxDimensions = 64;  // of numpy 2

// Nothing. The default of py::array is an array of no elements, which takes numpy 100 ns to make.
inline py::array no_array() { return py::reinterpret_steal<py::array>(py::handle()); }

struct Array {
  py::array elements = no_array();  // of a PackedArray: its bytes
  std::optional<ElementKind> kind;  // nothing: a dtype that kvant has no element for
  Shape shape;                      // in elements
  Flavor flavor = Flavor::numpy;
  bool native = true;          // byte order
  bool writable = false;       // by what its owner says
  bool only_bfloat16 = false;  // numpy's uint16 stands for bfloat16 and nothing else
  bool packed_here = false;    // from ml_dtypes' elements of less than eight bits, which take a byte each

  AnyRef view(std::int64_t row_stride) const { return {elements.data(), *kind, shape, row_stride}; }
};

// Refuses what is no array, or is not in the memory of the CPU. numpy's uint16 is bf16, or u16 where that is wanted.
Array array_of(py::handle object, const char* argument, ElementKind wanted = ElementKind::bf16);
// What its owner calls the elements, for a sentence.
std::string dtype_text(const Array& array);

// What arguments may be made of.
enum class Elements : std::uint8_t { floats, codes, bytes };  // bytes: s8 and u8 only
// What happens to an argument that a plan cannot read in place: not in C order, or of the other byte order.
enum class Copies : std::uint8_t { allowed, refused };

// An argument to read. The array keeps the view's memory alive.
struct Input {
  Array array;
  AnyRef view;
};
Input input(py::handle object, const char* argument, Elements elements, Copies copies = Copies::allowed);

// A place to write to: what the caller gave, or a new array in the flavor asked for.
struct Output {
  py::object object;  // what the caller gave or gets; for torch made by finish()
  py::array elements = no_array();
  AnyMut view;
  Flavor flavor = Flavor::numpy;

  // The object that is returned; call it when it has been written to.
  py::object finish();
};
// What the library of that flavor has no dtype for comes in a PackedArray, and what is packed does so always.
Output new_output(ElementKind kind, const Shape& shape, Flavor flavor);
// Refuses another shape or dtype, what cannot be written to, and what would need a copy.
Output given_output(py::handle object, const char* argument, ElementKind kind, const Shape& shape);
// `object` None: a new one.
Output output(py::handle object, const char* argument, ElementKind kind, const Shape& shape, Flavor flavor);
// As a plan takes it: its shape and kind are left to the plan to judge. None: no buffer, unless it is `required`.
enum class Presence : std::uint8_t { required, optional };
Output plan_output(py::handle object, const char* argument, Presence presence = Presence::optional,
                   ElementKind wanted = ElementKind::bf16);
Input plan_input(py::handle object, const char* argument, ElementKind wanted = ElementKind::bf16);

// The distance between rows in elements, 0 if there are no gaps; nothing if rows are not what the memory holds.
std::optional<std::int64_t> row_stride(const py::array& elements, bool packed_bytes = false);

Shape shape_of(const py::array& array);
py::tuple tuple_of(const Shape& shape);
// A Python sequence of sizes.
Shape shape_from(py::handle sizes, const char* argument);
std::int64_t element_count(const Shape& shape);  // of a shape that exists in memory

// A new numpy array of the elements in C order and native byte order.
py::array in_c_order(const Array& array);

}  // namespace kvant::python
