#include "array.h"

#include "base/text.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "dlpack.h"
#include "packed_int4.h"
#include "refusal.h"
#include "threads.h"

namespace kvant::python {
namespace {

constexpr int kMaxDimensions = 64;  // of numpy 2

// numpy's numbers for its types, which its ABI fixes.
enum TypeNumber : int {
  kBool = 0,
  kByte = 1,
  kUByte = 2,
  kUShort = 4,
  kInt = 5,
  kFloat = 11,
  kDouble = 12,
  kHalf = 23
};
constexpr int kFirstUserType = 256;

std::optional<ElementKind> kind_of_dtype(const py::dtype& dtype, Flavor& flavor) {
  switch (dtype.num()) {
    case kFloat: return ElementKind::f32;
    case kDouble: return ElementKind::f64;
    case kHalf: return ElementKind::f16;
    case kUShort: return ElementKind::bf16;
    case kByte: return ElementKind::s8;
    case kUByte: return ElementKind::u8;
    case kInt: return ElementKind::s32;
    default: break;
  }
  if (!is_ml_bfloat16(dtype)) return std::nullopt;
  flavor = Flavor::ml_dtypes;
  return ElementKind::bf16;
}

Array from_numpy(py::handle object) {
  Array array{.elements = py::reinterpret_borrow<py::array>(object), .kind = std::nullopt, .shape = {}};
  const py::dtype dtype = array.elements.dtype();
  array.kind = kind_of_dtype(dtype, array.flavor);
  array.native = dtype.byteorder() != '>';
  array.shape = shape_of(array.elements);
  array.writable = array.elements.writeable();
  return array;
}

// What is used of torch, for as long as the process lives.
struct Torch {
  py::handle tensor;     // torch.Tensor
  py::handle to_dlpack;  // a tenth of the time of Tensor.__dlpack__, which is written in Python
  py::handle from_numpy;
  py::handle strided;
  py::handle bfloat16;
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
    found.bfloat16 = name.attr("bfloat16").cast<py::object>().release();
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

// The kind of a type that kvant has one for.
std::optional<ElementKind> kind_of(const dlpack::DataType& type) {
  constexpr struct {
    dlpack::TypeCode code;
    int bits;
    ElementKind kind;
  } kKinds[] = {{dlpack::kFloat, 32, ElementKind::f32}, {dlpack::kFloat, 64, ElementKind::f64},
                {dlpack::kFloat, 16, ElementKind::f16}, {dlpack::kBfloat, 16, ElementKind::bf16},
                {dlpack::kInt, 8, ElementKind::s8},     {dlpack::kUInt, 8, ElementKind::u8},
                {dlpack::kInt, 32, ElementKind::s32}};
  for (const auto& each : kKinds)
    if (type.lanes == 1 && type.code == each.code && type.bits == each.bits) return each.kind;
  return std::nullopt;
}

DlpackType type_of(const dlpack::DataType& type, const char* argument) {
  if (const auto kind = kind_of(type)) return {numpy_dtype(*kind), kind};
  // Others may be zero points, or are refused by their name.
  const char letter = type.code == dlpack::kInt ? 'i' : type.code == dlpack::kUInt ? 'u' : '?';
  const bool whole = type.bits == 16 || type.bits == 32 || type.bits == 64;
  if (type.lanes == 1 && type.code == dlpack::kBool && type.bits == 8) return {py::dtype("bool"), std::nullopt};
  if (type.lanes != 1 || letter == '?' || !whole)
    refuse(base::text("{} has elements of DLPack type code {} with {} bits and {} lanes, which kvant does not support",
                      argument, type.code, type.bits, type.lanes));
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
  auto [dtype, kind] = type_of(tensor->dtype, argument);
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
  return array;
}

std::string dtype_text(const Array& array) {
  if (array.kind && is_packed(*array.kind)) return dtype_name(*array.kind);
  if (array.flavor == Flavor::torch && array.kind == ElementKind::bf16) return "bfloat16";
  return py::str(array.elements.dtype()).cast<std::string>();
}

bool accepts(Elements elements, ElementKind kind) {
  switch (elements) {
    case Elements::floats: return is_float(kind);
    case Elements::codes: return is_code(kind);
    case Elements::bytes: return kind == ElementKind::s8 || kind == ElementKind::u8;
  }
  return false;
}

const char* description(Elements elements) {
  switch (elements) {
    case Elements::floats: return "float32, float64, float16 or bfloat16 (uint16 in numpy)";
    case Elements::codes: return "int8, uint8 or a PackedInt4";
    case Elements::bytes: return "int8 or uint8";
  }
  return "";
}

std::string order_sentence(const char* argument, const Array& array) {
  if (!array.native) return base::text("{} must be in this machine's byte order", argument);
  return base::text("{} must be in C order, up to gaps between rows; its shape is {} and its strides are {} bytes",
                    argument, py::str(array.elements.attr("shape")).cast<std::string>(),
                    py::str(array.elements.attr("strides")).cast<std::string>());
}

// A view in place.
AnyRef view_in_place(const Array& array, const char* argument) {
  const auto stride = row_stride(array.elements, array.kind && is_packed(*array.kind));
  if (!stride || !array.native) refuse(order_sentence(argument, array));
  return array.view(*stride);
}

AnyMut writable_view(const Array& array, const char* argument) {
  if (!array.writable) refuse(base::text("{} is read-only", argument));
  const AnyRef view = view_in_place(array, argument);
  return {const_cast<void*>(view.data), view.kind, view.shape, view.row_stride};
}

// Cached, because looking a dtype up takes as long as quantizing 64 numbers.
py::dtype cached_dtype(ElementKind kind) {
  static const std::array<py::handle, 9> dtypes = [] {
    std::array<py::handle, 9> made;
    for (const ElementKind each :
         {ElementKind::f32, ElementKind::f64, ElementKind::f16, ElementKind::bf16, ElementKind::s8, ElementKind::u8,
          ElementKind::s4, ElementKind::u4, ElementKind::s32}) {
      const char* const name = each == ElementKind::bf16 ? "uint16" : is_packed(each) ? "uint8" : dtype_name(each);
      made[static_cast<std::size_t>(each)] = py::dtype(name).release();  // for as long as the process lives
    }
    return made;
  }();
  return py::reinterpret_borrow<py::dtype>(dtypes[static_cast<std::size_t>(kind)]);
}

}  // namespace

bool is_ml_bfloat16(const py::dtype& dtype) {
  if (dtype.num() < kFirstUserType) return false;
  static int known = 0;  // numpy gives the number when ml_dtypes is imported
  if (known != 0) return dtype.num() == known;
  if (dtype.attr("name").cast<std::string>() != "bfloat16" || dtype.itemsize() != 2) return false;
  known = dtype.num();
  return true;
}

Array array_of(py::handle object, const char* argument) {
  if (py::isinstance<py::array>(object)) return from_numpy(object);
  if (const PackedInt4* const packed = PackedInt4::from(object)) {
    return {.elements = packed->packed(),
            .kind = packed->kind(),
            .shape = packed->shape(),
            .flavor = Flavor::numpy,
            .native = true,
            .writable = packed->packed().writeable()};
  }
  if (!PyType_Check(object.ptr()) && py::hasattr(object, "__dlpack__")) return from_dlpack(object, argument);
  py::object made;
  try {
    made = call_python(py::module_::import("numpy").attr("asarray"), py::make_tuple(object));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw;
    refuse(base::text("{} is not an array: {}", argument, words_of(error)));
  }
  Array array = from_numpy(made);
  array.writable = false;  // nobody would see what was written
  return array;
}

Input input(py::handle object, const char* argument, Elements elements, Copies copies) {
  Input made{array_of(object, argument), {}};
  Array& array = made.array;
  if (!array.kind || !accepts(elements, *array.kind))
    refuse(base::text("{} has dtype {}; it must be {}", argument, dtype_text(array), description(elements)));
  const auto stride = row_stride(array.elements, is_packed(*array.kind));
  if (stride && array.native) {
    made.view = array.view(*stride);
  } else if (copies == Copies::refused) {
    refuse(order_sentence(argument, array));
  } else {
    array.elements = in_c_order(array);
    array.native = true;
    made.view = array.view(0);
  }
  return made;
}

Output new_output(ElementKind kind, const Shape& shape, Flavor flavor) {
  Output made;
  if (is_packed(kind)) {  // torch has nothing like it
    PackedInt4 packed = PackedInt4::empty(shape, kind == ElementKind::s4);
    made.elements = packed.packed();
    made.view = {made.elements.mutable_data(), kind, shape, 0};
    made.object = py::cast(std::move(packed));
    return made;
  }
  made.flavor = flavor;
  std::array<py::ssize_t, kMaxRank> sizes{};
  if (shape.rank() > kMaxRank)
    refuse(base::text("an array of {} dimensions; kvant takes up to {}", shape.rank(), kMaxRank));
  py::ssize_t bytes = bits_per_element(kind) / 8;  // of the sizes that are not 0, as numpy counts them, too
  for (int i = 0; i < shape.rank(); ++i) {
    sizes[static_cast<std::size_t>(i)] = shape[i];
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(shape[i], 1), &bytes))
      refuse(base::text("a result of shape {} has more bytes than any memory", shape.to_string()));
  }
  made.elements =
      py::array(numpy_dtype(kind, flavor), py::array::ShapeContainer(sizes.begin(), sizes.begin() + shape.rank()));
  made.view = {made.elements.mutable_data(), kind, shape, 0};
  return made;
}

