#include "dtypes.h"

#include <algorithm>
#include <array>
#include <string>

#include "names.h"

namespace kvant::python {
namespace {

// numpy's numbers for its types, which its ABI fixes.
enum TypeNumber : int {
  kByte = 1,
  kUByte = 2,
  kShort = 3,
  kUShort = 4,
  kInt = 5,
  kFloat = 11,
  kDouble = 12,
  kHalf = 23
};
constexpr int kFirstUserType = 256;

constexpr auto kKinds = kElements.size();
constexpr std::size_t index_of(ElementKind kind) { return static_cast<std::size_t>(kind); }

// Whether ml_dtypes has a dtype for it and numpy has none.
constexpr bool is_of_ml_dtypes(ElementKind kind) { return kind == ElementKind::bf16 || is_foreign_to_numpy(kind); }

// For as long as the process lives. Null: ml_dtypes is not installed, or is too old to have it.
py::handle ml_dtype(ElementKind kind) {
  static std::array<py::handle, kKinds> found;
  static bool tried = false;
  if (!tried) {
    tried = true;
    try {
      const py::module_ ml_dtypes = py::module_::import("ml_dtypes");
      for (const ElementInfo& element : kElements)
        if (is_of_ml_dtypes(element.kind) && py::hasattr(ml_dtypes, element.numpy_name.data()))
          found[index_of(element.kind)] = py::dtype::from_args(ml_dtypes.attr(element.numpy_name.data())).release();
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) throw;
    }
  }
  return found[index_of(kind)];
}

}  // namespace

std::optional<ElementKind> ml_dtypes_kind(const py::dtype& dtype) {
  if (dtype.num() < kFirstUserType) return std::nullopt;
  static std::array<int, kKinds> known{};  // numpy gives the numbers when ml_dtypes is imported
  const auto at = std::ranges::find(known, dtype.num());
  if (at != known.end()) return kElements[static_cast<std::size_t>(at - known.begin())].kind;
  const auto name = dtype.attr("name").cast<std::string>();
  for (const ElementInfo& element : kElements) {
    if (!is_of_ml_dtypes(element.kind) || element.numpy_name != name) continue;
    if (dtype.itemsize() != std::max(1, element.bits / 8)) return std::nullopt;
    known[index_of(element.kind)] = dtype.num();
    return element.kind;
  }
  return std::nullopt;
}

std::optional<ElementKind> kind_of_dtype(const py::dtype& dtype, ElementKind uint16, Flavor& flavor) {
  switch (dtype.num()) {
    case kFloat: return ElementKind::f32;
    case kDouble: return ElementKind::f64;
    case kHalf: return ElementKind::f16;
    case kUShort: return uint16;
    case kShort: return ElementKind::s16;
    case kByte: return ElementKind::s8;
    case kUByte: return ElementKind::u8;
    case kInt: return ElementKind::s32;
    default: break;
  }
  const auto kind = ml_dtypes_kind(dtype);
  if (kind) flavor = Flavor::ml_dtypes;
  return kind;
}

// Cached, because looking a dtype up takes as long as quantizing 64 numbers.
py::dtype memory_dtype(ElementKind kind) {
  static const std::array<py::handle, kKinds> dtypes = [] {
    std::array<py::handle, kKinds> made;
    for (const ElementInfo& element : kElements) {
      const char* const name = element.kind == ElementKind::bf16   ? "uint16"
                               : is_foreign_to_numpy(element.kind) ? "uint8"
                                                                   : element.numpy_name.data();
      made[index_of(element.kind)] = py::dtype(name).release();  // for as long as the process lives
    }
    return made;
  }();
  return py::reinterpret_borrow<py::dtype>(dtypes[index_of(kind)]);
}

std::optional<py::dtype> result_dtype(ElementKind kind, Flavor flavor) {
  const bool foreign = is_foreign_to_numpy(kind);
  if (!foreign && (kind != ElementKind::bf16 || flavor != Flavor::ml_dtypes)) return memory_dtype(kind);
  const py::handle dtype = ml_dtype(kind);
  if (dtype) return py::reinterpret_borrow<py::dtype>(dtype);
  return foreign ? std::nullopt : std::optional(memory_dtype(kind));
}

}  // namespace kvant::python
