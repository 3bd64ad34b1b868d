// The module kvant._kvant.
#include <pybind11/pybind11.h>

#include <string>

#include "functions.h"
#include "packed_int4.h"
#include "refusal.h"
#include "threads.h"

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
  module.doc() = "The compiled part of kvant; the modules beside it say what its functions do.";
  register_refusals();
  register_threads(module);
  register_packed_int4(module);
  register_packed_weight(module);
  register_elementwise(module);
  register_dynamic_range(module);
  register_linear(module);
  register_smoothing(module);
  register_observer(module);
  register_plans(module);
  register_info(module);
}
