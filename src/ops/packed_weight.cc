#include "kvant/packed_weight.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "base/divide_up.h"
#include "base/refuse.h"
#include "cpu/instruction_sets.h"
#include "ops/packed_weight_impl.h"
#include "ops/preference.h"
#include "ops/registry.h"
#include "ops/views.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace kvant {
namespace {

using base::invalid_problem;
using base::unsupported;
using detail::LinearFormat;

constexpr const char* kWho = "packed_weight";

// What bytes() begins with. Names in place of enumerators: those may be renumbered.
struct Header {
  char magic[8];
  char isa[16];
  char element[8];
  std::int64_t out_features;
  std::int64_t in_features;
  std::uint64_t checksum;  // of the panels and of this header with a checksum of 0
  std::uint64_t wide;
};
static_assert(sizeof(Header) == 64);
// The last two are the version of all layouts behind it.
constexpr char kMagic[8] = {'k', 'v', 'a', 'n', 't', 'W', '0', '2'};

// Rows of codes are what tensor cores read: there is nothing to rearrange.
constexpr const char* kOnGpu = "CUDA plans take the raw weight";

const LinearFormat* format_of(const ops::Target& target) {
  const auto* kernel =
      ops::select_kernel<detail::LinearKernel>(QuantizeKind::w8a8_linear, ElementKind::s8, ElementKind::f32, target)
          .kernel;
  return kernel == nullptr ? nullptr : kernel->format;
}

std::int64_t panel_count(const LinearFormat& format, std::int64_t out_features) {
  return base::divide_up(out_features, format.panel_columns);
}
std::size_t size_of(const LinearFormat& format, std::int64_t out_features, std::int64_t in_features) {
  return sizeof(Header) + static_cast<std::size_t>(panel_count(format, out_features) * format.panel_bytes(in_features));
}

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

std::uint64_t checksum(Header header, const std::byte* panels, std::size_t size) {
  header.checksum = 0;
  return checksum(reinterpret_cast<const std::byte*>(&header), sizeof header) * 31 + checksum(panels, size);
}

// Null if there is no memory. Large weights ask for large pages: one row of an activation reads them at the speed of
// the memory, and a fetch ahead ends at a page.
std::shared_ptr<std::byte> allocate(std::size_t size) {
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

struct PackLaunch {
  const LinearFormat* format;
  detail::CodeMatrix weight;
  std::byte* panels;

  static void run_part(const void* context, std::int64_t index) {
    const PackLaunch& l = *static_cast<const PackLaunch*>(context);
    l.format->pack_panel(l.weight, index, l.panels + index * l.format->panel_bytes(l.weight.depth));
  }
};

Status no_memory(std::size_t size) {
  return base::refuse(StatusCode::Internal, "{}: no memory for {} bytes", kWho, size);
}

}  // namespace

Status ops::check_linear_sizes(const char* who_asks, std::int64_t rows, std::int64_t in_features,
                               std::int64_t out_features) {
  const auto check = [&](const char* what, std::int64_t size) -> Status {
    if (size >= 0) return {};
    return invalid_problem("{}: {} {} must not be negative", who_asks, what, size);
  };
  if (Status s = check("max_rows", rows); !s.ok()) return s;
  if (Status s = check("in_features", in_features); !s.ok()) return s;
  if (Status s = check("out_features", out_features); !s.ok()) return s;
  // The largest buffers have up to 16 bytes for an element, and are padded.
  const auto too_large = [](std::int64_t a, std::int64_t b) {
    std::int64_t padded_a = 0, padded_b = 0, product = 0;
    return __builtin_add_overflow(a, 256, &padded_a) || __builtin_add_overflow(b, 256, &padded_b) ||
           __builtin_mul_overflow(padded_a, padded_b, &product) || __builtin_mul_overflow(product, 16, &product);
  };
  if (too_large(out_features, in_features))
    return invalid_problem("{}: out_features {} by in_features {} has more bytes than 63 bits count", who_asks,
                           out_features, in_features);
  if (too_large(rows, in_features))
    return invalid_problem("{}: max_rows {} by in_features {} has more bytes than 63 bits count", who_asks, rows,
                           in_features);
  if (too_large(rows, out_features))
    return invalid_problem("{}: max_rows {} by out_features {} has more bytes than 63 bits count", who_asks, rows,
                           out_features);
  // Sums of 2^31 products of a zero point within ±2^23 stay inside 63 bits.
  constexpr std::int64_t kMaxDepth = std::int64_t{1} << 31;
  if (in_features > kMaxDepth)
    return unsupported("{}: in_features {} is beyond {}, the most that sums can bear", who_asks, in_features,
                       kMaxDepth);
  return {};
}

Result<PackedWeight> PackedWeight::hold(Impl&& impl) {
  try {
    return PackedWeight(std::make_shared<const Impl>(std::move(impl)));
  } catch (const std::bad_alloc&) {
    return no_memory(sizeof(Impl));
  }
}

const std::byte* PackedWeight::Impl::panels() const { return bytes.get() + sizeof(Header); }

PackedWeight::PackedWeight(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<PackedWeight> PackedWeight::pack(const Stream& stream, const AnyRef& weight, const PlanPreference& preference) {
  if (Status s = ops::check_cpu_stream(kWho, stream, kOnGpu); !s.ok()) return s;
  const auto target = ops::target_of(kWho, stream, preference);
  if (!target.ok()) return target.status();
  if (weight.kind != ElementKind::s8 && weight.kind != ElementKind::u8)
    return unsupported("{}: weight has element {}, must be s8 or u8", kWho, name(weight.kind));
  if (weight.shape.rank() != 2)
    return invalid_problem("{}: weight has shape {}, must have two sizes, [out_features, in_features]", kWho,
                           weight.shape.to_string());
  const std::int64_t n = weight.shape[0], k = weight.shape[1];
  if (!weight.shape.element_count())
    return invalid_problem("{}: weight has shape {}, with a negative size or more elements than 63 bits count", kWho,
                           weight.shape.to_string());
  if (Status s = ops::check_linear_sizes(kWho, 0, k, n); !s.ok()) return s;
  if (Status s = ops::check_view(kWho, "weight", weight, weight.kind, weight.shape, k == 0 ? 0 : n); !s.ok()) return s;
  const LinearFormat* format = format_of(*target);
  if (format == nullptr) return unsupported("{}: no kernel", kWho);

  const std::size_t size = size_of(*format, n, k);
  const std::shared_ptr<std::byte> bytes = allocate(size);
  if (bytes == nullptr) return no_memory(size);
  const PackLaunch launch{
      format,
      {static_cast<const std::byte*>(weight.data), ops::stride_bytes(weight), n, k, detail::weight_flip(weight.kind)},
      bytes.get() + sizeof(Header)};
  const std::int64_t panels = panel_count(*format, n);
  if (Status s = stream.parallel_for(panels, Task(&PackLaunch::run_part, &launch)); !s.ok()) return s;
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  std::memcpy(header.isa, name(format->arch).data(), name(format->arch).size());
  std::memcpy(header.element, name(weight.kind).data(), name(weight.kind).size());
  header.out_features = n;
  header.in_features = k;
  for (std::int64_t p = 0; p < panels; ++p)
    header.wide |= format->panel_is_wide(launch.panels + p * format->panel_bytes(k), k) ? 1u : 0u;
  header.checksum = checksum(header, launch.panels, size - sizeof(Header));
  std::memcpy(bytes.get(), &header, sizeof header);
  return hold({format, n, k, weight.kind, header.wide != 0, size, bytes});
}

Result<std::size_t> PackedWeight::packed_size(const Stream& stream, std::int64_t out_features, std::int64_t in_features,
                                              const PlanPreference& preference) {
  if (Status s = ops::check_cpu_stream(kWho, stream, kOnGpu); !s.ok()) return s;
  const auto target = ops::target_of(kWho, stream, preference);
  if (!target.ok()) return target.status();
  if (Status s = ops::check_linear_sizes(kWho, 0, in_features, out_features); !s.ok()) return s;
  const LinearFormat* format = format_of(*target);
  if (format == nullptr) return unsupported("{}: no kernel", kWho);
  return size_of(*format, out_features, in_features);
}

Result<PackedWeight> PackedWeight::from_bytes(const Stream& stream, std::span<const std::byte> given) {
  if (Status s = ops::check_cpu_stream(kWho, stream, kOnGpu); !s.ok()) return s;
  if (given.size() < sizeof(Header))
    return invalid_problem("{}: {} bytes are too few, the header alone has {}", kWho, given.size(), sizeof(Header));
  Header header;
  std::memcpy(&header, given.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0)
    return invalid_problem("{}: the bytes do not begin like a packed weight of this version", kWho);
  const auto is = [](const auto& field, std::string_view text) {
    char expected[sizeof field] = {};
    std::memcpy(expected, text.data(), text.size());
    return std::memcmp(field, expected, sizeof field) == 0;
  };
  const LinearFormat* format = nullptr;
  for (const auto* kernel : ops::all_kernels<detail::LinearKernel>(BackendKind::cpu))
    if (is(header.isa, name(kernel->sku.arch))) format = kernel->format;
  const std::string_view isa(header.isa, strnlen(header.isa, sizeof header.isa));
  if (format == nullptr) return unsupported("{}: packed for '{}', which this build does not know", kWho, isa);
  if (!cpu::can_run(format->arch)) return unsupported("{}: packed for {}, which this machine lacks", kWho, isa);
  const ElementKind element = is(header.element, name(ElementKind::u8)) ? ElementKind::u8 : ElementKind::s8;
  if (!is(header.element, name(element)))
    return invalid_problem("{}: the header names an element that is neither s8 nor u8", kWho);
  const std::int64_t n = header.out_features, k = header.in_features;
  if (Status s = ops::check_linear_sizes(kWho, 0, k, n); !s.ok()) return s;
  const std::size_t size = size_of(*format, n, k);
  if (given.size() != size)
    return invalid_problem("{}: {} bytes for a [{}, {}] weight, must be {}", kWho, given.size(), n, k, size);

  const std::shared_ptr<std::byte> bytes = allocate(size);
  if (bytes == nullptr) return no_memory(size);
  std::memcpy(bytes.get(), given.data(), size);
  const std::byte* panels = bytes.get() + sizeof(Header);
  if (checksum(header, panels, size - sizeof(Header)) != header.checksum)
    return invalid_problem("{}: the bytes of the [{}, {}] weight are damaged, their checksum differs", kWho, n, k);
  std::uint64_t wide = 0;
  for (std::int64_t p = 0; p < panel_count(*format, n); ++p) {
    const std::byte* panel = panels + p * format->panel_bytes(k);
    if (!format->panel_is_sound(panel, k))
      return invalid_problem("{}: panel {} of the [{}, {}] weight is damaged", kWho, p, n, k);
    wide |= format->panel_is_wide(panel, k) ? 1u : 0u;
  }
  if (wide != header.wide) return invalid_problem("{}: the header does not fit the panels behind it", kWho);
  return hold({format, n, k, element, wide != 0, size, bytes});
}

std::span<const std::byte> PackedWeight::bytes() const { return {impl_->bytes.get(), impl_->size}; }
std::int64_t PackedWeight::out_features() const { return impl_->out_features; }
std::int64_t PackedWeight::in_features() const { return impl_->in_features; }
ElementKind PackedWeight::element() const { return impl_->element; }
ArchSku PackedWeight::isa() const { return impl_->format->arch; }

}  // namespace kvant
