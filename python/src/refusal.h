// How a refusal becomes a Python exception: ValueError for what no kernel could accept, NotImplementedError for what
// none of this build or machine serves, MemoryError where memory ran out, RuntimeError for a fault of kvant itself.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>
#include <utility>

#include "kvant/status.h"

namespace kvant::python {

namespace py = pybind11;

// Thrown inside the extension; never leaves it as a C++ exception.
struct Refused {
  Status status;
};

// Sets Python's error from what is being thrown; for the end of a function that Python calls. Call it in a catch block.
void set_python_error() noexcept;

// So that functions and methods made by pybind11 do the same.
void register_refusals();

[[noreturn]] void refuse(std::string message);       // ValueError
[[noreturn]] void unsupported(std::string message);  // NotImplementedError

inline void check(const Status& status) {
  if (!status.ok()) throw Refused{status};
}

template <class T>
T value_of(Result<T> result) {
  if (!result.ok()) throw Refused{result.status()};
  return std::move(result).value();
}

// repr(object), cut to what fits a sentence.
std::string printed(py::handle object);

}  // namespace kvant::python
