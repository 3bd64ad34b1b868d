#include "format/activation_stats.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <tuple>
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
static_assert(std::size(kRows) == kStatistics && in_order(), "a row of the statistics stands in the wrong place");

constexpr const Row& row_of(Statistic statistic) { return kRows[static_cast<std::size_t>(statistic)]; }

const Row* row_named(std::string_view name) {
  const Row* const row = std::ranges::find(kRows, name, &Row::name);
  return row == std::end(kRows) ? nullptr : row;
}

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

// Models inside others: a causal model's decoder by itself, torch.compile, PEFT, DataParallel, models that see
// pictures.
constexpr std::string_view kPrefixes[] = {
    "model.",  "_orig_mod.",      "_orig_mod.model.",     "base_model.model.", "base_model.model.model.",
    "module.", "language_model.", "language_model.model."};

Status check_form(const io::TensorInfo& tensor, std::string_view file) {
  const Row* const row = row_named(last_component(tensor.name));
  if (row == nullptr || row->form == Form::channels) {
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
  auto opened = io::SafetensorsFile::open(path);
  if (!opened.ok()) return opened.status();
  const auto file = std::make_shared<const io::SafetensorsFile>(std::move(opened).value());
  return make({.path = path,
               .tensors = file->tensors(),
               .metadata = file->metadata(),
               .read = [file](std::size_t tensor, std::uint64_t offset, std::span<std::byte> to) {
                 return file->read(file->tensors()[tensor], offset, to);
               }});
}

Result<ActivationStats> ActivationStats::make(StatisticsSource source) {
  ActivationStats stats(std::move(source));
  const std::string shown = stats.shown_path();
  for (const io::TensorInfo& tensor : stats.tensors())
    if (Status s = check_form(tensor, shown); !s.ok()) return s;
  for (const auto& [key, first] : stats.metadata()) {
    if (!key.ends_with(kSameInput)) continue;
    bool has_own = false;
    for (const Row& row : kRows) has_own |= stats.find(statistic_name(first, row.statistic)) != nullptr;
    if (!has_own || stats.metadata().contains(same_input_key(first)))
      return invalid_problem("{}: metadata '{}' names '{}', which has no statistics of its own", shown, printable(key),
                             printable(first));
  }
  return stats;
}

ActivationStats::ActivationStats(StatisticsSource source) : source_(std::move(source)), by_name_(tensors().size()) {
  std::iota(by_name_.begin(), by_name_.end(), 0U);
  std::ranges::sort(by_name_, {}, [&](std::uint32_t i) -> const std::string& { return tensors()[i].name; });
}

std::vector<std::string> ActivationStats::modules() const {
  std::vector<std::string> modules;
  std::set<std::string_view> known;
  const auto add = [&](std::string_view module) {
    if (!module.empty() && known.insert(module).second) modules.emplace_back(module);
  };
  for (const io::TensorInfo& tensor : tensors())
    if (row_named(last_component(tensor.name)) != nullptr) add(parent_of(tensor.name));
  for (const auto& [key, first] : metadata())
    if (key.ends_with(kSameInput)) add(std::string_view(key).substr(0, key.size() - kSameInput.size()));
  return modules;
}

std::optional<std::uint64_t> ActivationStats::in_features(std::string_view module) const {
  for (const Row& row : kRows) {
    if (row.form != Form::channels && row.form != Form::square) continue;
    if (const io::TensorInfo* tensor = find(module, row.statistic)) return tensor->shape[0];
  }
  return std::nullopt;
}

const std::string* ActivationStats::same_input_as(std::string_view module) const {
  const auto first = metadata().find(same_input_key(module));
  return first == metadata().end() ? nullptr : &first->second;
}

bool ActivationStats::has_ranges() const {
  return std::ranges::any_of(tensors(), [](const io::TensorInfo& tensor) {
    const Row* const row = row_named(last_component(tensor.name));
    return row != nullptr && (row->statistic == Statistic::absmax || row->statistic == Statistic::max);
  });
}

const io::TensorInfo* ActivationStats::find(std::string_view name) const {
  const auto name_of = [&](std::uint32_t i) -> std::string_view { return tensors()[i].name; };
  const auto place = std::ranges::lower_bound(by_name_, name, {}, name_of);
  return place != by_name_.end() && name_of(*place) == name ? &tensors()[*place] : nullptr;
}

void ActivationStats::find_prefix(const io::Checkpoint& checkpoint) {
  if (count_known(checkpoint) > 0) return;
  std::size_t most = 0;
  std::pair<std::string, std::string> best;
  for (const std::string_view prefix : kPrefixes)
    for (const bool more : {false, true}) {
      more_ = more ? prefix : "";
      less_ = more ? "" : prefix;
      if (const std::size_t known = count_known(checkpoint); known > most) {
        most = known;
        best = {more_, less_};
      }
    }
  std::tie(more_, less_) = best;
}

std::size_t ActivationStats::count_known(const io::Checkpoint& checkpoint) const {
  return static_cast<std::size_t>(std::ranges::count_if(checkpoint.tensors(), [&](const auto& tensor) {
    const std::string_view module = module_of(tensor.first);
    return !module.empty() && in_features(module);
  }));
}

// As the module is called there. An lm_head is beside what has the prefix.
std::string ActivationStats::name_in_file(std::string_view module) const {
  if (!module.starts_with(less_)) return std::string(module);
  return more_ + std::string(module.substr(less_.size()));
}

const io::TensorInfo* ActivationStats::find(std::string_view model_module, Statistic statistic) const {
  const std::string module = name_in_file(model_module);
  if (const io::TensorInfo* own = find(statistic_name(module, statistic))) return own;
  const std::string* const first = same_input_as(module);
  return first == nullptr ? nullptr : find(statistic_name(*first, statistic));
}

Result<const io::TensorInfo*> ActivationStats::need(std::string_view module, Statistic statistic) const {
  const io::TensorInfo* const tensor = find(module, statistic);
  if (tensor == nullptr)
    return invalid_problem("{}: has no '{}'; collect it, or leave the layer out with --ignore {}", shown_path(),
                           printable(statistic_name(module, statistic)), printable(module));
  return tensor;
}

Status ActivationStats::read(const io::TensorInfo& tensor, std::uint64_t offset, std::span<std::byte> to) const {
  return source_.read(static_cast<std::size_t>(&tensor - tensors().data()), offset, to);
}

template <class T>
Result<std::vector<T>> ActivationStats::read(const io::TensorInfo& tensor) const {
  std::vector<T> values(static_cast<std::size_t>(tensor.bytes() / sizeof(T)));
  if (Status s = read(tensor, 0, std::as_writable_bytes(std::span(values))); !s.ok()) return s;
  return values;
}

Result<std::vector<float>> ActivationStats::channels(std::string_view module, Statistic statistic,
                                                     std::uint64_t in_features) const {
  const auto tensor = need(module, statistic);
  if (!tensor.ok()) return tensor.status();
  const std::string shown = printable((*tensor)->name);
  if ((*tensor)->shape[0] != in_features)
    return invalid_problem("{}: '{}' has {} values, '{}.weight' has {} input channels", shown_path(), shown,
                           (*tensor)->shape[0], printable(module), in_features);
  auto values = read<float>(**tensor);
  if (!values.ok()) return values;
  const bool may_be_negative = statistic == Statistic::min || statistic == Statistic::max;
  for (std::size_t i = 0; i < values->size(); ++i) {
    const float value = (*values)[i];
    if (!std::isfinite(value))
      return invalid_problem("{}: '{}' is {} at channel {}; statistics must be finite", shown_path(), shown, value, i);
    if (value < 0 && !may_be_negative)
      return invalid_problem("{}: '{}' is {} at channel {}; {} cannot be negative", shown_path(), shown, value, i,
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
      return invalid_problem("{}: '{}' is {} at channel {}, above its max {}", shown_path(),
                             printable(statistic_name(module, Statistic::min)), (*low)[i], i, (*high)[i]);
  return MinMax{std::move(low).value(), std::move(high).value()};
}

Result<std::int64_t> ActivationStats::count(std::string_view module) const {
  const auto tensor = need(module, Statistic::count);
  if (!tensor.ok()) return tensor.status();
  const auto values = read<std::int64_t>(**tensor);
  if (!values.ok()) return values.status();
  if (values->front() < 1)
    return invalid_problem("{}: '{}' is {}, must be at least 1", shown_path(), printable((*tensor)->name),
                           values->front());
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
    return invalid_problem("{}: '{}' is {}, must be a power of two", shown_path(), printable((*limit_tensor)->name),
                           limit->front());
  for (std::size_t i = 0; i < counts->size(); ++i)
    if ((*counts)[i] < 0)
      return invalid_problem("{}: '{}' is {} at {}; a count cannot be negative", shown_path(),
                             printable((*tensor)->name), (*counts)[i], i);
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
    return invalid_problem("{}: '{}' has {} rows, '{}.weight' has {} input channels", shown_path(), shown,
                           (*tensor)->shape[0], printable(module), in_features);
  if (Status s = read(**tensor, 4 * row * in_features, std::as_writable_bytes(to)); !s.ok()) return s;
  for (std::size_t i = 0; i < to.size(); ++i)
    if (!std::isfinite(to[i]))
      return invalid_problem("{}: '{}' is {} at [{}, {}]; statistics must be finite", shown_path(), shown, to[i],
                             row + i / in_features, i % in_features);
  return {};
}

}  // namespace kvant::format
