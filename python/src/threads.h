// The threads that functions run on, and the release of Python's lock while they do.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kvant/plan.h"
#include "kvant/stream.h"

// The exception of a forced unwind is a reference to nothing, which UndefinedBehaviorSanitizer would mind.
#define KVANT_CATCHES_FORCED_UNWIND [[gnu::no_sanitize("null")]]

namespace kvant::python {

namespace py = pybind11;

// The stream of set_num_threads(); all cores at first. A copy, because another Python thread may replace it.
Stream current_stream();
// A stream object of Python's, or None for current_stream().
Stream stream_of(py::handle object);

// Python is shutting down, and ends threads that come back to it (before 3.14) by unwinding their stack, through
// objects that it must not be asked to free any more. The process is about to end: waits for that, as 3.14 does.
[[noreturn]] void wait_for_the_end() noexcept;

// function(*arguments), for what may take long and let go of Python's lock meanwhile, as numpy does: a thread that is
// ended in there waits here, before anything of ours is freed.
py::object call_python(const py::object& function, const py::tuple& arguments);

// Lets other Python threads run for as long as it lives, where the work takes longer than handing over the lock does.
class Unlocked {
 public:
  explicit Unlocked(std::int64_t elements) : state_(elements >= kWorthIt ? PyEval_SaveThread() : nullptr) {}
  ~Unlocked() {
    if (state_ != nullptr) take_back(state_);
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  static void take_back(PyThreadState* state);

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
