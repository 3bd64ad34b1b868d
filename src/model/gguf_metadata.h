// Values of a GGUF's metadata in the types that a reader asks for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf.h"
#include "kvant/status.h"

namespace kvant::model {

class GgufMetadata {
 public:
  explicit GgufMetadata(const io::GgufFile& file) : file_(file) {}

  bool has(std::string_view key) const { return file_.find_entry(key) != nullptr; }
  // Each is refused where the value is there and of another kind; nothing where it is not there.
  Result<std::optional<std::uint64_t>> count(const std::string& key) const;
  // A number in f32 becomes the shortest decimal that means it: 1e-05, not 9.999999747378752e-06.
  Result<std::optional<double>> number(const std::string& key) const;
  Result<std::optional<bool>> flag(const std::string& key) const;
  Result<std::optional<std::string>> text(const std::string& key) const;
  // Null where it is not there. Of strings, of integers, of numbers in floating point.
  Result<const io::GgufArray*> strings(const std::string& key) const;
  Result<std::vector<std::int64_t>> integers(const std::string& key) const;
  Result<std::vector<double>> numbers(const std::string& key) const;

  // From `least` to `most`.
  Result<std::uint64_t> count_between(const std::string& key, std::uint64_t least, std::uint64_t most) const;
  // The same, or what stands for it where it is not there.
  Result<std::uint64_t> count_or(const std::string& key, std::uint64_t otherwise, std::uint64_t least,
                                 std::uint64_t most) const;

  std::string file_name() const { return io::printable_path(file_.file().path()); }

 private:
  Status refuse(const io::GgufEntry& entry, std::string_view wanted) const;
  const io::GgufFile& file_;
};

}  // namespace kvant::model
