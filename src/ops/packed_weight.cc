#include "kvant/packed_weight.h"

#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "base/divide_up.h"
#include "base/refuse.h"
#include "cpu/instruction_sets.h"
#include "ops/packed_bytes.h"
#include "ops/packed_weight_impl.h"
#include "ops/preference.h"
#include "ops/registry.h"
#include "ops/views.h"

namespace kvant {
namespace {

using base::invalid_problem;
using base::unsupported;
using detail::LinearFormat;
using ops::PackedHeader;

constexpr const char* kPackedWeight = "packed_weight";
constexpr std::string_view kMagic = "kvantW02";

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
  return sizeof(PackedHeader) +
         static_cast<std::size_t>(panel_count(format, out_features) * format.panel_bytes(in_features));
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
    return invalid_problem("{}: out_features {} by in_features {} has more bytes than 63 bits can count", who_asks,
                           out_features, in_features);
  if (too_large(rows, in_features))
    return invalid_problem("{}: max_rows {} by in_features {} has more bytes than 63 bits can count", who_asks, rows,
                           in_features);
  if (too_large(rows, out_features))
    return invalid_problem("{}: max_rows {} by out_features {} has more bytes than 63 bits can count", who_asks, rows,
                           out_features);
  // Sums of 2^31 products of a zero point within ±2^23 stay inside 63 bits.
  constexpr std::int64_t kMaxDepth = std::int64_t{1} << 31;
  if (in_features > kMaxDepth)
    return unsupported("{}: in_features {} is above {}, the max for which sums fit", who_asks, in_features, kMaxDepth);
  return {};
}

Result<PackedWeight> PackedWeight::hold(Impl&& impl) {
  try {
    return PackedWeight(std::make_shared<const Impl>(std::move(impl)));
  } catch (const std::bad_alloc&) {
    return ops::no_memory(kPackedWeight, sizeof(Impl));
  }
}

const std::byte* PackedWeight::Impl::panels() const { return bytes.get() + sizeof(PackedHeader); }

PackedWeight::PackedWeight(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<PackedWeight> PackedWeight::pack(const Stream& stream, const AnyRef& weight, const PlanPreference& preference) {
  if (Status s = ops::check_cpu_stream(kPackedWeight, stream, kOnGpu); !s.ok()) return s;
  const auto target = ops::target_of(kPackedWeight, stream, preference);
  if (!target.ok()) return target.status();
  if (weight.kind != ElementKind::s8 && weight.kind != ElementKind::u8)
    return unsupported("{}: weight has element {}, must be s8 or u8", kPackedWeight, name(weight.kind));
  if (Status s = ops::check_weight_to_pack(kPackedWeight, weight); !s.ok()) return s;
  const std::int64_t n = weight.shape[0], k = weight.shape[1];
  const LinearFormat* format = format_of(*target);
  if (format == nullptr) return unsupported("{}: no kernel", kPackedWeight);

  const std::size_t size = size_of(*format, n, k);
  const std::shared_ptr<std::byte> bytes = ops::allocate_packed(size);
  if (bytes == nullptr) return ops::no_memory(kPackedWeight, size);
  const detail::CodeMatrix matrix{static_cast<const std::byte*>(weight.data), ops::stride_bytes(weight), n, k,
                                  detail::weight_flip(weight.kind)};
  std::byte* const panels = bytes.get() + sizeof(PackedHeader);
  const std::int64_t panel_bytes = format->panel_bytes(k), count = panel_count(*format, n);
  const auto pack_panel = [&](std::int64_t p) { format->pack_panel(matrix, p, panels + p * panel_bytes); };
  if (Status s = ops::for_each_panel(stream, count, pack_panel); !s.ok()) return s;
  PackedHeader header = ops::packed_header(kMagic, format->arch, weight.kind, n, k);
  for (std::int64_t p = 0; p < count; ++p) header.wide |= format->panel_is_wide(panels + p * panel_bytes, k) ? 1u : 0u;
  header.checksum = ops::checksum(header, panels, size - sizeof(PackedHeader));
  std::memcpy(bytes.get(), &header, sizeof header);
  return hold({format, n, k, weight.kind, header.wide != 0, size, bytes});
}

Result<std::size_t> PackedWeight::packed_size(const Stream& stream, std::int64_t out_features, std::int64_t in_features,
                                              const PlanPreference& preference) {
  if (Status s = ops::check_cpu_stream(kPackedWeight, stream, kOnGpu); !s.ok()) return s;
  const auto target = ops::target_of(kPackedWeight, stream, preference);
  if (!target.ok()) return target.status();
  if (Status s = ops::check_linear_sizes(kPackedWeight, 0, in_features, out_features); !s.ok()) return s;
  const LinearFormat* format = format_of(*target);
  if (format == nullptr) return unsupported("{}: no kernel", kPackedWeight);
  return size_of(*format, out_features, in_features);
}

Result<PackedWeight> PackedWeight::from_bytes(const Stream& stream, std::span<const std::byte> given) {
  if (Status s = ops::check_cpu_stream(kPackedWeight, stream, kOnGpu); !s.ok()) return s;
  const auto read = ops::read_header(kPackedWeight, kMagic, given);
  if (!read.ok()) return read.status();
  const PackedHeader& header = *read;
  const LinearFormat* format = nullptr;
  for (const auto* kernel : ops::all_kernels<detail::LinearKernel>(BackendKind::cpu))
    if (ops::holds(header.isa, name(kernel->sku.arch))) format = kernel->format;
  const std::string_view isa = ops::text_of(header.isa);
  if (format == nullptr) return unsupported("{}: packed for '{}', which this build does not know", kPackedWeight, isa);
  if (!cpu::can_run(format->arch))
    return unsupported("{}: packed for {}, which this machine does not have", kPackedWeight, isa);
  const ElementKind element = ops::holds(header.element, name(ElementKind::u8)) ? ElementKind::u8 : ElementKind::s8;
  if (!ops::holds(header.element, name(element)))
    return invalid_problem("{}: the header names an element that is neither s8 nor u8", kPackedWeight);
  const std::int64_t n = header.out_features, k = header.in_features;
  if (Status s = ops::check_linear_sizes(kPackedWeight, 0, k, n); !s.ok()) return s;
  const std::size_t size = size_of(*format, n, k);
  const auto copied = ops::copy_checked(kPackedWeight, header, given, size);
  if (!copied.ok()) return copied.status();
  const std::shared_ptr<std::byte>& bytes = *copied;
  const std::byte* panels = bytes.get() + sizeof(PackedHeader);
  std::uint64_t wide = 0;
  for (std::int64_t p = 0; p < panel_count(*format, n); ++p) {
    const std::byte* panel = panels + p * format->panel_bytes(k);
    if (!format->panel_is_sound(panel, k))
      return invalid_problem("{}: panel {} of the [{}, {}] weight is damaged", kPackedWeight, p, n, k);
    wide |= format->panel_is_wide(panel, k) ? 1u : 0u;
  }
  if (wide != header.wide) return invalid_problem("{}: the header does not match the panels after it", kPackedWeight);
  return hold({format, n, k, element, wide != 0, size, bytes});
}

std::span<const std::byte> PackedWeight::bytes() const { return {impl_->bytes.get(), impl_->size}; }
std::int64_t PackedWeight::out_features() const { return impl_->out_features; }
std::int64_t PackedWeight::in_features() const { return impl_->in_features; }
ElementKind PackedWeight::element() const { return impl_->element; }
ArchSku PackedWeight::isa() const { return impl_->format->arch; }

}  // namespace kvant
