// Scales as the layout stores them. The formulas are in semantics/stored_scale.h; this is the door to them for the
// rooms that build on this one and do not look into the library's.
#pragma once

#include "semantics/stored_scale.h"

namespace kvant::format {

using semantics::asymmetric_scale;
using semantics::largest_number;
using semantics::nvfp4_global_scale;
using semantics::power_scale;
using semantics::SavedScale;
using semantics::scale_under;
using semantics::symmetric_scale;

}  // namespace kvant::format
