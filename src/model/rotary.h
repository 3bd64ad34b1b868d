// Rotary position embeddings: the angles by which queries and keys are turned, as config.json describes them.
//
//   frequency[i] = theta^(-2i / size), changed for long contexts as rope_scaling says: linear, llama3 or yarn
//   angle[position, i] = position * frequency[i] in f32
//   cosine = cos(angle) * factor, sine = sin(angle) * factor
//
// Frequencies are computed in f64 and rounded to f32 once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvant/status.h"
#include "model/config_fields.h"

namespace kvant::model {

struct Rotary {
  std::vector<float> frequencies;  // of a pair each; empty: positions do not turn anything
  float factor = 1;                // of cosines and sines

  std::int64_t size() const { return 2 * static_cast<std::int64_t>(frequencies.size()); }
};

// For heads of `head_size`. Refuses a kind of scaling that is not known, by name.
Result<Rotary> read_rotary(const ConfigFields& config, std::int64_t head_size);

// Of one position: as many as there are frequencies.
void turn(const Rotary& rotary, std::int64_t position, std::span<float> cosines, std::span<float> sines);

}  // namespace kvant::model
