// What a run was told and what it read, as fingerprints: a run that was interrupted goes on only with the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "io/checkpoint.h"
#include "io/json_fwd.h"
#include "kvant/status.h"
#include "quantize/checkpoint_plan.h"

namespace kvant::quantize {

// The options that change bytes.
io::Json options_json(const QuantizeOptions& options);

// {"format": "kvant-manifest-1", "kvant": VERSION, "options": {…}, "input": […], "outputs": […]}
//
// Options are those that change bytes (not threads or memory). Of every input file: size, time of modification and a
// hash, of all of a file up to 64 MiB, and of samples of a larger one, which would take as long to hash as to quantize.
// `outputs` are the names of all files that the run writes into its folder.
Result<io::Json> make_manifest(const io::Checkpoint& checkpoint, const QuantizeOptions& options,
                               std::span<const std::string> outputs);
// The same of a run that reads one file; `options` are those that change bytes.
Result<io::Json> make_manifest(const io::InputFile& input, const io::Json& options,
                               std::span<const std::string> outputs);

// Empty if they agree; else the first difference: "scheme was \"w8a8\" and is \"w4a16\"".
std::string manifest_difference(const io::Json& before, const io::Json& now);

}  // namespace kvant::quantize
