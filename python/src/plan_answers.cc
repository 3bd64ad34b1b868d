// What plans say of themselves: Status, PrecisionGuarantee and KernelSku as Python sees them.
#include "base/text.h"

#include <string>

#include "functions.h"
#include "kvant/sku.h"
#include "kvant/status.h"
#include "names.h"

namespace kvant::python {
namespace {

std::string text(MathPrecision precision) { return precision == MathPrecision::f64 ? "float64" : "float32"; }
std::string text(AccumulatorKind accumulator) {
  switch (accumulator) {
    case AccumulatorKind::none: return "none";
    case AccumulatorKind::exact_integer: return "exact_integer";
    case AccumulatorKind::f32_chain: return "f32_chain";
  }
  return "unknown";
}
const char* text(bool value) { return value ? "True" : "False"; }

}  // namespace

void register_plan_answers(py::module_& module) {
  py::class_<Status>(module, "Status", py::is_final(), py::module_local(),
                     "The answer of can_implement(): true, or a code with a sentence.")
      .def_property_readonly("ok", [](const Status& self) { return self.ok(); })
      .def_property_readonly("code", [](const Status& self) { return std::string(name(self.code())); })
      .def_property_readonly("message", [](const Status& self) { return std::string(self.message()); })
      .def("__bool__", [](const Status& self) { return self.ok(); })
      .def("__repr__", [](const Status& self) {
        return self.ok() ? std::string("Status(Ok)") : base::text("Status({}: {})", name(self.code()), self.message());
      });
  py::class_<PrecisionGuarantee>(module, "PrecisionGuarantee", py::is_final(), py::module_local(),
                                 "What a kernel promises.")
      .def_property_readonly(
          "math_precision", [](const PrecisionGuarantee& self) { return text(self.math_precision); },
          "\"float32\" or \"float64\": what the formula is evaluated in.")
      .def_property_readonly(
          "accumulator", [](const PrecisionGuarantee& self) { return text(self.accumulator); },
          "\"exact_integer\" for sums that never saturate, wrap or round; else \"none\".")
      .def_readonly("bit_stable_on_same_hardware", &PrecisionGuarantee::bit_stable_on_same_hardware)
      .def_readonly("bit_stable_across_hardware", &PrecisionGuarantee::bit_stable_across_hardware)
      .def_readonly("deterministic", &PrecisionGuarantee::deterministic)
      .def("__eq__", [](const PrecisionGuarantee& a, const PrecisionGuarantee& b) { return a == b; })
      .def("__repr__", [](const PrecisionGuarantee& self) {
        return base::text(
            "PrecisionGuarantee(math_precision='{}', accumulator='{}', bit_stable_on_same_hardware={}, "
            "bit_stable_across_hardware={}, deterministic={})",
            text(self.math_precision), text(self.accumulator), text(self.bit_stable_on_same_hardware),
            text(self.bit_stable_across_hardware), text(self.deterministic));
      });
  py::class_<KernelSku>(module, "KernelSku", py::is_final(), py::module_local(), "Which kernel a plan runs.")
      .def_property_readonly(
          "name", [](const KernelSku& self) { return self.name(); }, "As in \"quantize_f32_s8__avx2\".")
      .def_property_readonly("op", [](const KernelSku& self) { return std::string(name(self.op)); })
      .def_property_readonly(
          "element", [](const KernelSku& self) { return dtype_name(self.element); }, "What the kernel reads.")
      .def_property_readonly(
          "aux_element", [](const KernelSku& self) { return dtype_name(self.aux_element); }, "What it writes.")
      .def_property_readonly("isa", [](const KernelSku& self) { return std::string(name(self.arch)); })
      .def_property_readonly("backend", [](const KernelSku& self) { return std::string(name(self.backend)); })
      .def_readonly("precision_guarantee", &KernelSku::precision_guarantee)
      .def("__repr__", [](const KernelSku& self) { return base::text("KernelSku('{}')", self.name()); });
}

}  // namespace kvant::python
