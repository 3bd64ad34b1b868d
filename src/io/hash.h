// A hash that tells changed bytes from the same ones (XXH3, 64 bits). It is no protection against somebody who wants
// them to agree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace kvant::io {

class Hash {
 public:
  Hash();

  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  // Of what was added so far.
  std::uint64_t value() const;
  // Sixteen hexadecimal digits.
  std::string text() const;

 private:
  struct Free {
    void operator()(void* state) const;
  };
  std::unique_ptr<void, Free> state_;
};

}  // namespace kvant::io
