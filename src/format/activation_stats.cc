#include "format/activation_stats.h"

#include <cmath>
#include <span>
#include <string>

#include "base/refuse.h"

namespace kvant::format {
namespace {

using base::invalid_problem;

std::string named(std::string_view module, std::string_view what) { return fmt::format("{}.{}", module, what); }

}  // namespace

Result<ActivationStats> ActivationStats::open(const std::filesystem::path& path) {
  auto file = io::SafetensorsFile::open(path);
  if (!file.ok()) return file.status();
  for (const io::TensorInfo& tensor : file->tensors())
    if (tensor.dtype != io::DType::f32 || tensor.shape.size() != 1)
      return invalid_problem(
          "{}: tensor '{}' is {} with {} dimensions; statistics are F32 with one, a value for each input "
          "channel",
          io::printable(path.string()), io::printable(tensor.name), io::name(tensor.dtype), tensor.shape.size());
  return ActivationStats(std::move(file).value());
}

bool ActivationStats::has_absmax(std::string_view module) const {
  return file_.find(named(module, "absmax")) != nullptr;
}

bool ActivationStats::has_min_max(std::string_view module) const {
  return file_.find(named(module, "min")) != nullptr && file_.find(named(module, "max")) != nullptr;
}

Result<std::vector<float>> ActivationStats::read(std::string_view module, std::string_view what,
                                                 std::uint64_t in_features) const {
  const std::string name = named(module, what);
  const std::string file = io::printable(file_.file().path().string());
  const io::TensorInfo* tensor = file_.find(name);
  if (tensor == nullptr)
    return invalid_problem("{}: has no '{}'; collect it, or leave the layer out with --ignore {}", file,
                           io::printable(name), io::printable(module));
  if (tensor->shape[0] != in_features)
    return invalid_problem("{}: '{}' has {} values, '{}.weight' has {} input channels", file, io::printable(name),
                           tensor->shape[0], io::printable(module), in_features);
  std::vector<float> values(in_features);
  if (Status s = file_.read(*tensor, 0, std::as_writable_bytes(std::span(values))); !s.ok()) return s;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      return invalid_problem("{}: '{}' is {} at channel {}; statistics must be finite", file, io::printable(name),
                             values[i], i);
  return values;
}

Result<std::vector<float>> ActivationStats::absmax(std::string_view module, std::uint64_t in_features) const {
  auto values = read(module, "absmax", in_features);
  if (!values.ok()) return values;
  for (std::size_t i = 0; i < values->size(); ++i)
    if ((*values)[i] < 0)
      return invalid_problem("{}: '{}' is {} at channel {}; a max magnitude cannot be negative",
                             io::printable(file_.file().path().string()), io::printable(named(module, "absmax")),
                             (*values)[i], i);
  return values;
}

Result<ActivationStats::MinMax> ActivationStats::min_max(std::string_view module, std::uint64_t in_features) const {
  auto low = read(module, "min", in_features);
  if (!low.ok()) return low.status();
  auto high = read(module, "max", in_features);
  if (!high.ok()) return high.status();
  for (std::size_t i = 0; i < low->size(); ++i)
    if ((*low)[i] > (*high)[i])
      return invalid_problem("{}: '{}' is {} at channel {}, above its max {}",
                             io::printable(file_.file().path().string()), io::printable(named(module, "min")),
                             (*low)[i], i, (*high)[i]);
  return MinMax{std::move(low).value(), std::move(high).value()};
}

}  // namespace kvant::format
