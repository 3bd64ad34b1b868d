// The threads that functions run on, and the release of Python's lock while they do.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kvant/plan.h"
#include "kvant/stream.h"

namespace kvant::python {

namespace py = pybind11;

// The stream of set_num_threads(); all cores at first. A copy, because another Python thread may replace it.
Stream current_stream();
// A stream object of Python's, or None for current_stream().
Stream stream_of(py::handle object);

// Lets other Python threads run for as long as it lives, where the work takes longer than handing over the lock does.
class Unlocked {
 public:
  explicit Unlocked(std::int64_t elements) : state_(elements >= kWorthIt ? PyEval_SaveThread() : nullptr) {}
  ~Unlocked() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  static constexpr std::int64_t kWorthIt = 4096;  // elements take a microsecond or more
  PyThreadState* state_;
};

// Scratch memory for one call. Nothing is written to it that is not used.
class Scratch {
 public:
  explicit Scratch(std::size_t size)
      : bytes_(size == 0 ? nullptr : std::make_unique_for_overwrite<std::byte[]>(size)), size_(size) {}
  Workspace workspace() const { return {bytes_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_;
};

void register_threads(py::module_& module);

}  // namespace kvant::python
