// PackedWeight as Python sees it, and codes that linear layers read: one byte to an element.
#pragma once

#include <pybind11/pybind11.h>

#include "array.h"
#include "kvant/packed_weight.h"

namespace kvant::python {

// Null if the object is something else.
const PackedWeight* packed_weight_from(py::handle object);

// int8 or uint8; a PackedArray of integers is unpacked.
Input byte_codes(py::handle object, const char* argument);

}  // namespace kvant::python
