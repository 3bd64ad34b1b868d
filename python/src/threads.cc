#include "threads.h"

#include "base/text.h"

#include <cxxabi.h>
#include <pthread.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include "names.h"
#include "refusal.h"

namespace kvant::python {
namespace {

// Guarded by Python's lock.
std::optional<Stream> g_stream;
bool g_forked = false;  // since the stream was made

Stream with_threads(py::handle threads, const char* argument) {
  Stream stream = Stream::cpu(integer32(threads, argument));
  check(stream.status());
  return stream;
}

struct StreamObject {
  Stream stream;
};

}  // namespace

void wait_for_the_end() noexcept {
  for (;;) pause();
}

KVANT_CATCHES_FORCED_UNWIND py::object call_python(const py::object& function, const py::tuple& arguments) {
  PyObject* result = nullptr;
  try {
    result = PyObject_Call(function.ptr(), arguments.ptr(), nullptr);
  } catch (abi::__forced_unwind&) {
    wait_for_the_end();
  }
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

KVANT_CATCHES_FORCED_UNWIND void Unlocked::take_back(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (abi::__forced_unwind&) {
    wait_for_the_end();
  }
}

Stream current_stream() {
  if (g_forked) {
    // A child of fork() has none of the threads, and what they held when they vanished stays held: not even giving the
    // old stream back is safe.
    if (g_stream) new Stream(*std::exchange(g_stream, Stream::cpu(1)));
    g_stream = Stream::cpu(1);
    g_forked = false;
  }
  if (!g_stream) g_stream = Stream::cpu();
  return *g_stream;
}

Stream stream_of(py::handle object) {
  if (object.is_none()) return current_stream();
  if (!py::isinstance<StreamObject>(object))
    refuse(base::text("stream {} must be a kvant.plan.Stream", printed(object)));
  return object.cast<const StreamObject&>().stream;
}

void register_threads(py::module_& module) {
  pthread_atfork(nullptr, nullptr, [] { g_forked = true; });
  module.def(
      "set_num_threads",
      [](py::handle threads) {
        Stream stream = with_threads(threads, "threads");
        current_stream();  // leaves a parent's stream alone
        g_stream = std::move(stream);
      },
      py::arg("threads"),
      "Functions run on this many threads from now on, the calling one included. At first: all cores that the process\n"
      "may use; one in a child of os.fork(). Results do not depend on it.\n\n"
      ">>> set_num_threads(2)\n"
      ">>> get_num_threads()\n"
      "2\n");
  module.def(
      "get_num_threads", [] { return current_stream().threads(); },
      "How many threads functions run on.\n\n"
      ">>> set_num_threads(1)\n"
      ">>> get_num_threads()\n"
      "1\n");
  py::class_<StreamObject>(module, "Stream", py::is_final(), py::module_local(),
                           "Threads for plans: Stream(4) has four, the calling one included; Stream() all cores that "
                           "the process may use.\n\n"
                           ">>> plan.Stream(2)\n"
                           "Stream(threads=2)\n")
      .def(py::init([](py::handle threads) {
             return StreamObject{threads.is_none() ? Stream::cpu() : with_threads(threads, "threads")};
           }),
           py::arg("threads") = py::none())
      .def_property_readonly("threads", [](const StreamObject& self) { return self.stream.threads(); })
      .def("__repr__",
           [](const StreamObject& self) { return base::text("Stream(threads={})", self.stream.threads()); });
}

}  // namespace kvant::python
