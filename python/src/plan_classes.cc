#include "plan_classes.h"

#include "array.h"

namespace kvant::python {

WorkspaceInput workspace_of(py::handle object) {
  if (object.is_none()) return {};
  const Array array = array_of(object, "workspace");
  // Bytes over references of Python's, for one, would not end well.
  if (array.kind != ElementKind::u8) refuse(fmt::format("workspace {} must be an array of uint8", printed(object)));
  if (!array.writable) refuse("workspace is read-only");
  if (row_stride(array.elements) != 0) refuse("workspace must be contiguous");
  return {array.elements,
          {const_cast<void*>(array.elements.data()), static_cast<std::size_t>(array.elements.nbytes())}};
}

}  // namespace kvant::python
