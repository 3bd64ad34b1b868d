#include "format/activation_stats.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/refuse.h"
#include "format/module_name.h"

namespace kvant::format {
namespace {

using base::invalid_problem;
using io::printable;

// What the sizes of a tensor are.
enum class Form : std::uint8_t { channels, one, bins, square };

struct Row {
  Statistic statistic;
  std::string_view name;
  io::DType dtype;
  Form form;
};

constexpr Row kRows[] = {
    {Statistic::absmax, "absmax", io::DType::f32, Form::channels},
    {Statistic::min, "min", io::DType::f32, Form::channels},
    {Statistic::max, "max", io::DType::f32, Form::channels},
    {Statistic::mean_square, "mean_square", io::DType::f32, Form::channels},
    {Statistic::int8_error, "int8_error", io::DType::f32, Form::channels},
    {Statistic::int8_asymmetric_error, "int8_asymmetric_error", io::DType::f32, Form::channels},
    {Statistic::count, "count", io::DType::i64, Form::one},
    {Statistic::histogram, "histogram", io::DType::i64, Form::bins},
    {Statistic::histogram_limit, "histogram_limit", io::DType::f64, Form::one},
    {Statistic::hessian, "hessian", io::DType::f32, Form::square},
};

consteval bool in_order() {
  for (std::size_t i = 0; i < std::size(kRows); ++i)
    if (static_cast<std::size_t>(kRows[i].statistic) != i) return false;
  return true;
}
static_assert(in_order(), "a row of the statistics stands in the wrong place");

constexpr const Row& row_of(Statistic statistic) { return kRows[static_cast<std::size_t>(statistic)]; }

constexpr std::string_view kSameInput = ".same_input_as";

std::string_view wanted(Form form) {
  switch (form) {
    case Form::channels: return "[in]";
    case Form::one: return "[1]";
    case Form::bins: return "[bins + 1]";
    case Form::square: return "[in, in]";
  }
  return "";
}

bool has_form(const io::TensorInfo& tensor, Form form) {
  switch (form) {
    case Form::channels: return tensor.shape.size() == 1;
    case Form::one: return tensor.shape.size() == 1 && tensor.shape[0] == 1;
    case Form::bins: return tensor.shape.size() == 1 && tensor.shape[0] > 2 && tensor.shape[0] % 2 == 1;
    case Form::square: return tensor.shape.size() == 2 && tensor.shape[0] == tensor.shape[1];
  }
  return false;
}

Status check_form(const io::TensorInfo& tensor, std::string_view file) {
  const std::string_view last = last_component(tensor.name);
  const Row* const row = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return r.name == last; });
  if (row == std::end(kRows) || row->form == Form::channels) {
    if (tensor.dtype == io::DType::f32 && tensor.shape.size() == 1) return {};
    return invalid_problem(
        "{}: tensor '{}' is {} with {} dimensions; statistics are F32 with one, a value for each input "
        "channel",
        file, printable(tensor.name), io::name(tensor.dtype), tensor.shape.size());
  }
  if (tensor.dtype == row->dtype && has_form(tensor, row->form)) return {};
  return invalid_problem("{}: tensor '{}' is {} [{}], must be {} {}", file, printable(tensor.name),
                         io::name(tensor.dtype), base::joined(tensor.shape, ", "), io::name(row->dtype),
                         wanted(row->form));
}

}  // namespace

std::string_view name(Statistic statistic) { return row_of(statistic).name; }

std::string statistic_name(std::string_view module, Statistic statistic) {
  return base::text("{}.{}", module, name(statistic));
}

io::TensorInfo statistic_tensor(std::string_view module, Statistic statistic, std::uint64_t in, std::uint64_t bins) {
  const Row& row = row_of(statistic);
  io::TensorInfo tensor{.name = statistic_name(module, statistic), .dtype = row.dtype, .shape = {}};
  switch (row.form) {
    case Form::channels: tensor.shape = {in}; break;
    case Form::one: tensor.shape = {1}; break;
    case Form::bins: tensor.shape = {bins + 1}; break;
    case Form::square: tensor.shape = {in, in}; break;
  }
  return tensor;
}

std::string same_input_key(std::string_view module) { return base::text("{}{}", module, kSameInput); }

Result<ActivationStats> ActivationStats::open(const std::filesystem::path& path) {
  auto file = io::SafetensorsFile::open(path);
  if (!file.ok()) return file.status();
  const std::string shown = io::printable_path(path);
  for (const io::TensorInfo& tensor : file->tensors())
    if (Status s = check_form(tensor, shown); !s.ok()) return s;
  for (const auto& [key, first] : file->metadata()) {
    if (!key.ends_with(kSameInput)) continue;
    if (file->metadata().contains(same_input_key(first)) ||
        file->find(statistic_name(first, Statistic::absmax)) == nullptr)
      return invalid_problem("{}: metadata '{}' names '{}', which has no statistics of its own", shown, printable(key),
                             printable(first));
  }
  return ActivationStats(std::move(file).value());
}

std::string ActivationStats::path() const { return io::printable_path(file_.file().path()); }

const io::TensorInfo* ActivationStats::find(std::string_view module, Statistic statistic) const {
  if (const io::TensorInfo* own = file_.find(statistic_name(module, statistic))) return own;
  const auto first = file_.metadata().find(same_input_key(module));
  return first == file_.metadata().end() ? nullptr : file_.find(statistic_name(first->second, statistic));
}

