// PackedInt4: 4-bit codes, two to a byte, as kvant's s4 and u4 hold them (kvant/element.h): element 2i of a row in the
// low nibble of byte i, element 2i + 1 in the high one, every row padded to a whole byte.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "kvant/element.h"
#include "kvant/tensor.h"

namespace kvant::python {

namespace py = pybind11;

class PackedInt4 {
 public:
  // Refuses bytes that are not uint8 in C order, of the shape that `shape` needs.
  PackedInt4(py::array packed, const Shape& shape, bool is_signed);

  static PackedInt4 empty(const Shape& shape, bool is_signed);
  // Packs integers; refuses one that four bits do not hold.
  static PackedInt4 from_array(py::handle array, bool is_signed);
  // Null if the object is something else.
  static const PackedInt4* from(py::handle object);

  const py::array& packed() const { return packed_; }
  const Shape& shape() const { return shape_; }
  bool is_signed() const { return is_signed_; }
  ElementKind kind() const { return is_signed_ ? ElementKind::s4 : ElementKind::u4; }

  // int8 or uint8, one element to a byte.
  py::array unpacked() const;

 private:
  py::array packed_;
  Shape shape_;
  bool is_signed_;
};

void register_packed_int4(py::module_& module);

}  // namespace kvant::python
