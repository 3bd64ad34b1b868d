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
  py::register_exception_translator([](std::exception_ptr pointer) {
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
  constexpr std::size_t kLongest = 60;
  std::string text;
  try {
    text = py::repr(object).cast<std::string>();
  } catch (py::error_already_set&) {  // an object that cannot print itself
    text = std::string("an object of type ") + Py_TYPE(object.ptr())->tp_name;
  }
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

}  // namespace kvant::python
