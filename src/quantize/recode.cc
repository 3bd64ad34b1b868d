#include "quantize/recode.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "format/element_dtype.h"
#include "format/weight_form.h"

namespace kvant::quantize {
namespace {

constexpr std::uint64_t kBytesAtOnce = std::uint64_t{1} << 18;

Status copy_tensor(const io::Checkpoint& checkpoint, const io::TensorPlace& place, std::uint64_t to,
                   io::AtomicFile& file) {
  const std::uint64_t bytes = checkpoint.at(place).bytes();
  std::vector<std::byte> buffer;
  for (std::uint64_t at = 0; at < bytes; at += kBytesAtOnce) {
    buffer.resize(static_cast<std::size_t>(std::min(kBytesAtOnce, bytes - at)));
    if (Status s = checkpoint.read(place, at, buffer); !s.ok()) return s;
    if (Status s = file.write_at(to + at, buffer); !s.ok()) return s;
  }
  return {};
}

Status write_float(std::uint64_t at, float value, ElementKind kind, io::AtomicFile& file) {
  std::byte bytes[4];
  format::store(value, kind, bytes);
  return file.write_at(at, {bytes, static_cast<std::size_t>(row_bytes(kind, 1))});
}

}  // namespace

Status recode_parts(const io::Checkpoint& checkpoint, const ShardLayout::Entry& entry, const format::Scheme& scheme,
                    io::AtomicFile& file) {
  const format::QuantizedLayer& layer = *entry.plan->source->codes;
  if (entry.weight_shape != 0) {
    const std::uint64_t shape[2] = {layer.rows, layer.columns};
    if (Status s = file.write_at(entry.weight_shape, std::as_bytes(std::span(shape))); !s.ok()) return s;
  }
  if (layer.arrangement == format::Arrangement::by_rows)
    if (Status s = copy_tensor(checkpoint, layer.scales, entry.places.scales, file); !s.ok()) return s;
  if (entry.global_scale != 0)
    if (Status s = write_float(entry.global_scale, layer.globals_multiply ? 1 / layer.global_scale : layer.global_scale,
                               ElementKind::f32, file);
        !s.ok())
      return s;
  const auto write_input = [&](const io::TensorPlace& place, std::uint64_t at, ElementKind kind, bool inverse) {
    float value = 0;
    std::vector<std::byte> bytes;
    if (Status s = format::read_scales(checkpoint, place, 0, {&value, 1}, bytes); !s.ok()) return s;
    return write_float(at, inverse ? 1 / value : value, kind, file);
  };
  const ElementKind number = *format::element_of(format::scale_dtype(scheme, entry.plan->dtype));
  if (entry.input_scale != 0)
    if (Status s = write_input(*layer.input_scale, entry.input_scale, number, false); !s.ok()) return s;
  if (entry.input_global_scale != 0)
    return write_input(*layer.input_global_scale, entry.input_global_scale, ElementKind::f32, layer.globals_multiply);
  return {};
}

}  // namespace kvant::quantize
