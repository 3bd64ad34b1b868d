// The readers of single dialects (dialects.h). Each takes the value of quantization_config, and where it stands.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "format/dialects.h"
#include "io/checkpoint.h"
#include "io/json_fwd.h"
#include "kvant/status.h"

namespace kvant::format {

Result<QuantizedWeights> read_deepseek(const io::Checkpoint& checkpoint, const io::Json& config,
                                       const std::string& where);
Result<QuantizedWeights> read_modelopt(const io::Checkpoint& checkpoint, const io::Json& config,
                                       const std::string& where);
Result<QuantizedWeights> read_gpt_oss(const io::Checkpoint& checkpoint, const io::Json& config,
                                      const std::string& where);
Result<QuantizedWeights> read_gptq(const io::Checkpoint& checkpoint, const io::Json& config, const std::string& where);
Result<QuantizedWeights> read_awq(const io::Checkpoint& checkpoint, const io::Json& config, const std::string& where);

// A tensor of a layer. Refuses one that is missing, has another dtype, or none of the shapes.
Result<io::TensorPlace> part_of(const io::Checkpoint& checkpoint, const std::string& name,
                                std::initializer_list<io::DType> dtypes,
                                std::initializer_list<std::vector<std::uint64_t>> shapes);

// A scheme of the table, by its name.
const Scheme& scheme_of_table(std::string_view name);

}  // namespace kvant::format
