// Checkpoints that are quantized already, in the dialects that loaders read: which of their tensors hold codes, and
// what these stand for. quantization_config of config.json names the dialect in "quant_method":
//
//   compressed-tensors  as kvant writes it (compressed_tensors.h)
//   fp8                 DeepSeek's: X.weight F8_E4M3 [out, in], X.weight_scale_inv F32 [ceil(out / 128), ceil(in /
//   128)],
//                       a scale, whatever its name says
//   modelopt            FP8: X.weight F8_E4M3, X.weight_scale F32 of the tensor or of each row, X.input_scale.
//                       NVFP4: X.weight U8 [out, in / 2], X.weight_scale F8_E4M3 [out, in / 16], X.weight_scale_2 F32,
//                       which scales are multiplied with, X.input_scale. hf_quant_config.json may say it too
//   mxfp4               gpt-oss's experts: X_blocks U8 [experts, out, in / 32, 16], X_scales U8 [experts, out, in / 32]
//   gptq, awq           X.qweight, X.qzeros I32, X.scales (Arrangement in quantized_layers.h), X.g_idx I32 [in]
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "format/quantization_config.h"
#include "format/quantized_layers.h"
#include "io/checkpoint.h"
#include "kvant/status.h"

namespace kvant::format {

// Matrices of several experts in one tensor. `layer` has the rows of all of them, one expert after the other.
struct QuantizedStack {
  QuantizedLayer layer;
  std::uint64_t experts = 0;
};

struct QuantizedWeights {
  std::string description;  // "w8a8", "FP8 in blocks of 128 x 128 (DeepSeek)"
  std::vector<QuantizedLayer> layers;
  std::vector<QuantizedStack> stacks;
  std::set<std::string, std::less<>> tensors;  // that hold the layers' codes and what goes with them
  bool is_compressed_tensors = false;
  bool fp8_kv_cache = false;
};

// Nothing where the checkpoint says nothing of quantization. Refuses other dialects by their name, and tensors that do
// not agree.
Result<std::optional<QuantizedWeights>> find_quantized_weights(const io::Checkpoint& checkpoint);

// Where a dialect's own file says what config.json does not.
inline constexpr std::string_view kModelOptName = "hf_quant_config.json";
// Files beside config.json that speak of the quantization of the input, and of nothing else.
bool is_quantization_file(std::string_view name);

// What config.json names as "quant_method" in `text`; empty: it names nothing.
std::string method_of(const QuantizationConfigText& text);
inline constexpr std::string_view kCompressedTensors = "compressed-tensors";

}  // namespace kvant::format
