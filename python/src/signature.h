// Parameters of Python's functions and methods as data: a list of names with defaults.
//
// One list gives Python the signature and gives the code its arguments by name, so no list is written twice. Names
// are found at compile time: one that is misspelt does not compile.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace kvant::python {

namespace py = pybind11;

struct Required {};

struct Parameter {
  const char* name;
  std::variant<Required, std::nullptr_t, const char*, int, bool> fallback = Required{};  // null: None
};

template <class T, std::size_t kFirst, std::size_t kSecond>
constexpr auto joined(const std::array<T, kFirst>& first, const std::array<T, kSecond>& second) {
  std::array<T, kFirst + kSecond> all{};
  std::copy(second.begin(), second.end(), std::copy(first.begin(), first.end(), all.begin()));
  return all;
}

// Parameters without defaults.
constexpr auto names(const auto&... each) { return std::array{Parameter{each}...}; }

template <std::size_t kSize>
struct Literal {
  consteval Literal(const char (&from)[kSize]) { std::copy_n(from, kSize, text); }
  char text[kSize];
};
template <Literal kLiteral>
struct ParameterName {
  static constexpr const char* kText = kLiteral.text;
};
template <Literal kLiteral>
consteval ParameterName<kLiteral> operator""_name() {
  return {};
}

// The arguments of one call: arguments["scale"_name]. What has a boolean default is a bool, all else any object.
// or_none("scale"_name) is for code that operators with and without that parameter share.
template <const auto& kParameters>
class NamedArguments {
  template <std::size_t kIndex>
  using Type = std::conditional_t<std::holds_alternative<bool>(kParameters[kIndex].fallback), bool, py::handle>;
  template <std::size_t... kIndices>
  static std::tuple<Type<kIndices>...> types(std::index_sequence<kIndices...>);
  static constexpr std::size_t position(std::string_view name) {
    return static_cast<std::size_t>(
        std::ranges::find(kParameters, name, [](const Parameter& each) { return std::string_view(each.name); }) -
        kParameters.begin());
  }

 public:
  static constexpr std::size_t kCount = kParameters.size();
  using Tuple = decltype(types(std::make_index_sequence<kCount>()));

  explicit NamedArguments(const Tuple& values) : values_(values) {}
  explicit NamedArguments(PyObject* const* values) : values_(tuple_of(values, std::make_index_sequence<kCount>())) {}

  template <class Name>
  static constexpr bool has(Name /*name*/) {
    return position(Name::kText) < kCount;
  }
  template <class Name>
  auto operator[](Name /*name*/) const {
    static_assert(has(Name{}), "the list has no parameter of this name");
    return std::get<position(Name::kText)>(values_);
  }
  template <class Name>
  py::handle or_none(Name name) const {
    if constexpr (has(Name{}))
      return (*this)[name];
    else
      return Py_None;
  }

 private:
  template <std::size_t... kIndices>
  static Tuple tuple_of(PyObject* const* values, std::index_sequence<kIndices...>) {
    return {values[kIndices]...};
  }

  Tuple values_;
};

// Which arguments may be given by position.
enum class Positional : std::uint8_t { none, those_without_default };

template <const auto& kParameters, std::size_t kIndex>
auto annotation() {
  constexpr auto& kFallback = kParameters[kIndex].fallback;
  const py::arg argument(kParameters[kIndex].name);
  if constexpr (std::holds_alternative<Required>(kFallback))
    return argument;
  else if constexpr (std::holds_alternative<std::nullptr_t>(kFallback))
    return argument = py::none();
  else
    return argument = std::get<kFallback.index()>(kFallback);
}

template <Positional kPositional, const auto& kParameters>
constexpr std::size_t positional_count() {
  if (kPositional == Positional::none) return 0;
  return static_cast<std::size_t>(std::ranges::count_if(
      kParameters, [](const Parameter& each) { return std::holds_alternative<Required>(each.fallback); }));
}

// Calls define(function, annotations...) with a function of as many parameters as the list has, after `Self` if there
// is one, that hands them to `body` as NamedArguments.
template <Positional kPositional, const auto& kParameters, class... Self, class Body, class Define>
void define_with(const Body& body, const Define& define) {
  constexpr std::size_t kByPosition = positional_count<kPositional, kParameters>();
  [&]<class... Values, std::size_t... kFirst, std::size_t... kRest>(
      std::type_identity<std::tuple<Values...>>, std::index_sequence<kFirst...>, std::index_sequence<kRest...>) {
    define([body](const Self&... self,
                  Values... values) { return body(self..., NamedArguments<kParameters>({values...})); },
           annotation<kParameters, kFirst>()..., py::kw_only(), annotation<kParameters, kByPosition + kRest>()...);
  }(std::type_identity<typename NamedArguments<kParameters>::Tuple>(), std::make_index_sequence<kByPosition>(),
    std::make_index_sequence<kParameters.size() - kByPosition>());
}

}  // namespace kvant::python
