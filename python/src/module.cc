// The module kvant._kvant.
#include <pybind11/pybind11.h>

#include <string>

#include "array.h"
#include "functions.h"
#include "packed_array.h"
#include "refusal.h"
#include "threads.h"

namespace kvant::python {

void refuse_new(py::handle type) {
  static PyMethodDef refusal = {"__new__",
                                [](PyObject*, PyObject*) -> PyObject* {
                                  PyErr_SetString(PyExc_TypeError,
                                                  "kvant's objects are made by calling their class, or by select()");
                                  return nullptr;
                                },
                                METH_VARARGS, nullptr};
  auto* const object = reinterpret_cast<PyTypeObject*>(type.ptr());
  const auto function = py::reinterpret_steal<py::object>(PyCFunction_New(&refusal, nullptr));
  // In the dictionary, not by setattr: that would change what X(...) calls, too.
  if (!function || PyDict_SetItemString(object->tp_dict, "__new__", function.ptr()) != 0) throw py::error_already_set();
  PyType_Modified(object);
}

}  // namespace kvant::python

namespace {

// numpy 2 moved what pybind11 before 2.12 reads of a dtype: arrays would be read wrongly, without a word.
void check_numpy() {
  const auto version = pybind11::module_::import("numpy").attr("__version__").cast<std::string>();
  if (PYBIND11_VERSION_HEX < 0x020C0000 && version[0] != '0' && version[0] != '1')
    throw pybind11::import_error(
        "kvant was built with pybind11 " PYBIND11_TOSTRING(PYBIND11_VERSION_MAJOR) "." PYBIND11_TOSTRING(
            PYBIND11_VERSION_MINOR) ", which cannot read arrays of numpy " +
        version + ": build it again with pybind11 2.12 or newer (pip install .), or use numpy 1");
}

}  // namespace

PYBIND11_MODULE(_kvant, module) {
  using namespace kvant::python;
  check_numpy();
  memory_dtype(kvant::ElementKind::f32);  // fills the cache of dtypes here, where no other thread waits for it
  module.doc() = "The compiled part of kvant; the modules next to it describe its functions.";
  register_refusals();
  register_threads(module);
  register_packed_array(module);
  register_packed_weight(module);
  register_elementwise(module);
  register_dynamic_range(module);
  register_linear(module);
  register_smoothing(module);
  register_observer(module);
  register_plan_answers(module);
  register_elementwise_plans(module);
  register_range_plans(module);
  register_linear_plans(module);
  name_plans(module);
  register_info(module);
  for (const auto item : module.attr("__dict__").cast<py::dict>())
    if (PyType_Check(item.second.ptr())) refuse_new(item.second);
}
