#include "packed_weight.h"

#include "base/text.h"

#include <optional>
#include <span>
#include <string>
#include <utility>

#include "functions.h"
#include "names.h"
#include "packed_array.h"
#include "threads.h"

namespace kvant::python {
namespace {

PackedWeight pack(py::handle weight, py::handle isa) {
  const Input codes = byte_codes(weight, "weight_q");
  const PlanPreference preference{.isa = isa_of(isa)};
  const Stream stream = current_stream();
  std::optional<Result<PackedWeight>> packed;
  {
    const Unlocked unlocked(element_count(codes.view.shape));
    packed = PackedWeight::pack(stream, codes.view, preference);
  }
  return value_of(*std::move(packed));
}

PackedWeight from_bytes(const py::buffer& data) {
  const py::buffer_info info = data.request();
  if (PyBuffer_IsContiguous(info.view(), 'C') == 0) refuse("PackedWeight.from_bytes: the bytes must be contiguous");
  const auto size = static_cast<std::size_t>(info.size * info.itemsize);
  const Stream stream = current_stream();
  std::optional<Result<PackedWeight>> packed;
  {
    const Unlocked unlocked(info.size * info.itemsize);
    packed = PackedWeight::from_bytes(stream, {static_cast<const std::byte*>(info.ptr), size});
  }
  return value_of(*std::move(packed));
}

py::bytes to_bytes(const PackedWeight& self) {
  const std::span<const std::byte> bytes = self.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

constexpr const char* kDocumentation = R"(A W8A8 weight [N, K] in the order in which the matrix kernels read it.

Pack once when a model is loaded, then give it to linear layers in place of the weight; it never changes and may be used
by many threads. Nothing is rounded or lost. weight_q: int8, uint8 or a PackedArray of integers. It belongs to the instruction set it
was packed for (isa; the best of this machine unless given). to_bytes() and from_bytes() store it for machines of the
same kind; damaged bytes are refused.

>>> import numpy as np
>>> PackedWeight(np.ones((16, 32), np.int8), isa="scalar")
PackedWeight(shape=(16, 32), dtype='int8', isa='scalar')
)";

}  // namespace

const PackedWeight* packed_weight_from(py::handle object) {
  return py::isinstance<PackedWeight>(object) ? object.cast<const PackedWeight*>() : nullptr;
}

Input byte_codes(py::handle object, const char* argument) {
  const PackedArray* const packed = PackedArray::from(object);
  if (packed != nullptr && info(packed->kind()).grid == GridKind::integer)
    return input(packed->unpacked(), argument, Elements::bytes);
  return input(object, argument, Elements::bytes);
}

void register_packed_weight(py::module_& module) {
  py::class_<PackedWeight>(module, "PackedWeight", py::is_final(), py::module_local(), kDocumentation)
      .def(py::init(&pack), py::arg("weight_q"), py::kw_only(), py::arg("isa") = py::none())
      .def_static("from_bytes", &from_bytes, py::arg("data"), "What to_bytes() gave; anything else is refused.")
      .def("to_bytes", &to_bytes)
      .def_property_readonly(
          "shape", [](const PackedWeight& self) { return py::make_tuple(self.out_features(), self.in_features()); },
          "(N, K)")
      .def_property_readonly("dtype", [](const PackedWeight& self) { return dtype_name(self.element()); })
      .def_property_readonly("isa", [](const PackedWeight& self) { return std::string(name(self.isa())); })
      .def_property_readonly("nbytes", [](const PackedWeight& self) { return self.bytes().size(); })
      .def("__repr__",
           [](const PackedWeight& self) {
             return base::text("PackedWeight(shape=({}, {}), dtype='{}', isa='{}')", self.out_features(),
                               self.in_features(), dtype_name(self.element()), name(self.isa()));
           })
      .def("__copy__", [](const PackedWeight& self) { return self; })
      .def(
          "__deepcopy__", [](const PackedWeight& self, const py::dict&) { return self; },
          py::arg("memo"))  // it never changes
      .def(py::pickle(&to_bytes, [](const py::bytes& data) { return from_bytes(data); }));
}

}  // namespace kvant::python
