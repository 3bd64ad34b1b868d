// Observer as Python sees it.
#include "kvant/observer.h"

#include "base/text.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "array.h"
#include "functions.h"
#include "names.h"
#include "threads.h"

namespace kvant::python {
namespace {

// Every method may be called from any thread: observe() lets go of Python's lock, so there is one of its own. Whoever
// holds it runs no Python and never waits for Python's.
class ObserverObject {
 public:
  ObserverObject(const ObserverDescriptor& descriptor, bool input_open)
      : observer_(value_of(Observer::create(descriptor))), input_given_(!input_open), input_open_(input_open) {}

  // What `function` takes from the observer, by value.
  template <class Function>
  auto read(Function&& function) const {
    const std::lock_guard lock(mutex_);
    return function(observer_);
  }

  void observe(py::handle batch) {
    const Input x = input(batch, "x", Elements::floats);
    const Stream stream = current_stream();
    Status done;
    {
      const Unlocked unlocked(element_count(x.view.shape));
      const std::lock_guard lock(mutex_);
      const bool open = input_open_ && element_count(x.view.shape) == 0;  // a batch of nothing decides nothing
      take_input(x.view.kind);
      done = observer_.observe(stream, x.view);
      if (done.ok()) input_open_ = open;
    }
    check(done);
  }

  void merge(const ObserverObject& other) {
    if (&other == this) {
      const Observer copy = read([](const Observer& observer) { return observer; });
      const std::lock_guard lock(mutex_);
      check(observer_.merge(copy));
      return;
    }
    const std::scoped_lock lock(mutex_, other.mutex_);
    if (other.input_open_) {
      // It has seen nothing, but what it was made for must be the same.
      ObserverDescriptor descriptor = other.observer_.descriptor();
      descriptor.input = observer_.descriptor().input;
      check(observer_.merge(value_of(Observer::create(descriptor))));
      return;
    }
    take_input(other.observer_.descriptor().input);
    check(observer_.merge(other.observer_));
    input_open_ = false;
  }

  void reset() {
    const std::lock_guard lock(mutex_);
    observer_.reset();
    input_open_ = !input_given_;
  }

 private:
  // Without an input_dtype the first batch decides.
  void take_input(ElementKind kind) {
    if (!input_open_ || kind == observer_.descriptor().input) return;
    ObserverDescriptor descriptor = observer_.descriptor();
    descriptor.input = kind;
    observer_ = value_of(Observer::create(descriptor));
  }

