// The files of a folder against the checksums that kvant wrote into it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/progress.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "measure/verify.h"

namespace kvant::measure {

// Reads every byte of every file that kvant wrote. A file that changed, shrank or is gone is a problem, and so is a
// *.safetensors that kvant did not write; other files that it did not write are named as not checked. `path` may be one
// file, or a folder without checksums: then that is what was not checked.
Status check_file_contents(const std::filesystem::path& path, const Stream& stream, Verification& verification,
                           base::Progress& progress);

}  // namespace kvant::measure