Result<const io::TensorInfo*> ActivationStats::need(std::string_view module, Statistic statistic) const {
  const io::TensorInfo* const tensor = find(module, statistic);
  if (tensor == nullptr)
    return invalid_problem("{}: has no '{}'; collect it, or leave the layer out with --ignore {}", path(),
                           printable(statistic_name(module, statistic)), printable(module));
  return tensor;
}

template <class T>
Result<std::vector<T>> ActivationStats::read(const io::TensorInfo& tensor) const {
  std::vector<T> values(static_cast<std::size_t>(tensor.bytes() / sizeof(T)));
  if (Status s = file_.read(tensor, 0, std::as_writable_bytes(std::span(values))); !s.ok()) return s;
  return values;
}

Result<std::vector<float>> ActivationStats::channels(std::string_view module, Statistic statistic,
                                                     std::uint64_t in_features) const {
  const auto tensor = need(module, statistic);
  if (!tensor.ok()) return tensor.status();
  const std::string shown = printable((*tensor)->name);
  if ((*tensor)->shape[0] != in_features)
    return invalid_problem("{}: '{}' has {} values, '{}.weight' has {} input channels", path(), shown,
                           (*tensor)->shape[0], printable(module), in_features);
  auto values = read<float>(**tensor);
  if (!values.ok()) return values;
  const bool may_be_negative = statistic == Statistic::min || statistic == Statistic::max;
  for (std::size_t i = 0; i < values->size(); ++i) {
    const float value = (*values)[i];
    if (!std::isfinite(value))
      return invalid_problem("{}: '{}' is {} at channel {}; statistics must be finite", path(), shown, value, i);
    if (value < 0 && !may_be_negative)
      return invalid_problem("{}: '{}' is {} at channel {}; {} cannot be negative", path(), shown, value, i,
                             statistic == Statistic::absmax ? "a max magnitude" : "a mean of squares");
  }
  return values;
}

Result<ActivationStats::MinMax> ActivationStats::min_max(std::string_view module, std::uint64_t in_features) const {
  auto low = channels(module, Statistic::min, in_features);
  if (!low.ok()) return low.status();
  auto high = channels(module, Statistic::max, in_features);
  if (!high.ok()) return high.status();
  for (std::size_t i = 0; i < low->size(); ++i)
    if ((*low)[i] > (*high)[i])
      return invalid_problem("{}: '{}' is {} at channel {}, above its max {}", path(),
                             printable(statistic_name(module, Statistic::min)), (*low)[i], i, (*high)[i]);
  return MinMax{std::move(low).value(), std::move(high).value()};
}

Result<std::int64_t> ActivationStats::count(std::string_view module) const {
  const auto tensor = need(module, Statistic::count);
  if (!tensor.ok()) return tensor.status();
  const auto values = read<std::int64_t>(**tensor);
  if (!values.ok()) return values.status();
  if (values->front() < 1)
    return invalid_problem("{}: '{}' is {}, must be at least 1", path(), printable((*tensor)->name), values->front());
  return values->front();
}

Result<ActivationStats::Histogram> ActivationStats::histogram(std::string_view module) const {
  const auto tensor = need(module, Statistic::histogram);
  if (!tensor.ok()) return tensor.status();
  const auto limit_tensor = need(module, Statistic::histogram_limit);
  if (!limit_tensor.ok()) return limit_tensor.status();
  auto counts = read<std::int64_t>(**tensor);
  if (!counts.ok()) return counts.status();
  const auto limit = read<double>(**limit_tensor);
  if (!limit.ok()) return limit.status();
  int exponent = 0;
  if (!std::isfinite(limit->front()) || std::frexp(limit->front(), &exponent) != 0.5)
    return invalid_problem("{}: '{}' is {}, must be a power of two", path(), printable((*limit_tensor)->name),
                           limit->front());
  for (std::size_t i = 0; i < counts->size(); ++i)
    if ((*counts)[i] < 0)
      return invalid_problem("{}: '{}' is {} at {}; a count cannot be negative", path(), printable((*tensor)->name),
                             (*counts)[i], i);
  Histogram histogram{.limit = limit->front(), .counts = std::move(counts).value(), .zeros = 0};
  histogram.zeros = histogram.counts.back();
  histogram.counts.pop_back();
  return histogram;
}

Status ActivationStats::read_hessian(std::string_view module, std::uint64_t in_features, std::uint64_t row,
                                     std::span<float> to) const {
  const auto tensor = need(module, Statistic::hessian);
  if (!tensor.ok()) return tensor.status();
  const std::string shown = printable((*tensor)->name);
  if ((*tensor)->shape[0] != in_features)
    return invalid_problem("{}: '{}' has {} rows, '{}.weight' has {} input channels", path(), shown,
                           (*tensor)->shape[0], printable(module), in_features);
  if (Status s = file_.read(**tensor, 4 * row * in_features, std::as_writable_bytes(to)); !s.ok()) return s;
  for (std::size_t i = 0; i < to.size(); ++i)
    if (!std::isfinite(to[i]))
      return invalid_problem("{}: '{}' is {} at [{}, {}]; statistics must be finite", path(), shown, to[i],
                             row + i / in_features, i % in_features);
  return {};
}

}  // namespace kvant::format
