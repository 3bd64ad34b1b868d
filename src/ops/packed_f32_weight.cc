#include "kvant/packed_f32_weight.h"

#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "base/divide_up.h"
#include "base/refuse.h"
#include "cpu/instruction_sets.h"
#include "ops/packed_bytes.h"
#include "ops/packed_f32_weight_impl.h"
#include "ops/packed_weight_impl.h"
#include "ops/preference.h"
#include "ops/registry.h"
#include "ops/views.h"

namespace kvant {
namespace {

using base::invalid_problem;
using base::unsupported;
using detail::F32LinearKernel;

constexpr const char* kPackedF32Weight = "packed_f32_weight";
constexpr std::string_view kF32Magic = "kvantF01";

Status check_on_cpu(const Stream& stream) {
  return ops::check_cpu_stream(kPackedF32Weight, stream, "f32 linear layers have no CUDA kernels");
}

std::int64_t panel_count(const F32LinearKernel& kernel, std::int64_t out_features) {
  return base::divide_up(out_features, kernel.panel_columns);
}
std::int64_t panel_bytes(const F32LinearKernel& kernel, std::int64_t in_features) {
  return detail::f32_panel_bytes(in_features, kernel.panel_bytes_per_k);
}
std::size_t size_of(const F32LinearKernel& kernel, std::int64_t out_features, std::int64_t in_features) {
  return sizeof(ops::PackedHeader) +
         static_cast<std::size_t>(panel_count(kernel, out_features) * panel_bytes(kernel, in_features));
}

Result<const F32LinearKernel*> kernel_for(const Stream& stream, ElementKind element, const PlanPreference& preference) {
  if (Status s = check_on_cpu(stream); !s.ok()) return s;
  const auto target = ops::target_of(kPackedF32Weight, stream, preference);
  if (!target.ok()) return target.status();
  const auto* kernel =
      ops::select_kernel<F32LinearKernel>(QuantizeKind::f32_linear, element, ElementKind::f32, *target).kernel;
  if (kernel == nullptr)
    return unsupported("{}: weight has element {}, must be one of f32, f16, bf16", kPackedF32Weight, name(element));
  return kernel;
}

}  // namespace

const std::byte* PackedF32Weight::Impl::panels() const { return bytes.get() + sizeof(ops::PackedHeader); }

PackedF32Weight::PackedF32Weight(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<PackedF32Weight> PackedF32Weight::hold(Impl&& impl) {
  try {
    return PackedF32Weight(std::make_shared<const Impl>(std::move(impl)));
  } catch (const std::bad_alloc&) {
    return ops::no_memory(kPackedF32Weight, sizeof(Impl));
  }
}

Result<PackedF32Weight> PackedF32Weight::pack(const Stream& stream, const AnyRef& weight,
                                              const PlanPreference& preference) {
  const auto found = kernel_for(stream, weight.kind, preference);
  if (!found.ok()) return found.status();
  const F32LinearKernel& kernel = **found;
  if (Status s = ops::check_weight_to_pack(kPackedF32Weight, weight); !s.ok()) return s;
  const std::int64_t n = weight.shape[0], k = weight.shape[1];

  const std::size_t size = size_of(kernel, n, k);
  const std::shared_ptr<std::byte> bytes = ops::allocate_packed(size);
  if (bytes == nullptr) return ops::no_memory(kPackedF32Weight, size);
  const detail::FloatMatrix matrix{static_cast<const std::byte*>(weight.data), ops::stride_bytes(weight), n, k};
  std::byte* const panels = bytes.get() + sizeof(ops::PackedHeader);
  const auto pack_panel = [&](std::int64_t p) { kernel.pack_panel(matrix, p, panels + p * panel_bytes(kernel, k)); };
  if (Status s = ops::for_each_panel(stream, panel_count(kernel, n), pack_panel); !s.ok()) return s;
  ops::PackedHeader header = ops::packed_header(kF32Magic, kernel.sku.arch, weight.kind, n, k);
  header.checksum = ops::checksum(header, panels, size - sizeof header);
  std::memcpy(bytes.get(), &header, sizeof header);
  return hold({&kernel, n, k, size, bytes});
}

Result<std::size_t> PackedF32Weight::packed_size(const Stream& stream, ElementKind element, std::int64_t out_features,
                                                 std::int64_t in_features, const PlanPreference& preference) {
  const auto kernel = kernel_for(stream, element, preference);
  if (!kernel.ok()) return kernel.status();
  if (Status s = ops::check_linear_sizes(kPackedF32Weight, 0, in_features, out_features); !s.ok()) return s;
  return size_of(**kernel, out_features, in_features);
}

Result<PackedF32Weight> PackedF32Weight::from_bytes(const Stream& stream, std::span<const std::byte> given) {
  if (Status s = check_on_cpu(stream); !s.ok()) return s;
  const auto header = ops::read_header(kPackedF32Weight, kF32Magic, given);
  if (!header.ok()) return header.status();
  const std::string_view isa = ops::text_of(header->isa);
  const F32LinearKernel* kernel = nullptr;
  bool knows_isa = false;
  for (const F32LinearKernel* one : ops::all_kernels<F32LinearKernel>(BackendKind::cpu)) {
    if (!ops::holds(header->isa, name(one->sku.arch))) continue;
    knows_isa = true;
    if (ops::holds(header->element, name(one->sku.element))) kernel = one;
  }
  if (!knows_isa) return unsupported("{}: packed for '{}', which this build does not know", kPackedF32Weight, isa);
  if (kernel == nullptr)
    return invalid_problem("{}: the header names the element '{}', must be one of f32, f16, bf16", kPackedF32Weight,
                           ops::text_of(header->element));
  if (!cpu::can_run(kernel->sku.arch))
    return unsupported("{}: packed for {}, which this machine does not have", kPackedF32Weight, isa);
  const std::int64_t n = header->out_features, k = header->in_features;
  if (Status s = ops::check_linear_sizes(kPackedF32Weight, 0, k, n); !s.ok()) return s;
  const std::size_t size = size_of(*kernel, n, k);
  const auto bytes = ops::copy_checked(kPackedF32Weight, *header, given, size);
  if (!bytes.ok()) return bytes.status();
  if (header->wide != 0)
    return invalid_problem("{}: the header says {} for wide panels, must be 0", kPackedF32Weight, header->wide);
  return hold({kernel, n, k, size, *bytes});
}

std::span<const std::byte> PackedF32Weight::bytes() const { return {impl_->bytes.get(), impl_->size}; }
std::int64_t PackedF32Weight::out_features() const { return impl_->out_features; }
std::int64_t PackedF32Weight::in_features() const { return impl_->in_features; }
ElementKind PackedF32Weight::element() const { return impl_->kernel->sku.element; }
ArchSku PackedF32Weight::isa() const { return impl_->kernel->sku.arch; }

}  // namespace kvant
