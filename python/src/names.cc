#include "names.h"

#include <pybind11/numpy.h>
#include "base/text.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "array.h"
#include "dtypes.h"
#include "refusal.h"

namespace kvant::python {
namespace {

// What Python calls the elements of which `kHolds` is true; refusals list them in this order.
template <auto kHolds>
constexpr auto dtypes_of() {
  constexpr auto kCount = std::ranges::count_if(kElements, kHolds, &ElementInfo::kind);
  std::array<Dtype, kCount> dtypes{};
  std::size_t n = 0;
  for (const ElementInfo& element : kElements)
    if (kHolds(element.kind)) dtypes[n++] = {element.kind, element.numpy_name};
  return dtypes;
}

constexpr auto kFloats = dtypes_of<is_float>();
constexpr auto kCodes = dtypes_of<is_code>();
constexpr auto kLinearOutputs = [] {
  std::array<Dtype, kFloats.size() + 2> dtypes{};
  auto next = std::ranges::copy(kFloats, dtypes.begin()).out;
  for (const ElementKind kind : {ElementKind::s8, ElementKind::u8}) *next++ = {kind, info(kind).numpy_name};
  return dtypes;
}();
constexpr auto kGrids = dtypes_of<has_float_grid>();
constexpr auto kPacked = dtypes_of<is_foreign_to_numpy>();
constexpr auto kScales = dtypes_of<[](ElementKind kind) {
  return is_float(kind) || kind == ElementKind::e4m3 || info(kind).element_class == ElementClass::scale;
}>();
constexpr std::array kNumerics = {Numerics::exact, Numerics::reciprocal};
constexpr std::array kMxRules = {MxRule::floor, MxRule::round_up};
constexpr std::array kModes = {DynamicRangeMode::symmetric, DynamicRangeMode::asymmetric};
constexpr std::array kScopes = {GranularityKind::tensor, GranularityKind::channel, GranularityKind::token,
                                GranularityKind::group, GranularityKind::block};
constexpr std::array kObservers = {ObserverKind::min_max, ObserverKind::percentile, ObserverKind::mse};
constexpr auto kIsas = [] {
  constexpr auto kCount = std::ranges::count(kArchs, BackendKind::cpu, &ArchInfo::backend);
  std::array<ArchSku, kCount> isas{};
  std::size_t n = 0;
  for (const ArchInfo& arch : kArchs)
    if (arch.backend == BackendKind::cpu) isas[n++] = arch.arch;
  return isas;
}();

// The word that a Python caller writes for a value. All but dtypes have their names of C++.
std::string_view word(const Dtype& dtype) { return dtype.name; }
template <class T>
std::string_view word(T value) {
  return name(value);
}

// Empty if it is not a string.
std::string_view text_of(py::handle object) {
  if (!PyUnicode_Check(object.ptr())) return {};
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (text == nullptr) {  // lone surrogates
    PyErr_Clear();
    return {};
  }
  return {text, static_cast<std::size_t>(size)};
}

// "a, b or c", each between quotes.
template <class Values>
std::string listed(const Values& values, const char* quote) {
  std::string list;
  for (const auto& value : values)
    list += base::text("{}{}{}{}", list.empty() ? "" : (&value == &values.back() ? " or " : ", "), quote, word(value),
                       quote);
  return list;
}

template <class Values>
[[noreturn]] void refuse_word(py::handle object, const char* argument, const Values& values) {
  refuse(base::text("{} {} must be {}", argument, printed(object), listed(values, "\"")));
}

template <class Values>
auto find(std::string_view text, const Values& values) -> std::optional<typename Values::value_type> {
  for (const auto& value : values)
    if (word(value) == text) return value;
  return std::nullopt;
}

// The same for what a caller writes as a string: "float8_e4m3" is short for "float8_e4m3fn".
template <class Dtypes>
std::optional<Dtype> find_spelling(std::string_view text, const Dtypes& dtypes) {
  for (const Dtype& dtype : dtypes) {
    for (const std::string_view suffix : {"", "fn", "fnu"})
      if (dtype.name.ends_with(suffix) && dtype.name.substr(0, dtype.name.size() - suffix.size()) == text) return dtype;
  }
  return std::nullopt;
}

template <class Values>
auto meaning(py::handle object, const char* argument, const Values& values) {
  const auto found = find(text_of(object), values);
  if (!found) refuse_word(object, argument, values);
  return *found;
}

template <class Dtypes>
NamedKind kind_of_dtype(py::handle dtype, const char* argument, const Dtypes& dtypes) {
  if (const auto found = find_spelling(text_of(dtype), dtypes)) return {found->kind};
  if (!PyUnicode_Check(dtype.ptr()) && !dtype.is_none()) {
    // torch.int8 prints as it is written.
    const std::string text = printed(dtype);
    constexpr std::string_view kTorch = "torch.";
    if (text.starts_with(kTorch))
      if (const auto found = find(std::string_view(text).substr(kTorch.size()), dtypes)) return {found->kind};
    try {
      const py::dtype named = py::dtype::from_args(py::reinterpret_borrow<py::object>(dtype));
      if (const auto found = find(named.attr("name").cast<std::string>(), dtypes))
        return {found->kind, ml_dtypes_kind(named).has_value()};
    } catch (py::error_already_set& error) {  // not a dtype at all
      if (!error.matches(PyExc_Exception)) throw;
    }
  }
  refuse_word(dtype, argument, dtypes);
}

}  // namespace

const char* dtype_name(ElementKind kind) { return info(kind).numpy_name.data(); }

std::span<const Dtype> float_dtypes() { return kFloats; }
std::span<const Dtype> code_dtypes() { return kCodes; }
std::string names_of(std::span<const Dtype> dtypes) { return listed(dtypes, ""); }

NamedKind float_kind(py::handle dtype, const char* argument) { return kind_of_dtype(dtype, argument, kFloats); }
NamedKind code_kind(py::handle dtype, const char* argument) { return kind_of_dtype(dtype, argument, kCodes); }
NamedKind linear_output_kind(py::handle dtype, const char* argument) {
  return kind_of_dtype(dtype, argument, kLinearOutputs);
}
ElementKind packed_kind(py::handle dtype) { return kind_of_dtype(dtype, "dtype", kPacked).kind; }
std::optional<ElementKind> grid_kind(py::handle dtype) {
  if (dtype.is_none()) return std::nullopt;
  return kind_of_dtype(dtype, "grid", kGrids).kind;
}
std::optional<ElementKind> scale_dtype(py::handle dtype) {
  if (dtype.is_none()) return std::nullopt;
  return kind_of_dtype(dtype, "scale_dtype", kScales).kind;
}

Numerics numerics_of(py::handle text) { return meaning(text, "numerics", kNumerics); }
MxRule mx_rule_of(py::handle text) { return meaning(text, "mx_rule", kMxRules); }
DynamicRangeMode mode_of(py::handle text) { return meaning(text, "mode", kModes); }
ObserverKind observer_kind_of(py::handle text) { return meaning(text, "kind", kObservers); }
std::optional<ArchSku> isa_of(py::handle text) {
  if (text.is_none()) return std::nullopt;
  return meaning(text, "isa", kIsas);
}

Granularity granularity_of(const ScopeArguments& given) {
  const auto& [scope, axis, group_size, block_size] = given;
  GranularityKind kind = GranularityKind::tensor;
  if (!scope.is_none()) {
    kind = meaning(scope, "scope", kScopes);
  } else if (!block_size.is_none()) {
    kind = GranularityKind::block;
  } else if (!group_size.is_none()) {
    kind = GranularityKind::group;
  } else if (!axis.is_none()) {
    kind = GranularityKind::channel;
  }
  if (kind != GranularityKind::group && !group_size.is_none())
    refuse(base::text("group_size {} belongs to scope \"group\", not to \"{}\"", printed(group_size), name(kind)));
  if (kind != GranularityKind::block && !block_size.is_none())
    refuse(base::text("block_size {} belongs to scope \"block\", not to \"{}\"", printed(block_size), name(kind)));
  if (kind != GranularityKind::channel && kind != GranularityKind::group && !axis.is_none())
    refuse(base::text("axis {} belongs to scopes \"channel\" and \"group\", not to \"{}\"", printed(axis), name(kind)));
  switch (kind) {
    case GranularityKind::tensor: return Granularity::per_tensor();
    case GranularityKind::token: return Granularity::per_token();
    case GranularityKind::channel:
      if (axis.is_none()) refuse("scope \"channel\" needs an axis");
      return Granularity::per_channel(integer32(axis, "axis"));
    case GranularityKind::group:
      if (group_size.is_none()) refuse("scope \"group\" needs a group_size");
      return Granularity::per_group(axis.is_none() ? -1 : integer32(axis, "axis"), integer(group_size, "group_size"));
    case GranularityKind::block: {
      if (block_size.is_none()) refuse("scope \"block\" needs a block_size");
      const Shape sides = shape_from(block_size, "block_size");
      if (sides.rank() != 2)
        refuse(base::text("block_size {} must be two sizes, rows and columns", printed(block_size)));
      return Granularity::per_block(sides[0], sides[1]);
    }
  }
  return {};
}

std::int64_t integer(py::handle object, const char* argument) {
  if (!PyIndex_Check(object.ptr())) refuse(base::text("{} {} must be an integer", argument, printed(object)));
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
  if (!index) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw py::error_already_set();
    PyErr_Clear();  // an array of several integers
    refuse(base::text("{} {} must be an integer", argument, printed(object)));
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) refuse(base::text("{} {} does not fit 64 bits", argument, printed(index)));
  return value;
}

