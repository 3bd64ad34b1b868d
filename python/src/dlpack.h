// DLPack's memory layout, as its specification states it: how array libraries hand each other tensors in capsules.
// "dltensor" holds a ManagedTensor, "dltensor_versioned" (since 1.0) a VersionedTensor.
#pragma once

#include <cstdint>

namespace kvant::python::dlpack {

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kRocm = 10, kRocmHost = 11, kCudaManaged = 13 };
// Those from 7 on came with version 1.1.
enum TypeCode : std::uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kBool = 6,
  kFloat8E4M3Fn = 10,
  kFloat8E5M2 = 12,
  kFloat8E8M0Fnu = 14,
  kFloat4E2M1Fn = 17
};

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: C order
  std::uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor tensor;
  void* manager_context;
  void (*deleter)(ManagedTensor*);
};

struct VersionedTensor {
  std::uint32_t major;
  std::uint32_t minor;
  void* manager_context;
  void (*deleter)(VersionedTensor*);
  std::uint64_t flags;
  Tensor tensor;
};

inline constexpr std::uint64_t kReadOnly = 1;
inline constexpr std::uint32_t kMajorVersion = 1;

}  // namespace kvant::python::dlpack
