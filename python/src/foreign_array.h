// Arrays of other libraries: torch's tensors, and whatever else DLPack hands over.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

#include "array.h"
#include "kvant/element.h"

namespace kvant::python {

// What has __dlpack__, around the same memory. Refuses what is not in the memory of the CPU.
Array from_dlpack(py::handle object, const char* argument);

// A tensor around the memory of an array of numpy's; torch has been imported.
py::object torch_tensor(const py::array& elements, ElementKind kind);
// Whether torch has a dtype for it (its first versions with float8 have none for scales).
bool has_torch_dtype(ElementKind kind);
// Tells autograd, and who else counts, that a tensor was written to.
void mark_written(py::handle tensor);

}  // namespace kvant::python
