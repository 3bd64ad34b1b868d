#include "format/smoothing_file.h"

#include <fmt/core.h>

#include <cmath>
#include <map>
#include <utility>

#include "base/refuse.h"
#include "base/text.h"
#include "io/atomic_file.h"

namespace kvant::format {

using base::invalid_problem;
using io::printable;

Result<SmoothingFile> SmoothingFile::open(const std::filesystem::path& path) {
  auto file = io::SafetensorsFile::open(path);
  if (!file.ok()) return file.status();
  return SmoothingFile(std::move(file).value());
}

std::string SmoothingFile::path() const { return printable(file_.file().path().string()); }

Result<const io::TensorInfo*> SmoothingFile::vector_of(const std::string& linear, std::uint64_t columns) const {
  const auto it = file_.metadata().find(linear);
  if (it == file_.metadata().end()) return static_cast<const io::TensorInfo*>(nullptr);
  const io::TensorInfo* s = file_.find(it->second);
  if (s == nullptr)
    return invalid_problem("{}: the vector '{}', which smoothed layer '{}', is missing", path(), printable(it->second),
                           printable(linear));
  if (s->dtype != io::DType::f32 || s->shape.size() != 1 || s->shape[0] != columns)
    return invalid_problem("{}: tensor '{}' is {} [{}], must be F32 [{}] for layer '{}'", path(), printable(s->name),
                           io::name(s->dtype), base::joined(s->shape, ", "), columns, printable(linear));
  return s;
}

Status SmoothingFile::read(const io::TensorInfo& s, std::uint64_t column, std::span<float> to) const {
  if (Status status = file_.read(s, 4 * column, std::as_writable_bytes(to)); !status.ok()) return status;
  for (std::size_t i = 0; i < to.size(); ++i)
    if (!std::isfinite(to[i]))
      return invalid_problem("{}: element {} of '{}' is {}, must be finite", path(), column + i, printable(s.name),
                             to[i]);
  return {};
}

Status write_smoothing_file(const std::filesystem::path& path, std::span<const SmoothingVector> vectors) {
  std::vector<io::TensorInfo> tensors;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  for (const SmoothingVector& vector : vectors) {
    tensors.push_back({std::string(vector.norm), io::DType::f32, {vector.s.size()}, 0, 0});
    for (const std::string& linear : vector.linears) metadata[linear] = vector.norm;
  }
  const auto layout = io::lay_out_safetensors(std::move(tensors), metadata);
  if (!layout.ok()) return layout.status();
  auto file = io::AtomicFile::create(path, true);
  if (!file.ok()) return file.status();
  if (Status s = file->write(std::as_bytes(std::span(layout->header))); !s.ok()) return s;
  for (const SmoothingVector& vector : vectors)
    if (Status s = file->write(std::as_bytes(vector.s)); !s.ok()) return s;
  return file->commit(true);
}

}  // namespace kvant::format
