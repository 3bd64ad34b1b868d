#include "ops/preference.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/refuse.h"
#include "core/cuda_backend.h"
#include "cpu/instruction_sets.h"

namespace kvant::ops {
namespace {

// The instruction set of the CPU that has this name.
std::optional<ArchSku> isa_named(std::string_view text) {
  for (const ArchInfo& arch : kArchs)
    if (arch.backend == BackendKind::cpu && arch.name == text) return arch.arch;
  return std::nullopt;
}

// "scalar, avx2"
std::string known_isas() {
  std::string names;
  for (const ArchInfo& arch : kArchs) {
    if (arch.backend != BackendKind::cpu) continue;
    if (!names.empty()) names += ", ";
    names += arch.name;
  }
  return names;
}

// Null or empty: nothing is forced.
const char* forced_isa() { return std::getenv("KVANT_FORCE_ISA"); }
bool is_set(const char* variable) { return variable != nullptr && *variable != '\0'; }

}  // namespace

bool nothing_requested(const Stream& stream, const PlanPreference& preference) {
  return stream.status().ok() && stream.backend() == BackendKind::cpu && !preference.backend && !preference.isa &&
         !is_set(forced_isa());
}

Result<Target> requested_target(const std::string& who, const Stream& stream, const PlanPreference& preference) {
  if (!stream.status().ok()) return stream.status();
  const BackendKind backend = stream.backend();
  if (preference.backend == BackendKind::cuda && !cuda::is_built())
    return base::unsupported("{}: backend cuda was requested, but this build of kvant has no CUDA", who);
  if (preference.backend.value_or(backend) != backend)
    return base::unsupported("{}: backend {} was requested, but the stream is on {}", who, name(*preference.backend),
                             name(backend));
  if (backend == BackendKind::cuda) {
    if (preference.isa.value_or(ArchSku::sm_80) != ArchSku::sm_80)
      return base::unsupported("{}: PlanPreference asks for {}, but the stream is on cuda", who, name(*preference.isa));
    return Target{backend, ArchSku::sm_80};
  }

  std::optional<ArchSku> isa = preference.isa;
  std::string asked_by = "PlanPreference";
  if (!isa) {
    const char* forced = forced_isa();
    if (!is_set(forced)) return Target();
    isa = isa_named(forced);
    if (!isa)
      return base::unsupported("{}: KVANT_FORCE_ISA={} is not an instruction set; known: {}", who, forced,
                               known_isas());
    asked_by = "KVANT_FORCE_ISA";
  }
  const cpu::InstructionSet* set = cpu::instruction_set(*isa);
  if (set == nullptr)
    return base::unsupported("{}: {} asks for {}, which this build of kvant has no kernels for", who, asked_by,
                             name(*isa));
  if (!set->runs_here)
    return base::unsupported("{}: {} asks for {}, which this machine cannot run", who, asked_by, name(*isa));
  return Target{backend, isa};
}

Status check_cpu_stream(const char* who, const Stream& stream, const char* instead) {
  if (!stream.status().ok()) return stream.status();
  if (stream.backend() == BackendKind::cpu) return {};
  return base::unsupported("{}: runs on cpu streams only, this stream is on {}; {}", who, name(stream.backend()),
                           instead);
}

bool is_of_current_device(const Stream& stream) {
  return stream.backend() == BackendKind::cpu || stream.device().device == cuda::current_device();
}

Status refuse_stream(const std::string& who, const Stream& stream, BackendKind backend) {
  if (!stream.status().ok()) return stream.status();
  if (stream.backend() == backend)
    return base::invalid_problem(
        "{}: the stream belongs to device {}, the current device is {}; call cudaSetDevice({}) first", who,
        stream.device().device, cuda::current_device(), stream.device().device);
  return base::unsupported("{}: the plan was selected for {}, but the stream is on {}", who, name(backend),
                           name(stream.backend()));
}

}  // namespace kvant::ops
