// What a long job says while it works. The command line draws a bar with it; tests leave it out.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvant::base {

// What a phase counts.
enum class Unit : std::uint8_t { bytes, tokens };

class Progress {
 public:
  virtual ~Progress() = default;
  // A phase of `total` steps begins: "reading columns", "quantizing". So many `steps` are one of the unit: a token goes
  // through every block of a model.
  virtual void begin(std::string_view phase, std::uint64_t total, Unit unit, std::uint64_t steps) = 0;
  void begin(std::string_view phase, std::uint64_t bytes) { begin(phase, bytes, Unit::bytes, 1); }
  // So many more steps of the phase are done. Called from many threads.
  virtual void advance(std::uint64_t count) = 0;
  // Something that is finished, or that the person should know: "wrote model-00001-of-00002.safetensors". Not called
  // from two threads at once.
  virtual void note(std::string_view line) = 0;
};

// Says nothing.
class Silence : public Progress {
 public:
  void begin(std::string_view /*phase*/, std::uint64_t /*total*/, Unit /*unit*/, std::uint64_t /*steps*/) override {}
  void advance(std::uint64_t /*count*/) override {}
  void note(std::string_view /*line*/) override {}
};

}  // namespace kvant::base
