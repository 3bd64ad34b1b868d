// PackedWeight: a W8A8 weight in the order in which the matrix kernels read it. Pack once when a model is loaded, then
// use it for every run and from any number of threads: it never changes, and copies share the bytes.
//
// A packed weight holds the codes of a [N, K] matrix of s8 or u8 (nothing is rounded or lost), the sums of its rows,
// and, if the instruction set needs it, a list of what would overflow 16-bit sums. It belongs to the instruction set it
// was packed for: a plan for another one refuses it. CUDA plans take the raw weight: there is nothing to rearrange.
//
//   auto packed = kvant::PackedWeight::pack(stream, kvant::TensorRef<std::int8_t>(w.data(), {n, k}));
//   if (!packed.ok()) return fail(packed.status());
//   … {.packed_weight = &*packed} in the arguments of a linear plan (linear.h)
//
// bytes() can be written to a file and read back with from_bytes(). Their number depends only on N, K and the
// instruction set, so packed_size() knows it before anything is packed. The bytes are for machines of the same byte
// order, and from_bytes() checks them: a damaged or foreign buffer is refused with the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kvant/element.h"
#include "kvant/export.h"
#include "kvant/plan.h"
#include "kvant/sku.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "kvant/tensor.h"

namespace kvant {

class KVANT_API PackedWeight {
 public:
  // `weight` is a [N, K] view of s8 or u8, one row for each output feature; rows may be strided, N and K may be 0.
  // Allocates packed_size() bytes; the weight is not needed afterwards.
  static Result<PackedWeight> pack(const Stream& stream, const AnyRef& weight, const PlanPreference& preference = {});

  // bytes().size() of a packed [out_features, in_features] weight.
  static Result<std::size_t> packed_size(const Stream& stream, std::int64_t out_features, std::int64_t in_features,
                                         const PlanPreference& preference = {});

  // A copy of what bytes() gave. Refuses a buffer of another size, of an unknown format, for an instruction set that
  // this machine lacks, or whose checksum or lists do not fit.
  static Result<PackedWeight> from_bytes(const Stream& stream, std::span<const std::byte> bytes);

  std::span<const std::byte> bytes() const;
  std::int64_t out_features() const;  // N
  std::int64_t in_features() const;   // K
  ElementKind element() const;        // s8 or u8
  ArchSku isa() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }  // for the plans

 private:
  explicit PackedWeight(std::shared_ptr<const Impl> impl);
  static Result<PackedWeight> hold(Impl&& impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace kvant
