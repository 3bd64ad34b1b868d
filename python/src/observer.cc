// Observer as Python sees it.
#include "kvant/observer.h"

#include <fmt/format.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "array.h"
#include "functions.h"
#include "names.h"
#include "threads.h"

namespace kvant::python {
namespace {

class ObserverObject {
 public:
  ObserverObject(ObserverDescriptor descriptor, bool input_open)
      : observer_(value_of(Observer::create(descriptor))), input_open_(input_open) {}

  void observe(py::handle batch) {
    const Input x = input(batch, "x", Elements::floats);
    // Without an input_dtype the first batch decides.
    if (input_open_ && x.view.kind != observer_.descriptor().input) {
      ObserverDescriptor descriptor = observer_.descriptor();
      descriptor.input = x.view.kind;
      observer_ = value_of(Observer::create(descriptor));
    }
    const Stream stream = current_stream();
    Status done;
    {
      const Unlocked unlocked(element_count(x.view.shape));
      done = observer_.observe(stream, x.view);
    }
    check(done);
    input_open_ = false;
  }

  void merge(const ObserverObject& other) {
    if (input_open_ && !other.input_open_) {
      ObserverDescriptor descriptor = observer_.descriptor();
      descriptor.input = other.observer_.descriptor().input;
      observer_ = value_of(Observer::create(descriptor));
    } else if (other.input_open_) {
      return;  // it has seen nothing
    }
    check(observer_.merge(other.observer_));
    input_open_ = false;
  }

  void reset() { observer_.reset(); }

  py::tuple parameters() const {
    const QuantizationParameters found = value_of(observer_.parameters());
    const bool one = is_one();
    const Shape shape = one ? Shape() : Shape({static_cast<std::int64_t>(found.scale.size())});
    Output scale = new_output(scale_kind(observer_.descriptor().input), shape, Flavor::numpy);
    Output zero_point = new_output(ElementKind::s32, shape, Flavor::numpy);
    for (std::size_t i = 0; i < found.scale.size(); ++i) {
      if (scale.view.kind == ElementKind::f64)
        static_cast<double*>(scale.view.data)[i] = found.scale[i];
      else
        static_cast<float*>(scale.view.data)[i] = static_cast<float>(found.scale[i]);
      static_cast<std::int32_t*>(zero_point.view.data)[i] = found.zero_point[i];
    }
    return py::make_tuple(scale.elements, zero_point.elements);
  }

  // One for each segment; none before the first batch.
  py::array ranges(const std::vector<double>& values) const {
    const bool one = is_one() && values.size() == 1;
    Output made =
        new_output(ElementKind::f64, one ? Shape() : Shape({static_cast<std::int64_t>(values.size())}), Flavor::numpy);
    for (std::size_t i = 0; i < values.size(); ++i) static_cast<double*>(made.view.data)[i] = values[i];
    return made.elements;
  }

  const Observer& observer() const { return observer_; }

  std::string representation() const {
    const ObserverDescriptor& d = observer_.descriptor();
    const std::string axis = is_one() ? "" : fmt::format(", axis={}", d.scope.axis());
    return fmt::format("Observer('{}', scope='{}'{}, mode='{}', dtype='{}', observed={}, ignored={})", name(d.kind),
                       name(d.scope.kind()), axis, name(d.mode), dtype_name(d.output), observer_.observed(),
                       observer_.ignored());
  }

 private:
  bool is_one() const { return observer_.descriptor().scope.kind() == GranularityKind::tensor; }

  Observer observer_;
  bool input_open_;
};

ObserverObject make(py::handle kind, py::handle scope, py::handle axis, py::handle mode, bool include_zero,
                    py::handle dtype, py::handle q_min, py::handle q_max, double percentile, int bins,
                    py::handle input_dtype) {
  ObserverDescriptor descriptor{.kind = observer_kind_of(kind),
                                .scope = granularity_of(scope, axis, py::none()),
                                .mode = mode_of(mode),
                                .include_zero = include_zero,
                                .output = code_kind(dtype).kind,
                                .q_min = optional_integer32(q_min, "q_min"),
                                .q_max = optional_integer32(q_max, "q_max"),
                                .percentile = percentile,
                                .bins = bins};
  const bool input_open = input_dtype.is_none();
  if (!input_open) descriptor.input = float_kind(input_dtype, "input_dtype").kind;
  return {descriptor, input_open};
}

constexpr const char* kDocumentation =
    R"(Static calibration: watches batches of a tensor, then gives the scale and zero point that suit all of them.

kind:
    "min_max"     the range of everything seen
    "percentile"  the range without the outermost values: `percentile` percent stay inside
    "mse"         the range whose quantization has the least squared error, found in a histogram of `bins` bins

The range becomes scale and zero point as in dynamic_range_quantize, for codes of `dtype` within [q_min, q_max].
scope: "tensor", or "channel" with an axis of the same size in all batches. The result depends on the values alone, not
on how they were cut into batches, on their order, or on threads. NaN and infinities are left out and counted.
input_dtype: of the batches; the first batch's unless given.

>>> import numpy as np
>>> observer = Observer("min_max", mode="asymmetric", dtype="uint8")
>>> observer.observe(np.array([-1.0, 0.5], np.float32))
>>> observer.observe(np.array([4.1, np.nan], np.float32))
>>> observer
Observer('min_max', scope='tensor', mode='asymmetric', dtype='uint8', observed=3, ignored=1)
>>> observer.parameters()
(array(0.02, dtype=float32), array(50, dtype=int32))
)";

}  // namespace

void register_observer(py::module_& module) {
  py::class_<ObserverObject>(module, "Observer", kDocumentation)
      .def(py::init(&make), py::arg("kind") = "min_max", py::kw_only(), py::arg("scope") = "tensor",
           py::arg("axis") = py::none(), py::arg("mode") = "symmetric", py::arg("include_zero") = true,
           py::arg("dtype") = "int8", py::arg("q_min") = py::none(), py::arg("q_max") = py::none(),
           py::arg("percentile") = 99.99, py::arg("bins") = 4096, py::arg("input_dtype") = py::none())
      .def("observe", &ObserverObject::observe, py::arg("x"),
           "Adds a batch. One that is refused, or without elements, changes nothing. Not for two threads at once.")
      .def("merge", &ObserverObject::merge, py::arg("other"),
           "Adds what another observer, made with the same arguments, has seen.")
      .def("parameters", &ObserverObject::parameters, "(scale, zero_point) from all that was seen.")
      .def("reset", &ObserverObject::reset, "Forgets all batches.")
      .def_property_readonly(
          "kind", [](const ObserverObject& self) { return std::string(name(self.observer().descriptor().kind)); })
      .def_property_readonly("min", [](const ObserverObject& self) { return self.ranges(self.observer().min()); })
      .def_property_readonly("max", [](const ObserverObject& self) { return self.ranges(self.observer().max()); })
      .def_property_readonly("max_abs",
                             [](const ObserverObject& self) { return self.ranges(self.observer().max_abs()); })
      .def_property_readonly("observed", [](const ObserverObject& self) { return self.observer().observed(); })
      .def_property_readonly("ignored", [](const ObserverObject& self) { return self.observer().ignored(); })
      .def("__repr__", &ObserverObject::representation);
}

}  // namespace kvant::python
