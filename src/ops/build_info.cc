#include "kvant/build_info.h"

#include "core/cuda_backend.h"
#include "cpu/instruction_sets.h"
#include "kvant/stream.h"
#include "ops/preference.h"

namespace kvant {

BuildInfo build_info() {
  BuildInfo all;
  for (const cpu::InstructionSet& set : cpu::instruction_sets()) {
    BuildInfo::InstructionSet info{set.arch(), set.runs_here, {}};
    detail::for_each_family([&]<class Kernel>(TypeList<Kernel>) {
      info.families.push_back({Kernel::kFamily, set.kernels.of<Kernel>().count});
    });
    all.instruction_sets.push_back(std::move(info));
  }
  all.has_cuda = cuda::is_built();
  return all;
}

Result<ArchSku> default_isa() {
  const auto target = ops::target_of("kvant", Stream::cpu(), {});
  if (!target.ok()) return target.status();
  if (target->isa) return *target->isa;
  for (const cpu::InstructionSet& set : cpu::instruction_sets())
    if (set.runs_here) return set.arch();
  return ArchSku::scalar;
}

}  // namespace kvant
