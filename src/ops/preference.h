// What select() may choose from, after the environment has been heard.
#pragma once

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

}  // namespace kvant::ops
