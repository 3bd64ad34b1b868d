// What holds for every GGUF header that the reader accepts, worked out apart from the reader.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "base/text.h"
#include "io/gguf.h"

namespace kvant::tests {

// Which of them is broken, as a sentence. Empty: none.
inline std::string broken_invariant(const io::GgufHeader& header, std::uint64_t file_bytes) {
  if (header.version != 2 && header.version != 3) return base::text("version {}", header.version);
  if (header.alignment == 0 || header.data_offset % header.alignment != 0)
    return base::text("data at {} with alignment {}", header.data_offset, header.alignment);
  std::set<std::string_view> names, keys;
  for (const io::GgufEntry& entry : header.metadata) {
    if (!keys.insert(entry.key).second) return base::text("key {} twice", io::printable(entry.key));
    if (const auto* const array = std::get_if<io::GgufArray>(&entry.value))
      for (std::size_t i = 0; i < array->size(); ++i)
        if (array->element != io::GgufValueType::string) (void)array->number(i);
  }
  std::uint64_t end = 0;
  for (const io::GgufTensor& tensor : header.tensors) {
    if (!names.insert(tensor.name).second) return base::text("tensor {} twice", io::printable(tensor.name));
    if (tensor.begin % header.alignment != 0) return base::text("begins at {}", tensor.begin);
    if (tensor.begin < end) return base::text("begins at {} before {}", tensor.begin, end);
    const io::GgufTypeInfo& type = info(tensor.type);
    __int128 elements = 1;
    for (const std::uint64_t size : tensor.shape) elements *= static_cast<__int128>(size);
    if (elements % static_cast<__int128>(type.block_elements) != 0 ||
        elements / static_cast<__int128>(type.block_elements) * static_cast<__int128>(type.block_bytes) !=
            static_cast<__int128>(tensor.end - tensor.begin))
      return base::text("{} bytes are not those of the shape", tensor.end - tensor.begin);
    end = tensor.end;
  }
  // A file of empty tensors need not go on to where their data would begin.
  if (end > 0 && (header.data_offset > file_bytes || end > file_bytes - header.data_offset))
    return base::text("ends at {} of data at {} in a file of {}", end, header.data_offset, file_bytes);
  return {};
}

}  // namespace kvant::tests