  mutable std::mutex mutex_;
  Observer observer_;
  bool input_given_;  // by the caller: batches of another type are refused from the first
  bool input_open_;   // yet to be decided
};

ObserverDescriptor descriptor_of(const ObserverObject& self) {
  return self.read([](const Observer& observer) { return observer.descriptor(); });
}

// Of what there is one for each segment: [channels], or [] per tensor. None before the first batch.
Shape segments(const ObserverDescriptor& descriptor, std::size_t count) {
  if (descriptor.scope.kind() == GranularityKind::tensor && count == 1) return {};
  return {static_cast<std::int64_t>(count)};
}

// Looking for the min error in histograms takes milliseconds, whatever was observed.
constexpr std::int64_t kSearch = 1 << 20;

py::tuple parameters(const ObserverObject& self) {
  const auto found = [&] {
    const Unlocked unlocked(kSearch);
    return value_of(self.read([](const Observer& observer) { return observer.parameters(); }));
  }();
  const ObserverDescriptor descriptor = descriptor_of(self);
  const Shape shape = segments(descriptor, found.scale.size());
  Output scale = new_output(scale_kind(descriptor.input), shape, Flavor::numpy);
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

template <class Function>
py::array ranges(const ObserverObject& self, Function&& function) {
  const std::vector<double> values = self.read([&](const Observer& observer) { return function(observer); });
  Output made = new_output(ElementKind::f64, segments(descriptor_of(self), values.size()), Flavor::numpy);
  std::copy(values.begin(), values.end(), static_cast<double*>(made.view.data));
  return made.elements;
}

std::int64_t observed(const ObserverObject& self) {
  return self.read([](const Observer& observer) { return observer.observed(); });
}
std::int64_t ignored(const ObserverObject& self) {
  return self.read([](const Observer& observer) { return observer.ignored(); });
}

std::string representation(const ObserverObject& self) {
  const ObserverDescriptor d = descriptor_of(self);
  const std::string axis =
      d.scope.kind() == GranularityKind::channel ? base::text(", axis={}", d.scope.axis()) : std::string();
  return base::text("Observer('{}', scope='{}'{}, mode='{}', dtype='{}', observed={}, ignored={})", name(d.kind),
                    name(d.scope.kind()), axis, name(d.mode), dtype_name(d.output), observed(self), ignored(self));
}

std::unique_ptr<ObserverObject> make(py::handle kind, py::handle scope, py::handle axis, py::handle mode,
                                     py::handle include_zero, py::handle dtype, py::handle q_min, py::handle q_max,
                                     py::handle percentile, py::handle bins, py::handle input_dtype) {
  ObserverDescriptor descriptor{.kind = observer_kind_of(kind),
                                .scope = granularity_of({scope, axis}),
                                .mode = mode_of(mode),
                                .include_zero = boolean(include_zero, "include_zero"),
                                .output = code_kind(dtype).kind,
                                .q_min = optional_integer32(q_min, "q_min"),
                                .q_max = optional_integer32(q_max, "q_max"),
                                .percentile = number(percentile, "percentile"),
                                .bins = integer32(bins, "bins")};
  const bool input_open = input_dtype.is_none();
  if (!input_open) descriptor.input = float_kind(input_dtype, "input_dtype").kind;
  return std::make_unique<ObserverObject>(descriptor, input_open);
}

constexpr const char* kDocumentation =
    R"(Static calibration: observes batches of a tensor, then gives one scale and zero point for all of them.

kind:
    "min_max"     the range of everything seen
    "percentile"  the range without outliers: `percentile` percent of the values stay inside
    "mse"         the range whose quantization has the min squared error, found in a histogram of `bins` bins

The range becomes scale and zero point as in dynamic_range_quantize, for codes of `dtype` within [q_min, q_max].
scope: "tensor", or "channel" with an axis of the same size in all batches. The result depends on the values alone, not
on how they were cut into batches, on their order, or on threads. NaN and infinities are left out and counted.
input_dtype: the dtype of the batches; by default that of the first batch.

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
  py::class_<ObserverObject>(module, "Observer", py::is_final(), py::module_local(), kDocumentation)
      .def(py::init(&make), py::arg("kind") = "min_max", py::kw_only(), py::arg("scope") = "tensor",
           py::arg("axis") = py::none(), py::arg("mode") = "symmetric", py::arg("include_zero") = true,
           py::arg("dtype") = "int8", py::arg("q_min") = py::none(), py::arg("q_max") = py::none(),
           py::arg("percentile") = 99.99, py::arg("bins") = 4096, py::arg("input_dtype") = py::none())
      .def(
          "observe", [](ObserverObject& self, py::handle x) { self.observe(x); }, py::arg("x"),
          "Adds a batch. One that is refused, or without elements, changes nothing.")
      .def(
          "merge", [](ObserverObject& self, const ObserverObject& other) { self.merge(other); }, py::arg("other"),
          "Adds what another observer, made with the same arguments, has seen.")
      .def("parameters", &parameters, "(scale, zero_point) from all that was seen.")
      .def(
          "reset", [](ObserverObject& self) { self.reset(); }, "Forgets all batches.")
      .def_property_readonly("kind",
                             [](const ObserverObject& self) { return std::string(name(descriptor_of(self).kind)); })
      .def_property_readonly(
          "min", [](const ObserverObject& self) { return ranges(self, [](const Observer& o) { return o.min(); }); })
      .def_property_readonly(
          "max", [](const ObserverObject& self) { return ranges(self, [](const Observer& o) { return o.max(); }); })
      .def_property_readonly(
          "max_abs",
          [](const ObserverObject& self) { return ranges(self, [](const Observer& o) { return o.max_abs(); }); })
      .def_property_readonly("observed", &observed)
      .def_property_readonly("ignored", &ignored)
      .def("__repr__", &representation);
}

}  // namespace kvant::python
