// Functions that Python calls with all arguments by position. pybind11's own dispatch takes a microsecond for a dozen
// of them; this takes none, and the modules in python/kvant give names and defaults.
#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>

#include <cstddef>

#include "refusal.h"
#include "signature.h"
#include "threads.h"

namespace kvant::python {

template <const auto& kParameters, py::object (*kFunction)(const NamedArguments<kParameters>&)>
KVANT_CATCHES_FORCED_UNWIND PyObject* call(PyObject* /*module*/, PyObject* const* arguments,
                                           Py_ssize_t count) noexcept {
  if (count != static_cast<Py_ssize_t>(kParameters.size())) {
    PyErr_Format(PyExc_TypeError, "expected %zu arguments, got %zd", kParameters.size(), count);
    return nullptr;
  }
  try {
    return kFunction(NamedArguments<kParameters>(arguments)).release().ptr();
  } catch (abi::__forced_unwind&) {
    wait_for_the_end();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

// X.__new__(X) would make an object without a C++ one inside, for which pybind11 takes whatever the memory holds. It is
// refused; X(...) does not pass this way. Classes are final, because subclasses would.
void refuse_new(py::handle type);

template <const auto& kParameters, py::object (*kFunction)(const NamedArguments<kParameters>&)>
PyMethodDef function(const char* name) {
  // Through void*: this is what METH_FASTCALL promises the pointer to be.
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&call<kParameters, kFunction>)), METH_FASTCALL,
          nullptr};
}

void register_elementwise(py::module_& module);
void register_dynamic_range(py::module_& module);
void register_linear(py::module_& module);
void register_smoothing(py::module_& module);
void register_packed_weight(py::module_& module);
void register_observer(py::module_& module);
void register_plan_answers(py::module_& module);
void register_elementwise_plans(py::module_& module);
void register_range_plans(py::module_& module);
void register_linear_plans(py::module_& module);
// __all__: what kvant.plan takes from here.
void name_plans(py::module_& module);
void register_info(py::module_& module);

}  // namespace kvant::python
