// The module kvant._kvant.
#include <pybind11/pybind11.h>

#include "functions.h"
#include "packed_int4.h"
#include "refusal.h"
#include "threads.h"

PYBIND11_MODULE(_kvant, module) {
  using namespace kvant::python;
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
