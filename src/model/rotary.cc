#include "model/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <utility>

#include "base/refuse.h"
#include "io/checkpoint.h"
#include "io/file.h"
#include "io/json.h"
#include "semantics/elementary.h"

namespace kvant::model {
namespace {

using base::unsupported;

constexpr double kTwoPi = 2 * std::numbers::pi;
constexpr double kDefaultTheta = 10000;

// What changes the plain frequencies.
struct Scaling {
  std::string kind = "default";
  double factor = 1;
  double original_positions = 0;  // the context that the model was trained with
  // llama3
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  // yarn
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;
  std::optional<double> attention_factor = std::nullopt;
  std::optional<double> mscale = std::nullopt;
  std::optional<double> mscale_all_dim = std::nullopt;
};

// As published with Llama 3.1: long waves are stretched, short ones stay, those between are blended.
void scale_as_llama3(const Scaling& scaling, std::vector<double>& frequencies) {
  const double low_wave = scaling.original_positions / scaling.low_frequency_factor;
  const double high_wave = scaling.original_positions / scaling.high_frequency_factor;
  for (double& frequency : frequencies) {
    const double wave = kTwoPi / frequency;
    if (wave < high_wave) continue;
    if (wave > low_wave) {
      frequency /= scaling.factor;
      continue;
    }
    const double share = (scaling.original_positions / wave - scaling.low_frequency_factor) /
                         (scaling.high_frequency_factor - scaling.low_frequency_factor);
    frequency = (1 - share) * frequency / scaling.factor + share * frequency;
  }
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * semantics::logarithm(factor) + 1;
}

// As published with YaRN: pairs that turn often in the trained context stay, those that turn seldom are stretched.
void scale_as_yarn(const Scaling& scaling, double theta, std::vector<double>& frequencies) {
  const auto size = static_cast<double>(2 * frequencies.size());
  const auto pair_that_turns = [&](double turns) {
    return size * semantics::logarithm(scaling.original_positions / (turns * kTwoPi)) /
           (2 * semantics::logarithm(theta));
  };
  double low = pair_that_turns(scaling.beta_fast), high = pair_that_turns(scaling.beta_slow);
  if (scaling.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, size - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / scaling.factor * stretched + frequencies[i] * (1 - stretched);
  }
}

double yarn_factor(const Scaling& scaling) {
  if (scaling.attention_factor) return *scaling.attention_factor;
  if (scaling.mscale && scaling.mscale_all_dim)
    return yarn_mscale(scaling.factor, *scaling.mscale) / yarn_mscale(scaling.factor, *scaling.mscale_all_dim);
  return yarn_mscale(scaling.factor, 1);
}

Result<std::optional<double>> optional_positive(const ConfigFields& fields, std::string_view key) {
  if (fields.find(key) == nullptr) return std::optional<double>();
  const auto value = fields.positive(key);
  if (!value.ok()) return value.status();
  return std::optional(*value);
}

// From "rope_scaling", or from "rope_parameters", as newer versions of transformers write it.
Result<Scaling> read_scaling(const ConfigFields& fields, std::int64_t max_positions) {
  Scaling scaling;
  auto kind = fields.text("rope_type");
  if (kind.ok() && kind->empty()) kind = fields.text("type");
  if (!kind.ok()) return kind.status();
  if (!kind->empty()) scaling.kind = *kind;
  if (scaling.kind == "default") return scaling;
  if (scaling.kind != "linear" && scaling.kind != "llama3" && scaling.kind != "yarn")
    return unsupported("{}: rope_scaling is of the kind \"{}\"; known are default, linear, llama3 and yarn",
                       io::kConfigName, io::printable(scaling.kind));
  const std::pair<std::string_view, double*> numbers[] = {
      {"low_freq_factor", &scaling.low_frequency_factor},
      {"high_freq_factor", &scaling.high_frequency_factor},
      {"beta_fast", &scaling.beta_fast},
      {"beta_slow", &scaling.beta_slow},
  };
  scaling.original_positions = static_cast<double>(max_positions);
  for (const auto& [key, to] : {std::pair<std::string_view, double*>{"factor", &scaling.factor},
                                {"original_max_position_embeddings", &scaling.original_positions}}) {
    const auto value = key == "factor" ? fields.positive(key) : fields.positive(key, *to);
    if (!value.ok()) return value.status();
    *to = *value;
  }
  for (const auto& [key, to] : numbers) {
    const auto value = fields.positive(key, *to);
    if (!value.ok()) return value.status();
    *to = *value;
  }
  const std::pair<std::string_view, std::optional<double>*> optional_numbers[] = {
      {"attention_factor", &scaling.attention_factor},
      {"mscale", &scaling.mscale},
      {"mscale_all_dim", &scaling.mscale_all_dim},
  };
  for (const auto& [key, to] : optional_numbers) {
    const auto value = optional_positive(fields, key);
    if (!value.ok()) return value.status();
    *to = *value;
  }
  const auto truncate = fields.flag("truncate", true);
  if (!truncate.ok()) return truncate.status();
  scaling.truncate = *truncate;
  return scaling;
}

}  // namespace

Result<Rotary> read_rotary(const ConfigFields& config, std::int64_t head_size) {
  constexpr std::int64_t kMaxPositions = std::int64_t{1} << 40;
  const auto max_positions = config.integer("max_position_embeddings", 1, kMaxPositions, 2048);
  if (!max_positions.ok()) return max_positions.status();
  auto theta = config.positive("rope_theta", kDefaultTheta);
  auto share = config.positive("partial_rotary_factor", 1.0);
  Scaling scaling;
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    const io::Json* const object = config.find(key);
    if (object == nullptr) continue;
    if (!object->is_object()) return unsupported("{}: {} is no object", io::kConfigName, key);
    const ConfigFields fields(*object);
    auto read = read_scaling(fields, *max_positions);
    if (!read.ok()) return read.status();
    scaling = *read;
    if (theta.ok()) theta = fields.positive("rope_theta", *theta);
    if (share.ok()) share = fields.positive("partial_rotary_factor", *share);
    break;
  }
  if (!theta.ok()) return theta.status();
  if (!share.ok()) return share.status();
  const auto size = static_cast<std::int64_t>(static_cast<double>(head_size) * *share);
  if (size < 2 || size > head_size || size % 2 != 0)
    return unsupported(
        "{}: {} of the {} numbers of a head are turned by their position, must be an even number of "
        "2 to {}",
        io::kConfigName, size, head_size, head_size);

  std::vector<double> frequencies(static_cast<std::size_t>(size / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = 1 / semantics::power(*theta, static_cast<double>(2 * i) / static_cast<double>(size));
  Rotary rotary;
  if (scaling.kind == "linear")
    for (double& frequency : frequencies) frequency /= scaling.factor;
  if (scaling.kind == "llama3") scale_as_llama3(scaling, frequencies);
  if (scaling.kind == "yarn") {
    scale_as_yarn(scaling, *theta, frequencies);
    rotary.factor = static_cast<float>(yarn_factor(scaling));
  }
  for (const double frequency : frequencies) rotary.frequencies.push_back(static_cast<float>(frequency));
  return rotary;
}

void turn(const Rotary& rotary, std::int64_t position, std::span<float> cosines, std::span<float> sines) {
  for (std::size_t i = 0; i < rotary.frequencies.size(); ++i) {
    const float angle = static_cast<float>(position) * rotary.frequencies[i];
    cosines[i] = static_cast<float>(semantics::cosine(static_cast<double>(angle))) * rotary.factor;
    sines[i] = static_cast<float>(semantics::sine(static_cast<double>(angle))) * rotary.factor;
  }
}

}  // namespace kvant::model
