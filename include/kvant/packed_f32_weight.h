// PackedF32Weight: the weight of an f32 linear layer (f32_linear.h), rearranged once for the instruction set that will
// read it. Its elements stay as they are: f16 and bf16 take 16 bits in memory and are widened when they are used.
//
//   auto packed = kvant::PackedF32Weight::pack(stream, kvant::TensorRef<float>(w.data(), {n, k}));
//   if (!packed.ok()) return fail(packed.status());
//   … {.packed_weight = &*packed} in the arguments of an f32 linear plan
//
// bytes() can be written to a file and read back with from_bytes(); how many there are depends on N, K, the element and
// the instruction set alone, so packed_size() tells before anything is packed. The bytes are for machines of the same
// byte order and are checked when they come back: a damaged or foreign buffer is refused with the reason. A plan for
// another instruction set than the one it was packed for refuses it.
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

class KVANT_API PackedF32Weight {
 public:
  // `weight` is a [N, K] view of f32, f16 or bf16, one row for each output feature; rows may be strided, N and K may be
  // 0. Allocates packed_size() bytes; the weight is not needed afterwards.
  static Result<PackedF32Weight> pack(const Stream& stream, const AnyRef& weight,
                                      const PlanPreference& preference = {});

  // bytes().size() of a packed [out_features, in_features] weight.
  static Result<std::size_t> packed_size(const Stream& stream, ElementKind element, std::int64_t out_features,
                                         std::int64_t in_features, const PlanPreference& preference = {});

  // A copy of what bytes() gave. Refuses a buffer of another size, of an unknown format, for an instruction set that
  // this machine lacks, or whose checksum does not fit.
  static Result<PackedF32Weight> from_bytes(const Stream& stream, std::span<const std::byte> bytes);

  std::span<const std::byte> bytes() const;
  std::int64_t out_features() const;  // N
  std::int64_t in_features() const;   // K
  ElementKind element() const;        // f32, f16 or bf16
  ArchSku isa() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }  // for the plans

 private:
  explicit PackedF32Weight(std::shared_ptr<const Impl> impl);
  static Result<PackedF32Weight> hold(Impl&& impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace kvant
