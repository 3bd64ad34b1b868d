#include "foreign_array.h"

#include "base/text.h"

#include <algorithm>
#include <string>
#include <vector>

#include "dlpack.h"
#include "dtypes.h"
#include "names.h"
#include "refusal.h"

namespace kvant::python {
namespace {

// What is used of torch, for as long as the process lives.
struct Torch {
  py::handle tensor;     // torch.Tensor
  py::handle to_dlpack;  // a tenth of the time of Tensor.__dlpack__, which is written in Python
  py::handle from_numpy;
  py::handle strided;
  py::handle module;             // its dtypes have the names of the element table
  py::handle increment_version;  // tells autograd, and who else counts, that a tensor was written to
};

// Null if nobody has imported torch.
const Torch* torch() {
  static Torch found;
  if (found.tensor) return &found;
  PyObject* const module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  // A torch that is just being imported has no tensors yet.
  if (module == nullptr || !PyObject_HasAttrString(module, "utils") || !PyObject_HasAttrString(module, "Tensor"))
    return nullptr;
  const py::handle name(module);
  try {
    found.to_dlpack = py::module_::import("torch.utils.dlpack").attr("to_dlpack").cast<py::object>().release();
    found.from_numpy = name.attr("from_numpy").cast<py::object>().release();
    found.strided = name.attr("strided").cast<py::object>().release();
    found.module = py::reinterpret_borrow<py::object>(name).release();
    found.increment_version =
        py::module_::import("torch.autograd.graph").attr("increment_version").cast<py::object>().release();
    found.tensor = name.attr("Tensor").cast<py::object>().release();
  } catch (py::error_already_set& error) {  // something else by the name of torch
    if (!error.matches(PyExc_Exception)) throw;
    return nullptr;
  }
  return &found;
}

bool is_torch(py::handle object) {
  const Torch* const known = torch();
  if (known == nullptr) return false;
  const int answer = PyObject_IsInstance(object.ptr(), known->tensor.ptr());
  if (answer < 0) throw py::error_already_set();
  return answer == 1;
}

// Calls what belongs to somebody else. Its errors become ours, with its words, but for those that are not about the
// argument.
template <class Function>
auto ask(const char* argument, const char* what, Function&& function) {
  try {
    return function();
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw;
    refuse(base::text("{}: {} failed with {}: {}", argument, what,
                      reinterpret_cast<PyTypeObject*>(error.type().ptr())->tp_name, words_of(error)));
  }
}

void check_device(py::handle object, const char* argument) {
  const auto device = ask(argument, "__dlpack_device__", [&] { return object.attr("__dlpack_device__")(); });
  std::int64_t type = 0;
  if (!py::isinstance<py::tuple>(device) || py::len(device) != 2)
    refuse(base::text("{}: __dlpack_device__ gave {}, not a pair", argument, printed(device)));
  const auto first = py::reinterpret_borrow<py::tuple>(device)[0];
  try {
    type = py::cast<std::int64_t>(py::int_(py::object(first)));
  } catch (const std::exception&) {
    refuse(base::text("{}: __dlpack_device__ gave {}, not a pair of numbers", argument, printed(device)));
  }
  if (type == dlpack::kCpu || type == dlpack::kCudaHost || type == dlpack::kRocmHost) return;
  unsupported(base::text("{} is on DLPack device type {}{}; kvant's Python functions take arrays in the CPU's memory",
                         argument, type,
                         type == dlpack::kCuda || type == dlpack::kCudaManaged ? " (CUDA)"
                         : type == dlpack::kRocm                               ? " (ROCm)"
                                                                               : ""));
}

struct DlpackType {
  py::dtype dtype;
  std::optional<ElementKind> kind;
};

// The kind of a type that kvant has one for. Packed types come as pairs, as torch's float4_e2m1fn_x2 does.
std::optional<ElementKind> kind_of(const dlpack::DataType& type) {
  constexpr struct {
    dlpack::TypeCode code;
    int bits;
    ElementKind kind;
  } kKinds[] = {{dlpack::kFloat, 32, ElementKind::f32},
                {dlpack::kFloat, 64, ElementKind::f64},
                {dlpack::kFloat, 16, ElementKind::f16},
                {dlpack::kBfloat, 16, ElementKind::bf16},
                {dlpack::kInt, 8, ElementKind::s8},
                {dlpack::kUInt, 8, ElementKind::u8},
                {dlpack::kInt, 16, ElementKind::s16},
                {dlpack::kUInt, 16, ElementKind::u16},
                {dlpack::kFloat8E4M3Fn, 8, ElementKind::e4m3},
                {dlpack::kFloat8E5M2, 8, ElementKind::e5m2},
                {dlpack::kFloat8E8M0Fnu, 8, ElementKind::e8m0},
                {dlpack::kFloat4E2M1Fn, 4, ElementKind::e2m1},
                {dlpack::kInt, 32, ElementKind::s32}};
  for (const auto& each : kKinds)
    if (type.code == each.code && type.bits == each.bits && type.lanes == elements_per_byte(each.kind))
      return each.kind;
  return std::nullopt;
}

// What the owner calls its type, for a sentence.
std::string owners_dtype(py::handle object) {
  return py::hasattr(object, "dtype") ? base::text(" ({})", printed(object.attr("dtype"))) : std::string();
}

DlpackType type_of(const dlpack::DataType& type, py::handle object, const char* argument) {
  if (const auto kind = kind_of(type)) return {memory_dtype(*kind), kind};
  // Others may be zero points, or are refused by their name.
  const char letter = type.code == dlpack::kInt ? 'i' : type.code == dlpack::kUInt ? 'u' : '?';
  const bool whole = type.bits == 32 || type.bits == 64;
  if (type.lanes == 1 && type.code == dlpack::kBool && type.bits == 8) return {py::dtype("bool"), std::nullopt};
  if (type.lanes != 1 || letter == '?' || !whole)
    refuse(
        base::text("{} has elements of DLPack type code {} with {} bits and {} lanes{}, which kvant does not support",
                   argument, type.code, type.bits, type.lanes, owners_dtype(object)));
  return {py::dtype(base::text("{}{}", letter, type.bits / 8)), std::nullopt};
}

// A capsule. Only one of DLPack 1.0 says whether it may be written to; producers from before do not know the keyword.
py::object exported(py::handle object) {
  try {
    return object.attr("__dlpack__")(py::arg("max_version") = py::make_tuple(dlpack::kMajorVersion, 0));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    return object.attr("__dlpack__")();
  }
}

// a * b, refused where it overflows.
py::ssize_t product(py::ssize_t a, py::ssize_t b, const char* argument) {
  py::ssize_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) refuse(base::text("{} is larger than any memory", argument));
  return result;
}

}  // namespace

