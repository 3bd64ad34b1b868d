#include "names.h"

#include <fmt/format.h>
#include <pybind11/numpy.h>

#include <array>
#include <limits>
#include <string_view>

#include "array.h"
#include "refusal.h"

namespace kvant::python {
namespace {

template <class T>
struct Word {
  std::string_view text;
  T meaning;
};

constexpr std::array kFloats = {
    Word<ElementKind>{"float32", ElementKind::f32}, Word<ElementKind>{"float64", ElementKind::f64},
    Word<ElementKind>{"float16", ElementKind::f16}, Word<ElementKind>{"bfloat16", ElementKind::bf16}};
constexpr std::array kCodes = {Word<ElementKind>{"int8", ElementKind::s8}, Word<ElementKind>{"uint8", ElementKind::u8},
                               Word<ElementKind>{"int4", ElementKind::s4}, Word<ElementKind>{"uint4", ElementKind::u4}};
constexpr std::array kNumerics = {Word<Numerics>{"exact", Numerics::exact},
                                  Word<Numerics>{"reciprocal", Numerics::reciprocal}};
constexpr std::array kModes = {Word<DynamicRangeMode>{"symmetric", DynamicRangeMode::symmetric},
                               Word<DynamicRangeMode>{"asymmetric", DynamicRangeMode::asymmetric}};
constexpr std::array kScopes = {Word<GranularityKind>{"tensor", GranularityKind::tensor},
                                Word<GranularityKind>{"channel", GranularityKind::channel},
                                Word<GranularityKind>{"token", GranularityKind::token},
                                Word<GranularityKind>{"group", GranularityKind::group}};
constexpr std::array kObservers = {Word<ObserverKind>{"min_max", ObserverKind::min_max},
                                   Word<ObserverKind>{"percentile", ObserverKind::percentile},
                                   Word<ObserverKind>{"mse", ObserverKind::mse}};
constexpr std::array kIsas = {Word<ArchSku>{"scalar", ArchSku::scalar}, Word<ArchSku>{"avx2", ArchSku::avx2}};

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

template <class Words>
[[noreturn]] void refuse_word(py::handle object, const char* argument, const Words& words) {
  std::string choices;
  for (const auto& word : words)
    choices += fmt::format("{}\"{}\"", choices.empty() ? "" : (&word == &words.back() ? " or " : ", "), word.text);
  refuse(fmt::format("{} {} must be {}", argument, printed(object), choices));
}

template <class Words>
auto find(std::string_view text, const Words& words) -> std::optional<decltype(words[0].meaning)> {
  for (const auto& word : words)
    if (word.text == text) return word.meaning;
  return std::nullopt;
}

template <class Words>
auto meaning(py::handle object, const char* argument, const Words& words) {
  const auto found = find(text_of(object), words);
  if (!found) refuse_word(object, argument, words);
  return *found;
}

template <class Words>
NamedKind kind_of_dtype(py::handle dtype, const char* argument, const Words& words) {
  if (const auto found = find(text_of(dtype), words)) return {*found};
  if (!PyUnicode_Check(dtype.ptr()) && !dtype.is_none()) {
    // torch.int8 prints as it is written.
    const std::string text = printed(dtype);
    constexpr std::string_view kTorch = "torch.";
    if (text.starts_with(kTorch))
      if (const auto found = find(std::string_view(text).substr(kTorch.size()), words)) return {*found};
    try {
      const py::dtype named = py::dtype::from_args(py::reinterpret_borrow<py::object>(dtype));
      if (is_ml_bfloat16(named)) {
        if (const auto found = find("bfloat16", words)) return {*found, true};
      } else if (const auto found = find(named.attr("name").cast<std::string>(), words)) {
        return {*found};
      }
    } catch (py::error_already_set& error) {  // not a dtype at all
      if (!error.matches(PyExc_Exception)) throw;
    }
  }
  refuse_word(dtype, argument, words);
}

}  // namespace

const char* dtype_name(ElementKind kind) {
  switch (kind) {
    case ElementKind::f32: return "float32";
    case ElementKind::f64: return "float64";
    case ElementKind::f16: return "float16";
    case ElementKind::bf16: return "bfloat16";
    case ElementKind::s8: return "int8";
    case ElementKind::u8: return "uint8";
    case ElementKind::s4: return "int4";
    case ElementKind::u4: return "uint4";
    case ElementKind::s32: return "int32";
  }
  return "unknown";
}

NamedKind float_kind(py::handle dtype, const char* argument) { return kind_of_dtype(dtype, argument, kFloats); }
NamedKind code_kind(py::handle dtype, const char* argument) { return kind_of_dtype(dtype, argument, kCodes); }

Numerics numerics_of(py::handle text) { return meaning(text, "numerics", kNumerics); }
DynamicRangeMode mode_of(py::handle text) { return meaning(text, "mode", kModes); }
ObserverKind observer_kind_of(py::handle text) { return meaning(text, "kind", kObservers); }
std::optional<ArchSku> isa_of(py::handle text) {
  if (text.is_none()) return std::nullopt;
  return meaning(text, "isa", kIsas);
}

Granularity granularity_of(py::handle scope, py::handle axis, py::handle group_size) {
  GranularityKind kind = GranularityKind::tensor;
  if (!scope.is_none()) {
    kind = meaning(scope, "scope", kScopes);
  } else if (!group_size.is_none()) {
    kind = GranularityKind::group;
  } else if (!axis.is_none()) {
    kind = GranularityKind::channel;
  }
  if (kind != GranularityKind::group && !group_size.is_none())
    refuse(fmt::format("group_size {} belongs to scope \"group\", not to \"{}\"", printed(group_size), name(kind)));
  switch (kind) {
    case GranularityKind::tensor:
    case GranularityKind::token:
      if (!axis.is_none())
        refuse(fmt::format("axis {} belongs to scopes \"channel\" and \"group\", not to \"{}\"", printed(axis),
                           name(kind)));
      return kind == GranularityKind::tensor ? Granularity::per_tensor() : Granularity::per_token();
    case GranularityKind::channel:
      if (axis.is_none()) refuse("scope \"channel\" needs an axis");
      return Granularity::per_channel(integer32(axis, "axis"));
    case GranularityKind::group:
      if (group_size.is_none()) refuse("scope \"group\" needs a group_size");
      return Granularity::per_group(axis.is_none() ? -1 : integer32(axis, "axis"), integer(group_size, "group_size"));
  }
  return {};
}

std::int64_t integer(py::handle object, const char* argument) {
  if (!PyIndex_Check(object.ptr())) refuse(fmt::format("{} {} must be an integer", argument, printed(object)));
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
  if (!index) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw py::error_already_set();
    PyErr_Clear();  // an array of several integers
    refuse(fmt::format("{} {} must be an integer", argument, printed(object)));
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) refuse(fmt::format("{} {} does not fit 64 bits", argument, printed(index)));
  return value;
}

std::int32_t integer32(py::handle object, const char* argument) {
  const std::int64_t value = integer(object, argument);
  if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max())
    refuse(fmt::format("{} {} does not fit 32 bits", argument, value));
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
    refuse(fmt::format("{} {} must be a number", argument, printed(object)));
  }
  return value;
}

bool boolean(py::handle object, const char* argument) {
  if (object.ptr() == Py_True) return true;
  if (object.ptr() == Py_False) return false;
  refuse(fmt::format("{} {} must be True or False", argument, printed(object)));
}

}  // namespace kvant::python
