// What the bytes of packed weights have in common: a header, then panels, in memory that streams well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

#include "kvant/element.h"
#include "kvant/sku.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "kvant/tensor.h"

namespace kvant::ops {

// What bytes() begins with. Names in place of enumerators: those may be renumbered.
struct PackedHeader {
  char magic[8];  // the last two are the version of all layouts after it
  char isa[16];
  char element[8];
  std::int64_t out_features;
  std::int64_t in_features;
  std::uint64_t checksum;  // of the panels and of this header with a checksum of 0
  std::uint64_t wide;      // 1: some panel needs wide tiles (core/linear_kernel.h)
};
static_assert(sizeof(PackedHeader) == 64);

PackedHeader packed_header(std::string_view magic, ArchSku isa, ElementKind element, std::int64_t out_features,
                           std::int64_t in_features);

// Whether a field of a header holds a name, and zeros after it.
template <std::size_t kSize>
bool holds(const char (&field)[kSize], std::string_view name) {
  char expected[kSize] = {};
  std::memcpy(expected, name.data(), name.size());
  return std::memcmp(field, expected, kSize) == 0;
}
// What a field of a header holds, to be named in a refusal.
template <std::size_t kSize>
std::string_view text_of(const char (&field)[kSize]) {
  return {field, strnlen(field, kSize)};
}

std::uint64_t checksum(PackedHeader header, const std::byte* panels, std::size_t size);

// Null if there is no memory. Large weights ask for large pages: one row of an activation reads them at the speed of
// the memory, and a fetch ahead ends at a page.
std::shared_ptr<std::byte> allocate_packed(std::size_t size);
Status no_memory(const char* who, std::size_t size);

// f(number) for each panel, on the threads of the stream.
template <class Function>
Status for_each_panel(const Stream& stream, std::int64_t panels, const Function& f) {
  const auto run = [](const void* context, std::int64_t panel) { (*static_cast<const Function*>(context))(panel); };
  return stream.parallel_for(panels, Task(run, &f));
}

// The header of bytes that came from outside, which must have the magic.
Result<PackedHeader> read_header(const char* who, std::string_view magic, std::span<const std::byte> bytes);
// A copy of bytes that came from outside, which must be as many as `size` and fit the checksum of their header.
Result<std::shared_ptr<std::byte>> copy_checked(const char* who, const PackedHeader& header,
                                                std::span<const std::byte> bytes, std::size_t size);

// A weight to be packed: two sizes that can be counted, and an address.
Status check_weight_to_pack(const char* who, const AnyRef& weight);

}  // namespace kvant::ops
