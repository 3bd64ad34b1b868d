#include "plan_classes.h"

#include "array.h"
#include "base/text.h"
#include "functions.h"

namespace kvant::python {

std::string class_name(const PlanClass& row) {
  if (row.name != nullptr) return row.name;
  std::string words;
  bool starts = true;
  for (const char letter : name(row.op)) {
    if (letter != '_') words += starts ? static_cast<char>(letter - 'a' + 'A') : letter;
    starts = letter == '_';
  }
  return words + "Plan";
}

void name_plans(py::module_& module) {
  py::list names;
  for (const PlanClass& row : kPlanClasses) names.append(class_name(row));
  for (const char* const answer : {"Stream", "Status", "KernelSku", "PrecisionGuarantee"}) names.append(answer);
  module.attr("__all__") = names;
}

WorkspaceInput workspace_of(py::handle object) {
  if (object.is_none()) return {};
  const Array array = array_of(object, "workspace");
  // Bytes over references of Python's, for one, would not end well.
  if (array.kind != ElementKind::u8) refuse(base::text("workspace {} must be an array of uint8", printed(object)));
  if (!array.writable) refuse("workspace is read-only");
  if (row_stride(array.elements) != 0) refuse("workspace must be contiguous");
  return {array.elements,
          {const_cast<void*>(array.elements.data()), static_cast<std::size_t>(array.elements.nbytes())}};
}

}  // namespace kvant::python
