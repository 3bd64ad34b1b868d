// What select() may choose from, after the environment has been heard.
#pragma once

#include <concepts>
#include <optional>
#include <string>

#include "kvant/plan.h"
#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant::ops {

// The instruction set that was asked for by `preference` or KVANT_FORCE_ISA, checked to be compiled in and runnable
// here; nothing if none was asked for. Refuses a backend that is not the stream's. `who` begins the sentence.
Result<std::optional<ArchSku>> requested_isa(const std::string& who, const Stream& stream,
                                             const PlanPreference& preference);

// Whether the stream is usable and nobody asks for anything: the usual case, for which no sentence needs a beginning.
bool nothing_requested(const Stream& stream, const PlanPreference& preference);

// The same with the beginning made only where it is needed: making it takes longer than the rest of a select().
template <std::invocable Who>
Result<std::optional<ArchSku>> requested_isa(const Who& who, const Stream& stream, const PlanPreference& preference) {
  if (nothing_requested(stream, preference)) return std::optional<ArchSku>();
  return requested_isa(std::string(who()), stream, preference);
}

}  // namespace kvant::ops
