#include "threads.h"

#include <fmt/format.h>

#include <limits>
#include <optional>

#include "names.h"
#include "refusal.h"

namespace kvant::python {
namespace {

// Guarded by Python's lock.
std::optional<Stream> g_stream;

Stream with_threads(py::handle threads, const char* argument) {
  Stream stream = Stream::cpu(integer32(threads, argument));
  check(stream.status());
  return stream;
}

struct StreamObject {
  Stream stream;
};

}  // namespace

Stream current_stream() {
  if (!g_stream) g_stream = Stream::cpu();
  return *g_stream;
}

Stream stream_of(py::handle object) {
  if (object.is_none()) return current_stream();
  if (!py::isinstance<StreamObject>(object))
    refuse(fmt::format("stream {} must be a kvant.plan.Stream", printed(object)));
  return object.cast<const StreamObject&>().stream;
}

void register_threads(py::module_& module) {
  module.def(
      "set_num_threads", [](py::handle threads) { g_stream = with_threads(threads, "threads"); }, py::arg("threads"),
      "Functions run on this many threads from now on, the calling one included. At first: all cores that the process\n"
      "may use. Results do not depend on it.\n\n"
      ">>> set_num_threads(2)\n"
      ">>> get_num_threads()\n"
      "2\n");
  module.def(
      "get_num_threads", [] { return current_stream().threads(); },
      "How many threads functions run on.\n\n"
      ">>> set_num_threads(1)\n"
      ">>> get_num_threads()\n"
      "1\n");
  py::class_<StreamObject>(module, "Stream",
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
           [](const StreamObject& self) { return fmt::format("Stream(threads={})", self.stream.threads()); });
}

}  // namespace kvant::python
