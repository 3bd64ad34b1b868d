// What every plan shares. An operator is used in four steps:
//
//   auto plan = SomePlan::select(stream, descriptor);   refuses what the descriptor shows; picks the kernel
//   plan->can_implement(args)                           every check that needs the buffers
//   plan->workspace_size()                              scratch bytes that run() needs
//   plan->run(stream, workspace, args)                  checks again, then runs; writes nothing if it refuses
//
// Plans are immutable: one plan may be used by many threads at once. run() allocates nothing, takes no lock
// and calls the kernel that select() chose; on a CUDA stream it enqueues and returns. It does not depend on the
// caller's floating-point mode (rounding, flush to zero, exception masks) and does not change it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kvant/export.h"
#include "kvant/sku.h"
#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant {

// How x / scale is computed. The two differ at ties: x = 0.273939937f, scale = 0.00214854861f gives 127.499992
// by division and 127.5 by multiplication with the reciprocal.
enum class Numerics : std::uint8_t {
  exact,       // the correctly rounded quotient x / scale, as in ONNX QuantizeLinear
  reciprocal,  // x * (1 / scale), as in PyTorch's CPU quantize_per_tensor; 1 / scale must be finite
};
KVANT_API std::string_view name(Numerics numerics);

// What select() may choose from. The stream decides the backend; `backend`, if set, must agree. A requested backend or
// instruction set that is absent is an error, never a silent fallback. On CPU streams the environment variable
// KVANT_FORCE_ISA (scalar, avx2) sets `isa` if it is unset.
struct PlanPreference {
  std::optional<BackendKind> backend = std::nullopt;
  std::optional<ArchSku> isa = std::nullopt;
  Numerics numerics = Numerics::exact;
};

// Scratch memory for one run().
struct Workspace {
  void* data = nullptr;
  std::size_t size = 0;
};

namespace detail {

// A run-time typed plan with types: the same calls, with Args::operands() passing the views without a copy.
// Each operator's header derives from it and adds select().
template <class Plan, class DescriptorType, class ArgsType>
class TypedPlan {
 public:
  using Descriptor = DescriptorType;
  using Args = ArgsType;

  Status can_implement(const Args& args) const { return plan_.can_implement(args.operands()); }
  std::size_t workspace_size() const { return plan_.workspace_size(); }
  KernelSku sku() const { return plan_.sku(); }
  PrecisionGuarantee precision_guarantee() const { return plan_.precision_guarantee(); }
  Status run(const Stream& stream, Workspace workspace, const Args& args) const {
    return plan_.run(stream, workspace, args.operands());
  }

 protected:
  explicit TypedPlan(const Plan& plan) : plan_(plan) {}

 private:
  Plan plan_;
};

}  // namespace detail
}  // namespace kvant
