// Quantization schemes, and how config.json names them in the compressed-tensors layout that vLLM and transformers
// load.
//
//   w8a8         weights s8 per output channel, activations s8 per token at run time
//   w8a8-static  weights s8 per output channel, activations s8 with one scale for each linear, from statistics
//   w4a16        weights s4 in groups along the input, activations as they are
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "io/json_fwd.h"
#include "io/safetensors.h"
#include "kvant/status.h"

namespace kvant::format {

enum class SchemeKind : std::uint8_t { w8a8, w8a8_static, w4a16 };
std::string_view name(SchemeKind kind);
std::optional<SchemeKind> scheme_named(std::string_view text);

struct Scheme {
  SchemeKind kind = SchemeKind::w8a8;
  bool asymmetric = false;                    // weights of w4a16, activations of w8a8-static
  std::int64_t group_size = 128;              // of w4a16
  std::optional<io::DType> scale_dtype = {};  // F32, F16 or BF16; default: the weight's own
};

// Refuses what no loader takes: a group size that is not positive, asymmetric for w8a8, a scale dtype that is none.
Status check(const Scheme& scheme);

// The value of "quantization_config".
io::Json quantization_config(const Scheme& scheme, std::span<const std::string> ignore);

}  // namespace kvant::format
