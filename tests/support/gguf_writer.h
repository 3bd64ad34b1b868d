// GGUF files for tests, also ones that break a rule: every number can be given as it will stand in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/gguf.h"

namespace kvant::tests {

template <class T>
std::string little_endian(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

inline std::string gguf_string(std::string_view text) {
  return little_endian(std::uint64_t{text.size()}) + std::string(text);
}

// A value with its type, as it stands behind a key.
inline std::string gguf_value(io::GgufValueType type, std::string_view bytes) {
  return little_endian(static_cast<std::uint32_t>(type)) + std::string(bytes);
}
inline std::string gguf_value(std::uint32_t value) { return gguf_value(io::GgufValueType::u32, little_endian(value)); }
inline std::string gguf_value(float value) { return gguf_value(io::GgufValueType::f32, little_endian(value)); }
inline std::string gguf_value(bool value) {
  return gguf_value(io::GgufValueType::boolean, std::string(1, value ? '\1' : '\0'));
}
inline std::string gguf_value(const char* text) { return gguf_value(io::GgufValueType::string, gguf_string(text)); }

inline std::string gguf_array(io::GgufValueType element, std::uint64_t count, std::string_view bytes) {
  return gguf_value(io::GgufValueType::array,
                    little_endian(static_cast<std::uint32_t>(element)) + little_endian(count) + std::string(bytes));
}
inline std::string gguf_value(const std::vector<std::string>& texts) {
  std::string bytes;
  for (const std::string& text : texts) bytes += gguf_string(text);
  return gguf_array(io::GgufValueType::string, texts.size(), bytes);
}
inline std::string gguf_value(const std::vector<float>& numbers) {
  std::string bytes;
  for (const float number : numbers) bytes += little_endian(number);
  return gguf_array(io::GgufValueType::f32, numbers.size(), bytes);
}
inline std::string gguf_value(const std::vector<std::int32_t>& numbers) {
  std::string bytes;
  for (const std::int32_t number : numbers) bytes += little_endian(number);
  return gguf_array(io::GgufValueType::i32, numbers.size(), bytes);
}

struct GgufWriter {
  struct Tensor {
    std::string name;
    std::uint32_t type = 0;
    std::vector<std::uint64_t> shape;  // the last dimension varies fastest
    std::string data;
    std::uint64_t offset = 0;  // add() sets it
  };

  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;
  std::vector<std::pair<std::string, std::string>> metadata;  // keys and values with their types
  std::vector<Tensor> tensors;

  void set(std::string key, std::string value) {
    for (auto& [known, old] : metadata)
      if (known == key) {
        old = std::move(value);
        return;
      }
    metadata.emplace_back(std::move(key), std::move(value));
  }
  void remove(std::string_view key) {
    std::erase_if(metadata, [&](const auto& entry) { return entry.first == key; });
  }

  std::uint64_t padded(std::uint64_t size) const { return (size + alignment - 1) / alignment * alignment; }

  void add(std::string name, io::GgufType type, std::vector<std::uint64_t> shape, std::string data) {
    const std::uint64_t offset = tensors.empty() ? 0 : padded(tensors.back().offset + tensors.back().data.size());
    tensors.push_back({std::move(name), static_cast<std::uint32_t>(type), std::move(shape), std::move(data), offset});
  }
  Tensor* find(std::string_view name) {
    for (Tensor& tensor : tensors)
      if (tensor.name == name) return &tensor;
    return nullptr;
  }

  std::string header() const { return header(tensors.size(), metadata.size()); }
  std::string header(std::uint64_t tensor_count, std::uint64_t entry_count) const {
    std::string bytes = magic + little_endian(version) + little_endian(tensor_count) + little_endian(entry_count);
    for (const auto& [key, value] : metadata) bytes += gguf_string(key) + value;
    for (const Tensor& tensor : tensors) {
      bytes += gguf_string(tensor.name) + little_endian(static_cast<std::uint32_t>(tensor.shape.size()));
      for (std::size_t i = tensor.shape.size(); i-- > 0;) bytes += little_endian(tensor.shape[i]);
      bytes += little_endian(tensor.type) + little_endian(tensor.offset);
    }
    return bytes;
  }
  std::string file() const {
    std::string bytes = header();
    bytes.resize(padded(bytes.size()));
    const std::size_t data = bytes.size();
    for (const Tensor& tensor : tensors) {
      if (bytes.size() < data + tensor.offset) bytes.resize(data + tensor.offset);
      bytes += tensor.data;
    }
    return bytes;
  }
};

}  // namespace kvant::tests
