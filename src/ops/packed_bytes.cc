#include "ops/packed_bytes.h"

#include <cstdlib>
#include <new>

#include "base/refuse.h"
#include "ops/packed_weight_impl.h"
#include "ops/views.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace kvant::ops {
namespace {

// FNV-1a by words of eight bytes, in four interleaved streams, because one would wait for its multiplication. High bits
// are mixed down: the multiplication alone would never move the topmost one.
std::uint64_t checksum(const std::byte* data, std::size_t size) {
  constexpr std::uint64_t kPrime = 0x100000001B3;
  std::uint64_t h[4] = {0xCBF29CE484222325, 1, 2, 3};
  for (std::size_t i = 0; i < size; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + i, size - i < 8 ? size - i : 8);
    std::uint64_t& stream = h[i / 8 % 4];
    stream = (stream ^ word) * kPrime;
    stream ^= stream >> 32;
  }
  for (int i = 1; i < 4; ++i) h[0] = (h[0] ^ h[i] ^ (h[i] >> 31)) * kPrime;
  return h[0];
}

}  // namespace

PackedHeader packed_header(std::string_view magic, ArchSku isa, ElementKind element, std::int64_t out_features,
                           std::int64_t in_features) {
  PackedHeader header = {};
  std::memcpy(header.magic, magic.data(), sizeof header.magic);
  std::memcpy(header.isa, name(isa).data(), name(isa).size());
  std::memcpy(header.element, name(element).data(), name(element).size());
  header.out_features = out_features;
  header.in_features = in_features;
  return header;
}

std::uint64_t checksum(PackedHeader header, const std::byte* panels, std::size_t size) {
  header.checksum = 0;
  return checksum(reinterpret_cast<const std::byte*>(&header), sizeof header) * 31 + checksum(panels, size);
}

std::shared_ptr<std::byte> allocate_packed(std::size_t size) {
  constexpr std::size_t kLargePage = 2 << 20;
  const std::size_t alignment = size >= 2 * kLargePage ? kLargePage : 64;
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) return nullptr;
#if defined(__linux__)
  if (alignment == kLargePage) madvise(memory, rounded, MADV_HUGEPAGE);
#endif
  try {
    return {static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); }};
  } catch (const std::bad_alloc&) {  // the memory is free again
    return nullptr;
  }
}

Status no_memory(const char* who, std::size_t size) {
  return base::refuse(StatusCode::Internal, "{}: out of memory for {} bytes", who, size);
}

Result<PackedHeader> read_header(const char* who, std::string_view magic, std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(PackedHeader))
    return base::invalid_problem("{}: {} bytes are too few, the header alone has {}", who, bytes.size(),
                                 sizeof(PackedHeader));
  PackedHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (!holds(header.magic, magic))
    return base::invalid_problem("{}: the bytes are not a packed weight of this version", who);
  return header;
}

Result<std::shared_ptr<std::byte>> copy_checked(const char* who, const PackedHeader& header,
                                                std::span<const std::byte> bytes, std::size_t size) {
  const std::int64_t n = header.out_features, k = header.in_features;
  if (bytes.size() != size)
    return base::invalid_problem("{}: {} bytes for a [{}, {}] weight, must be {}", who, bytes.size(), n, k, size);
  std::shared_ptr<std::byte> copy = allocate_packed(size);
  if (copy == nullptr) return no_memory(who, size);
  std::memcpy(copy.get(), bytes.data(), size);
  if (checksum(header, copy.get() + sizeof header, size - sizeof header) != header.checksum)
    return base::invalid_problem("{}: the bytes of the [{}, {}] weight are damaged, their checksum differs", who, n, k);
  return copy;
}

Status check_weight_to_pack(const char* who, const AnyRef& weight) {
  if (weight.shape.rank() != 2)
    return base::invalid_problem("{}: weight has shape {}, must have two dimensions, [out_features, in_features]", who,
                                 weight.shape.to_string());
  if (!weight.shape.element_count())
    return base::invalid_problem(
        "{}: weight has shape {}, with a negative size or more elements than 63 bits can count", who,
        weight.shape.to_string());
  const std::int64_t n = weight.shape[0], k = weight.shape[1];
  if (Status s = check_linear_sizes(who, 0, k, n); !s.ok()) return s;
  return check_view([&] { return who; }, "weight", weight, weight.kind, weight.shape, k == 0 ? 0 : n);
}

}  // namespace kvant::ops