Output given_output(py::handle object, const char* argument, ElementKind kind, const Shape& shape) {
  const Array array = array_of(object, argument);
  if (!array.kind || *array.kind != kind)
    refuse(base::text("{} has dtype {}; it must be {}", argument, dtype_text(array), dtype_name(kind)));
  if (!(array.shape == shape))
    refuse(base::text("{} has shape {}; it must be {}", argument, array.shape.to_string(), shape.to_string()));
  return {py::reinterpret_borrow<py::object>(object), array.elements, writable_view(array, argument), array.flavor};
}

Output output(py::handle object, const char* argument, ElementKind kind, const Shape& shape, Flavor flavor) {
  return object.is_none() ? new_output(kind, shape, flavor) : given_output(object, argument, kind, shape);
}

Output plan_output(py::handle object, const char* argument, Presence presence) {
  if (object.is_none()) {
    if (presence == Presence::required) refuse(base::text("{} is None; it must be an array", argument));
    return {};
  }
  const Array array = array_of(object, argument);
  if (!array.kind) refuse(base::text("{} has dtype {}, which no plan takes", argument, dtype_text(array)));
  return {py::reinterpret_borrow<py::object>(object), array.elements, writable_view(array, argument), array.flavor};
}

Input plan_input(py::handle object, const char* argument) {
  if (object.is_none()) return {};
  Input made{array_of(object, argument), {}};
  if (!made.array.kind) refuse(base::text("{} has dtype {}, which no plan takes", argument, dtype_text(made.array)));
  made.view = view_in_place(made.array, argument);
  return made;
}

