#include "refusal.h"

#include <exception>
#include <new>

namespace kvant::python {
namespace {

PyObject* exception_for(const Status& status) {
  switch (status.code()) {
    case StatusCode::Unsupported:
    case StatusCode::DeviceUnavailable: return PyExc_NotImplementedError;
    case StatusCode::Internal:
      // The library has no code of its own for it; its sentences have.
      return status.message().find("out of memory") != std::string_view::npos ? PyExc_MemoryError : PyExc_RuntimeError;
    default: return PyExc_ValueError;
  }
}

void set_error(const Status& status) { PyErr_SetString(exception_for(status), std::string(status.message()).c_str()); }

}  // namespace

void set_python_error() noexcept {
  try {
    throw;
  } catch (const Refused& refused) {
    set_error(refused.status);
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_SetString(PyExc_MemoryError, "kvant: out of memory");
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "kvant: unknown error");
  }
}

void register_refusals() {
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Refused& refused) {
      set_error(refused.status);
    }
  });
}

void refuse(std::string message) { throw Refused{Status(StatusCode::InvalidProblem, std::move(message))}; }
void unsupported(std::string message) { throw Refused{Status(StatusCode::Unsupported, std::move(message))}; }

std::string printed(py::handle object) {
  constexpr Py_ssize_t kLongest = 60;  // characters
  const auto text = py::reinterpret_steal<py::object>(PyObject_Repr(object.ptr()));
  if (!text) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();
    PyErr_Clear();
    return std::string("an object of type ") + Py_TYPE(object.ptr())->tp_name;
  }
  const bool longer = PyUnicode_GET_LENGTH(text.ptr()) > kLongest;
  const auto part = py::reinterpret_steal<py::object>(PyUnicode_Substring(text.ptr(), 0, kLongest));
  // Surrogates that stand alone have no UTF-8.
  const auto bytes = py::reinterpret_steal<py::object>(
      part ? PyUnicode_AsEncodedString(part.ptr(), "utf-8", "backslashreplace") : nullptr);
  if (!bytes) throw py::error_already_set();
  return PyBytes_AS_STRING(bytes.ptr()) + std::string(longer ? "..." : "");
}

std::string words_of(const py::error_already_set& error) {
  const auto text = py::reinterpret_steal<py::object>(PyObject_Str(error.value().ptr()));
  if (!text) {
    PyErr_Clear();
    return "an exception that cannot be printed";
  }
  const auto bytes =
      py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  if (!bytes) throw py::error_already_set();
  return PyBytes_AS_STRING(bytes.ptr());
}

}  // namespace kvant::python
