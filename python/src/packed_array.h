// PackedArray: codes and scales that numpy has no dtype for, as their bytes (kvant/element.h): codes of four and two
// bits with the first element of a byte in its lowest bits and every row padded to a whole byte, and the bits of
// float8.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "kvant/element.h"
#include "kvant/tensor.h"

namespace kvant::python {

namespace py = pybind11;

class PackedArray {
 public:
  // Refuses bytes that are not uint8 in C order, of the shape that `shape` needs.
  // Holds a view: nobody can resize or reshape it behind our back.
  PackedArray(const py::array& packed, const Shape& shape, ElementKind kind);

  static PackedArray empty(const Shape& shape, ElementKind kind);
  // Packs integers or numbers; refuses one that the type does not hold.
  static PackedArray from_array(py::handle array, ElementKind kind);
  // Packs codes that have a byte each, in C order.
  static PackedArray from_bytes(const py::array& codes, const Shape& shape, ElementKind kind);
  // Null if the object is something else.
  static const PackedArray* from(py::handle object);

  const py::array& packed() const { return packed_; }
  const Shape& shape() const { return shape_; }
  ElementKind kind() const { return kind_; }

  // int8 or uint8, one element to a byte; float32 for types that stand for such numbers.
  py::array unpacked() const;

 private:
  py::array packed_;
  Shape shape_;
  ElementKind kind_;
};

void register_packed_array(py::module_& module);

}  // namespace kvant::python
