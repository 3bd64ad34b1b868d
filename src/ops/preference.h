// What select() may choose from, after the stream and the environment have been heard.
#pragma once

#include <optional>
#include <string>

#include "base/who.h"
#include "kvant/plan.h"
#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant::ops {

// Where kernels may come from.
struct Target {
  BackendKind backend = BackendKind::cpu;
  std::optional<ArchSku> isa = std::nullopt;  // nothing: the best that runs
};

// Whether the stream is a usable one of the CPU and nobody asks for anything: the usual case.
bool nothing_requested(const Stream& stream, const PlanPreference& preference);

// Where something is requested.
Result<Target> requested_target(const std::string& who, const Stream& stream, const PlanPreference& preference);

// The stream's backend, and the instruction set that was asked for by `preference` or KVANT_FORCE_ISA (which is about
// the CPU alone), checked to be compiled in and runnable here. Refuses a backend that is not the stream's.
inline Result<Target> target_of(const base::Who& who, const Stream& stream, const PlanPreference& preference) {
  if (nothing_requested(stream, preference)) return Target();
  return requested_target(who(), stream, preference);
}

// For what exists on the CPU only; `instead` says what to do on a GPU.
Status check_cpu_stream(const char* who, const Stream& stream, const char* instead);

// A GPU's kernels go to the current device.
bool is_of_current_device(const Stream& stream);

// A run's stream against the backend that its plan was selected for.
Status refuse_stream(const std::string& who, const Stream& stream, BackendKind backend);
inline Status check_stream(const base::Who& who, const Stream& stream, BackendKind backend) {
  if (stream.status().ok() && stream.backend() == backend && is_of_current_device(stream)) return {};
  return refuse_stream(who(), stream, backend);
}

}  // namespace kvant::ops