py::object Output::finish() {
  if (object) {
    // Tensors of inference mode have no version.
    if (flavor == Flavor::torch && !py::cast<bool>(object.attr("is_inference")())) torch()->increment_version(object);
    return object;
  }
  if (flavor != Flavor::torch) return elements;
  if (view.kind != ElementKind::bf16) return torch()->from_numpy(elements);
  return torch()->from_numpy(elements.view("int16")).attr("view")(torch()->bfloat16);
}

std::optional<std::int64_t> row_stride(const py::array& elements, bool packed_bytes) {
  const py::ssize_t ndim = elements.ndim();
  const py::ssize_t* const shape = elements.shape();
  const py::ssize_t* const strides = elements.strides();
  const py::ssize_t item = elements.itemsize();
  if ((elements.flags() & py::array::c_style) != 0) return 0;
  if (packed_bytes) return std::nullopt;  // PackedInt4 holds dense bytes only
  for (py::ssize_t i = 0; i < ndim; ++i)
    if (shape[i] == 0) return 0;
  if (shape[ndim - 1] > 1 && strides[ndim - 1] != item) return std::nullopt;
  py::ssize_t stride = 0;  // of the rows, in bytes
  py::ssize_t rows = 1;
  for (py::ssize_t i = ndim - 1; i-- > 0;) {
    if (shape[i] == 1) continue;
    if (stride == 0) {
      stride = strides[i];
      if (stride <= 0 || stride % item != 0 || stride / item < shape[ndim - 1]) return std::nullopt;
    } else if (strides[i] != stride * rows) {
      return std::nullopt;
    }
    rows *= shape[i];
  }
  return stride / item;
}

py::dtype numpy_dtype(ElementKind kind, Flavor flavor) {
  if (kind == ElementKind::bf16 && flavor == Flavor::ml_dtypes)
    return py::dtype::from_args(py::module_::import("ml_dtypes").attr("bfloat16"));
  return cached_dtype(kind);
}

Shape shape_of(const py::array& array) {
  std::array<std::int64_t, kMaxDimensions> sizes{};
  const auto rank = static_cast<std::size_t>(array.ndim());
  for (std::size_t i = 0; i < rank; ++i) sizes[i] = array.shape()[i];
  return Shape(std::span<const std::int64_t>(sizes.data(), rank));
}

py::tuple tuple_of(const Shape& shape) {
  py::tuple sizes(shape.rank());
  for (int i = 0; i < shape.rank(); ++i) sizes[static_cast<std::size_t>(i)] = py::int_(shape[i]);
  return sizes;
}

Shape shape_from(py::handle object, const char* argument) {
  std::vector<std::int64_t> sizes;
  if (PyIndex_Check(object.ptr())) {
    sizes.push_back(integer(object, argument));
  } else {
    const auto items = py::reinterpret_steal<py::object>(PySequence_Fast(object.ptr(), ""));
    if (!items) {
      PyErr_Clear();
      refuse(base::text("{} {} must be a sequence of sizes", argument, printed(object)));
    }
    for (py::ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.ptr()); ++i)
      sizes.push_back(integer(PySequence_Fast_GET_ITEM(items.ptr(), i), argument));
  }
  return Shape(std::span<const std::int64_t>(sizes));
}

std::int64_t element_count(const Shape& shape) { return shape.element_count().value_or(0); }

py::array in_c_order(const Array& array) {
  const py::object native =
      array.native ? py::object(array.elements.dtype()) : array.elements.dtype().attr("newbyteorder")("=");
  return call_python(array.elements.attr("astype"), py::make_tuple(native, "C"));
}

}  // namespace kvant::python
