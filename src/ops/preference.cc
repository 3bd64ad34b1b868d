#include "ops/preference.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/refuse.h"
#include "cpu/features.h"

namespace kvant::ops {
namespace {

constexpr ArchSku kKnownIsas[] = {ArchSku::scalar, ArchSku::avx2};

// Null or empty: nothing is forced.
const char* forced_isa() { return std::getenv("KVANT_FORCE_ISA"); }
bool is_set(const char* variable) { return variable != nullptr && *variable != '\0'; }

}  // namespace

bool nothing_requested(const Stream& stream, const PlanPreference& preference) {
  return stream.status().ok() && !preference.backend && !preference.isa && !is_set(forced_isa());
}

Result<std::optional<ArchSku>> requested_isa(const std::string& who, const Stream& stream,
                                             const PlanPreference& preference) {
  if (!stream.status().ok()) return stream.status();
  if (preference.backend == BackendKind::cuda)
    return core::unsupported("{}: backend cuda was asked for, but this build of kvant has none", who);

  std::optional<ArchSku> isa = preference.isa;
  std::string asked_by = "PlanPreference";
  if (!isa) {
    const char* forced = forced_isa();
    if (!is_set(forced)) return std::optional<ArchSku>();
    const auto known =
        std::find_if(std::begin(kKnownIsas), std::end(kKnownIsas), [&](ArchSku arch) { return name(arch) == forced; });
    if (known == std::end(kKnownIsas))
      return core::unsupported("{}: KVANT_FORCE_ISA={} is not an instruction set; known: scalar, avx2", who, forced);
    isa = *known;
    asked_by = "KVANT_FORCE_ISA";
  }
  const auto compiled = cpu::compiled_isas();
  if (std::find(compiled.begin(), compiled.end(), *isa) == compiled.end())
    return core::unsupported("{}: {} asks for {}, which this build of kvant has no kernels for", who, asked_by,
                             name(*isa));
  if (!cpu::can_run(*isa))
    return core::unsupported("{}: {} asks for {}, which this machine cannot run", who, asked_by, name(*isa));
  return isa;
}

}  // namespace kvant::ops