std::int32_t integer32(py::handle object, const char* argument) {
  const std::int64_t value = integer(object, argument);
  if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max())
    refuse(base::text("{} {} does not fit 32 bits", argument, value));
  return static_cast<std::int32_t>(value);
}

std::optional<std::int32_t> optional_integer32(py::handle object, const char* argument) {
  if (object.is_none()) return std::nullopt;
  return integer32(object, argument);
}

double number(py::handle object, const char* argument) {
  if (PyFloat_Check(object.ptr())) return PyFloat_AS_DOUBLE(object.ptr());
  const double value = PyUnicode_Check(object.ptr()) ? -1.0 : PyFloat_AsDouble(object.ptr());
  if (PyUnicode_Check(object.ptr()) || (value == -1.0 && PyErr_Occurred() != nullptr)) {
    if (PyErr_Occurred() != nullptr && !PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();
    PyErr_Clear();
    refuse(base::text("{} {} must be a number", argument, printed(object)));
  }
  return value;
}

std::optional<float> optional_number32(py::handle object, const char* argument) {
  if (object.is_none()) return std::nullopt;
  return static_cast<float>(number(object, argument));
}

bool boolean(py::handle object, const char* argument) {
  if (object.ptr() == Py_True) return true;
  if (object.ptr() == Py_False) return false;
  refuse(base::text("{} {} must be True or False", argument, printed(object)));
}

}  // namespace kvant::python