Array from_dlpack(py::handle object, const char* argument) {
  const bool is_tensor = is_torch(object);
  if (is_tensor && py::cast<bool>(object.attr("requires_grad")))
    refuse(base::text("{} requires gradients: use kvant.torch, or {}.detach()", argument, argument));
  // DLPack cannot say that a sign is yet to be applied, and torch does not refuse to leave it out.
  if (is_tensor && py::cast<bool>(object.attr("is_neg")()))
    refuse(base::text("{} is a negated view: use {}.resolve_neg()", argument, argument));
  // What is neither on the CPU nor strided is for __dlpack__ to refuse.
  const bool plain = is_tensor && py::cast<bool>(object.attr("is_cpu")) &&
                     py::object(object.attr("layout")).ptr() == torch()->strided.ptr();
  if (!plain && py::hasattr(object, "__dlpack_device__")) check_device(object, argument);
  const auto capsule = ask(argument, "__dlpack__",
                           [&]() -> py::object { return plain ? torch()->to_dlpack(object) : exported(object); });
  if (!PyCapsule_CheckExact(capsule.ptr()))
    refuse(base::text("{}: __dlpack__ gave {}, not a capsule", argument, printed(capsule)));

  // A capsule that nobody takes over frees its tensor when it is freed itself: holding it is enough.
  const dlpack::Tensor* tensor = nullptr;
  bool read_only = !is_tensor;  // an unversioned capsule cannot say so, and writing to jax's arrays would be a disaster
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    tensor = &static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const auto* const versioned =
        static_cast<dlpack::VersionedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (versioned->major != dlpack::kMajorVersion)
      refuse(base::text("{} uses DLPack version {}.{}; kvant reads version {}", argument, versioned->major,
                        versioned->minor, dlpack::kMajorVersion));
    read_only = (versioned->flags & dlpack::kReadOnly) != 0;
    tensor = &versioned->tensor;
  } else {
    refuse(base::text("{}: __dlpack__ gave {}, not a capsule of a tensor", argument, printed(capsule)));
  }
  const int ndim = tensor->ndim;
  if (ndim < 0 || ndim > kMaxDimensions || (ndim > 0 && tensor->shape == nullptr))
    refuse(base::text("{} has {} dimensions", argument, ndim));
  auto [dtype, kind] = type_of(tensor->dtype, object, argument);
  const py::ssize_t item = dtype.itemsize();
  std::vector<py::ssize_t> shape(static_cast<std::size_t>(ndim));
  std::vector<py::ssize_t> strides(static_cast<std::size_t>(ndim));
  py::ssize_t dense = item;
  for (std::size_t i = shape.size(); i-- > 0;) {
    shape[i] = tensor->shape[i];
    if (shape[i] < 0) refuse(base::text("{} has a dimension of {}", argument, shape[i]));
    strides[i] = tensor->strides == nullptr ? dense : product(tensor->strides[i], item, argument);
    dense = product(dense, shape[i], argument);
  }
  const char* const data = static_cast<const char*>(tensor->data) + tensor->byte_offset;
  Array array{
      .elements = tensor->data == nullptr ? py::array(dtype, shape) : py::array(dtype, shape, strides, data, capsule),
      .kind = kind,
      .shape = {},
      .flavor = is_tensor ? Flavor::torch : Flavor::numpy,
      .native = true,
      .writable = !read_only,
      .only_bfloat16 = kind == ElementKind::bf16};
  if (tensor->data == nullptr && dense != 0) refuse(base::text("{} has no memory", argument));
  array.shape = shape_of(array.elements);
  if (kind && is_packed(*kind)) {  // from bytes to elements
    if (ndim == 0) refuse(base::text("{} is a byte of {} without dimensions", argument, dtype_name(*kind)));
    std::int64_t& last = array.shape[std::min(ndim, kMaxRank) - 1];
    last = product(last, elements_per_byte(*kind), argument);
  }
  return array;
}

bool has_torch_dtype(ElementKind kind) { return py::hasattr(torch()->module, dtype_name(kind)); }

py::object torch_tensor(const py::array& elements, ElementKind kind) {
  if (kind != ElementKind::bf16 && !is_foreign_to_numpy(kind)) return torch()->from_numpy(elements);
  const char* const memory = kind == ElementKind::bf16 ? "int16" : "uint8";
  return torch()->from_numpy(elements.attr("view")(memory)).attr("view")(torch()->module.attr(dtype_name(kind)));
}

void mark_written(py::handle tensor) {
  // Tensors of inference mode have no version.
  if (!py::cast<bool>(tensor.attr("is_inference")())) torch()->increment_version(tensor);
}

}  // namespace kvant::python
