#include "measure/merge_statistics.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "base/float_environment.h"
#include "base/refuse.h"
#include "base/text.h"
#include "format/activation_stats.h"
#include "format/kv_cache.h"
#include "format/module_name.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "model/imatrix.h"
#include "model/roles.h"

namespace kvant::measure {
namespace {

namespace fs = std::filesystem;
using base::invalid_problem;
using format::ActivationStats;
using format::Statistic;
using io::printable;

// How a statistic of several texts is made from those of each.
enum class Rule : std::uint8_t {
  largest,
  least,
  mean,
  sum,  // of counts
  histogram,
  limit,  // of the histogram
  matrix,
};

struct MergeRow {
  Statistic statistic;
  Rule rule;
  bool is_shared;  // by linears that read the same input: only the first of them has it
};

// In the order in which `kvant calibrate` writes them.
constexpr MergeRow kMergeRows[] = {
    {Statistic::count, Rule::sum, false},
    {Statistic::absmax, Rule::largest, false},
    {Statistic::min, Rule::least, false},
    {Statistic::max, Rule::largest, false},
    {Statistic::mean_square, Rule::mean, false},
    {Statistic::int8_error, Rule::mean, false},
    {Statistic::int8_asymmetric_error, Rule::mean, false},
    {Statistic::histogram, Rule::histogram, true},
    {Statistic::histogram_limit, Rule::limit, true},
    {Statistic::hessian, Rule::matrix, true},
};
static_assert(std::size(kMergeRows) == format::kStatistics, "a statistic has no rule");

struct MergedModule {
  std::string name;
  std::vector<const ActivationStats*> files;  // that have it
  std::string first;                          // whose input it reads; empty: it has what it has of its own
};

struct MergedTensor {
  const MergedModule* module;
  const MergeRow* row;
  io::TensorInfo info;
};

// Which modules may be missing in a file: experts that no token was sent to, and heads, which an imatrix does not look
// at.
bool may_be_missing(std::string_view module) {
  for (std::string_view rest = module; !rest.empty(); rest = format::parent_of(rest))
    if (format::is_number(format::last_component(rest)) && format::last_component(format::parent_of(rest)) == "experts")
      return true;
  const io::TensorInfo weight{.name = base::text("{}.weight", module), .dtype = io::DType::f32, .shape = {1, 1}};
  return model::judge(weight, {}).role == model::Role::lm_head;
}

template <class T>
Status write_merged(io::AtomicFile& file, std::span<const T> values) {
  return file.write(std::as_bytes(values));
}

class StatisticsMerger {
 public:
  StatisticsMerger(const MergeOptions& options, base::Progress& progress) : options_(options), progress_(progress) {}

  Result<MergedStatistics> run() {
    for (const auto step : {&StatisticsMerger::check_output, &StatisticsMerger::open_all,
                            &StatisticsMerger::find_modules, &StatisticsMerger::plan_tensors, &StatisticsMerger::write})
      if (Status s = (this->*step)(); !s.ok()) return s;
    return std::move(merged_);
  }

 private:
  static std::string shown(const ActivationStats& file) { return io::printable_path(file.path()); }

  Status check_output() {
    std::error_code error;
    for (const fs::path& input : options_.inputs)
      for (const fs::path& path : {options_.output, io::partial_of(options_.output)})
        if (fs::equivalent(input, path, error))
          return invalid_problem("{}: is an input of the merge too; the output needs a name of its own",
                                 io::printable_path(path));
    if (!options_.overwrite && fs::exists(options_.output, error))
      return invalid_problem("{}: exists already; --force overwrites it", io::printable_path(options_.output));
    for (std::size_t i = 1; i < options_.inputs.size(); ++i)
      if (std::any_of(options_.inputs.begin(), options_.inputs.begin() + static_cast<std::ptrdiff_t>(i),
                      [&](const fs::path& before) { return fs::equivalent(before, options_.inputs[i], error); }))
        merged_.warnings.push_back(
            base::text("{}: is given twice, its rows count twice", io::printable_path(options_.inputs[i])));
    return {};
  }

  Status open_all() {
    if (options_.inputs.empty()) return invalid_problem("stats merge: no files were given");
    for (const fs::path& input : options_.inputs) {
      auto opened = model::open_statistics(input, options_.model_type);
      if (!opened.ok()) return opened.status();
      files_.push_back(std::move(opened).value());
    }
    return {};
  }

  Status find_modules() {
    std::map<std::string, std::size_t, std::less<>> places;
    for (const ActivationStats& file : files_) {
      const std::vector<std::string> modules = file.modules();
      if (modules.empty()) return invalid_problem("{}: has no statistics of any module", shown(file));
      for (const std::string& module : modules) {
        const auto [place, is_new] = places.emplace(module, modules_.size());
        if (is_new) modules_.push_back({module, {}, {}});
        modules_[place->second].files.push_back(&file);
      }
    }
    leave_out_caches(places);
    std::vector<const MergedModule*> partial;
    for (const MergedModule& module : modules_) {
      if (module.files.size() == files_.size()) continue;
      if (!may_be_missing(module.name)) return refuse_missing(module);
      partial.push_back(&module);
    }
    if (!partial.empty())
      merged_.warnings.push_back(
          base::text("{} of {} modules {} not in all files, the first is '{}': statistics of {} come from the files "
                     "that have them",
                     partial.size(), linears(), partial.size() == 1 ? "is" : "are", printable(partial.front()->name),
                     partial.size() == 1 ? "it" : "those"));
    merged_.modules = linears();
    merged_.shared = merged_.modules - partial.size();
    find_firsts(places);
    return {};
  }

  // Modules that are no keys or values.
  std::uint64_t linears() const {
    return static_cast<std::uint64_t>(std::ranges::count_if(
        modules_, [](const MergedModule& module) { return !format::cache_statistics_of(module.name); }));
  }

  const ActivationStats& who_lacks(const MergedModule& module) const {
    return *std::ranges::find_if(files_, [&](const ActivationStats& file) {
      return std::ranges::find(module.files, &file) == module.files.end();
    });
  }

  // Files of older versions and of other tools have no keys and values, and a max over some of the texts is none.
  void leave_out_caches(std::map<std::string, std::size_t, std::less<>>& places) {
    const auto is_partial = [&](const MergedModule& module) {
      return module.files.size() < files_.size() && format::cache_statistics_of(module.name);
    };
    const auto first = std::ranges::find_if(modules_, is_partial);
    if (first == modules_.end()) return;
    merged_.warnings.push_back(base::text("keys and values are left out: {} has no '{}'", shown(who_lacks(*first)),
                                          printable(format::statistic_name(first->name, Statistic::absmax))));
    std::erase_if(modules_, is_partial);
    places.clear();
    for (std::size_t i = 0; i < modules_.size(); ++i) places.emplace(modules_[i].name, i);
  }

  Status refuse_missing(const MergedModule& module) const {
    return invalid_problem("{}: has no statistics of '{}', which {} has; only experts and heads may be missing",
                           shown(who_lacks(module)), printable(module.name), shown(*module.files.front()));
  }

  // A module goes on to point to another one where all its files say so, and the other one is of no other files.
  void find_firsts(const std::map<std::string, std::size_t, std::less<>>& places) {
    for (MergedModule& module : modules_) {
      const std::string* const first = module.files.front()->same_input_as(module.name);
      const bool agreed = std::ranges::all_of(module.files, [&](const ActivationStats* file) {
        const std::string* const other = file->same_input_as(module.name);
        return first != nullptr && other != nullptr && *first == *other;
      });
      if (agreed && modules_[places.at(*first)].files == module.files) module.first = *first;
    }
  }

  Status plan_tensors() {
    std::array<std::pair<std::uint64_t, std::string>, format::kStatistics> left_out = {};
    for (const MergedModule& module : modules_)
      for (const MergeRow& row : kMergeRows) {
        if (row.is_shared && !module.first.empty()) continue;
        const auto lacks = std::ranges::find_if(
            module.files, [&](const ActivationStats* file) { return !has(*file, module.name, row.statistic); });
        if (lacks == module.files.end()) {
          if (Status s = plan_tensor(module, row); !s.ok()) return s;
          continue;
        }
        const bool some = std::ranges::any_of(
            module.files, [&](const ActivationStats* file) { return has(*file, module.name, row.statistic); });
        auto& [count, where] = left_out[static_cast<std::size_t>(row.statistic)];
        if (some && count++ == 0)
          where = base::text("{} has no '{}'", shown(**lacks), printable(tensor_of(module, row)));
      }
    for (const MergeRow& row : kMergeRows)
      if (const auto& [count, where] = left_out[static_cast<std::size_t>(row.statistic)]; count > 0)
        merged_.warnings.push_back(base::text("{} is left out of {} {}: {}", format::name(row.statistic), count,
                                              count == 1 ? "module" : "modules", where));
    find_unknown();
    // Numbers of eight bytes first, so that all are at multiples of their size.
    std::stable_partition(tensors_.begin(), tensors_.end(),
                          [](const MergedTensor& tensor) { return io::bits(tensor.info.dtype) == 64; });
    return {};
  }

  // One without its limit is not there.
  static bool has(const ActivationStats& file, const std::string& module, Statistic statistic) {
    if (statistic == Statistic::histogram || statistic == Statistic::histogram_limit)
      return file.has(module, Statistic::histogram) && file.has(module, Statistic::histogram_limit);
    return file.has(module, statistic);
  }

  static std::string tensor_of(const MergedModule& module, const MergeRow& row) {
    return format::statistic_name(module.name, row.statistic);
  }

  Status plan_tensor(const MergedModule& module, const MergeRow& row) {
    const ActivationStats& front = *module.files.front();
    const io::TensorInfo& first = *front.find(module.name, row.statistic);
    for (const ActivationStats* const file : module.files) {
      const io::TensorInfo& other = *file->find(module.name, row.statistic);
      if (other.shape != first.shape)
        return invalid_problem("{}: '{}' is {}, but {} in {}; these are statistics of different models", shown(*file),
                               printable(tensor_of(module, row)), base::bracketed(other.shape),
                               base::bracketed(first.shape), shown(front));
      if (row.rule == Rule::mean && module.files.size() > 1 && !file->has(module.name, Statistic::count))
        return invalid_problem("{}: has no '{}', without which the mean '{}' cannot be weighted", shown(*file),
                               printable(format::statistic_name(module.name, Statistic::count)),
                               printable(tensor_of(module, row)));
    }
    io::TensorInfo info = first;
    info.name = tensor_of(module, row);
    tensors_.push_back({&module, &row, std::move(info)});
    return {};
  }

  // Tensors that nobody knows how to merge.
  void find_unknown() {
    std::uint64_t count = 0;
    std::string where;
    for (const ActivationStats& file : files_)
      for (const io::TensorInfo& tensor : file.tensors()) {
        const auto is_of = [&](const MergeRow& row) {
          return format::name(row.statistic) == format::last_component(tensor.name);
        };
        if (!format::parent_of(tensor.name).empty() && std::ranges::any_of(kMergeRows, is_of)) continue;
        if (count++ == 0) where = base::text("'{}' of {}", printable(tensor.name), shown(file));
      }
    if (count > 0)
      merged_.warnings.push_back(base::text("{} {} no known statistic and left out, the first is {}", count,
                                            count == 1 ? "tensor is" : "tensors are", where));
  }

  std::map<std::string, std::string> metadata() const {
    std::map<std::string, std::string> metadata = {{"format", "pt"}, {"made_by", "kvant stats merge"}};
    for (const MergedModule& module : modules_)
      if (!module.first.empty()) metadata[format::same_input_key(module.name)] = module.first;
    std::uint64_t tokens = 0;
    for (const ActivationStats& file : files_) {
      const auto found = file.metadata().find("tokens");
      if (found == file.metadata().end()) return metadata;
      const std::string& text = found->second;
      std::uint64_t more = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), more);
      if (error != std::errc() || end != text.data() + text.size() || __builtin_add_overflow(tokens, more, &tokens))
        return metadata;
    }
    metadata["tokens"] = std::to_string(tokens);
    return metadata;
  }

  Status write() {
    std::vector<io::TensorInfo> infos;
    std::uint64_t bytes = 0;
    for (const MergedTensor& tensor : tensors_) {
      infos.push_back(tensor.info);
      bytes += tensor.info.bytes();
    }
    const auto layout = io::lay_out_safetensors(std::move(infos), metadata());
    if (!layout.ok()) return layout.status();
    auto file = io::AtomicFile::create(options_.output, options_.overwrite);
    if (!file.ok()) return file.status();
    if (Status s = file->write(std::as_bytes(std::span(layout->header))); !s.ok()) return s;
    progress_.begin("merging", bytes);
    const base::DefaultFloatEnvironment environment;
    for (const MergedTensor& tensor : tensors_)
      if (Status s = write_tensor(tensor, *file); !s.ok()) return s;
    return file->commit(options_.overwrite);
  }

  Status write_tensor(const MergedTensor& tensor, io::AtomicFile& to) {
    if (tensor.row->rule == Rule::matrix) return write_matrix(tensor, to);
    const Status s = tensor.row->rule == Rule::sum         ? write_count(tensor, to)
                     : tensor.row->rule == Rule::histogram ? write_histogram(tensor, to)
                     : tensor.row->rule == Rule::limit     ? write_limit(tensor, to)
                                                           : write_channels(tensor, to);
    progress_.advance(tensor.info.bytes());
    return s;
  }

  static Status write_count(const MergedTensor& tensor, io::AtomicFile& to) {
    const auto total = count_of(*tensor.module);
    if (!total.ok()) return total.status();
    return write_merged(to, std::span<const std::int64_t>(&*total, 1));
  }

  static Status refuse_overflow(std::string_view tensor) {
    return invalid_problem("the sum of '{}' over the files is above 2^63 - 1", printable(tensor));
  }

  static Result<std::int64_t> count_of(const MergedModule& module) {
    std::int64_t total = 0;
    for (const ActivationStats* const file : module.files) {
      const auto count = file->count(module.name);
      if (!count.ok()) return count.status();
      if (__builtin_add_overflow(total, *count, &total))
        return refuse_overflow(format::statistic_name(module.name, Statistic::count));
    }
    return total;
  }

  static Status write_channels(const MergedTensor& tensor, io::AtomicFile& to) {
    const MergedModule& module = *tensor.module;
    const std::uint64_t in = tensor.info.shape[0];
    const bool is_mean = tensor.row->rule == Rule::mean && module.files.size() > 1;
    std::vector<float> all;
    std::vector<double> sums(is_mean ? static_cast<std::size_t>(in) : 0);
    for (const ActivationStats* const file : module.files) {
      auto values = file->channels(module.name, tensor.row->statistic, in);
      if (!values.ok()) return values.status();
      if (is_mean) {
        const auto count = file->count(module.name);
        if (!count.ok()) return count.status();
        for (std::size_t i = 0; i < sums.size(); ++i)
          sums[i] += static_cast<double>((*values)[i]) * static_cast<double>(*count);
      } else if (all.empty()) {
        all = std::move(values).value();
      } else if (tensor.row->rule == Rule::least) {
        for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::min(all[i], (*values)[i]);
      } else {
        for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::max(all[i], (*values)[i]);
      }
    }
    if (is_mean) {
      const auto total = count_of(module);
      if (!total.ok()) return total.status();
      all.resize(sums.size());
      std::ranges::transform(sums, all.begin(),
                             [&](double sum) { return static_cast<float>(sum / static_cast<double>(*total)); });
    }
    return write_merged(to, std::span<const float>(all));
  }

  static Result<double> limit_of(const MergedModule& module) {
    double limit = 0;
    for (const ActivationStats* const file : module.files) {
      const auto histogram = file->histogram(module.name);
      if (!histogram.ok()) return histogram.status();
      limit = std::max(limit, histogram->limit);
    }
    return limit;
  }

  static Status write_limit(const MergedTensor& tensor, io::AtomicFile& to) {
    const auto limit = limit_of(*tensor.module);
    if (!limit.ok()) return limit.status();
    return write_merged(to, std::span<const double>(&*limit, 1));
  }

  // Limits are powers of two: a bin of a smaller one lies in one bin of the larger, that of half its number from zero,
  // rounded down, for each doubling.
  static Status write_histogram(const MergedTensor& tensor, io::AtomicFile& to) {
    const auto limit = limit_of(*tensor.module);
    if (!limit.ok()) return limit.status();
    std::vector<std::int64_t> counts(static_cast<std::size_t>(tensor.info.shape[0]));  // the zeros are the last
    const auto half = static_cast<std::int64_t>(counts.size() / 2);
    for (const ActivationStats* const file : tensor.module->files) {
      const auto more = file->histogram(tensor.module->name);
      if (!more.ok()) return more.status();
      const int shift = std::min(std::ilogb(*limit) - std::ilogb(more->limit), 63);
      for (std::int64_t bin = -half; bin < half; ++bin) {
        std::int64_t& sum = counts[static_cast<std::size_t>(half + (bin >> shift))];
        if (__builtin_add_overflow(sum, more->counts[static_cast<std::size_t>(half + bin)], &sum))
          return refuse_overflow(tensor.info.name);
      }
      if (__builtin_add_overflow(counts.back(), more->zeros, &counts.back())) return refuse_overflow(tensor.info.name);
    }
    return write_merged(to, std::span<const std::int64_t>(counts));
  }

  Status write_matrix(const MergedTensor& tensor, io::AtomicFile& to) {
    constexpr std::uint64_t kElements = std::uint64_t{1} << 20;
    const std::uint64_t in = tensor.info.shape[0];
    const std::uint64_t most = std::max<std::uint64_t>(kElements / std::max<std::uint64_t>(in, 1), 1);
    std::vector<float> rows;
    std::vector<double> sums;
    for (std::uint64_t row = 0; row < in; row += most) {
      const auto elements = static_cast<std::size_t>(std::min(most, in - row) * in);
      rows.resize(elements);
      sums.assign(elements, 0.0);
      for (const ActivationStats* const file : tensor.module->files) {
        if (Status s = file->read_hessian(tensor.module->name, in, row, rows); !s.ok()) return s;
        for (std::size_t i = 0; i < elements; ++i) sums[i] += static_cast<double>(rows[i]);
      }
      for (std::size_t i = 0; i < elements; ++i) {
        rows[i] = static_cast<float>(sums[i]);
        if (!std::isfinite(rows[i]))
          return invalid_problem("the sum of '{}' over the files is {} at [{}, {}], too large for F32",
                                 printable(tensor.info.name), sums[i], row + i / in, i % in);
      }
      if (Status s = write_merged(to, std::span<const float>(rows)); !s.ok()) return s;
      progress_.advance(elements * sizeof(float));
    }
    return {};
  }

  const MergeOptions& options_;
  base::Progress& progress_;
  std::vector<ActivationStats> files_;
  std::vector<MergedModule> modules_;
  std::vector<MergedTensor> tensors_;
  MergedStatistics merged_;
};

}  // namespace

Result<MergedStatistics> merge_statistics(const MergeOptions& options, base::Progress& progress) {
  return StatisticsMerger(options, progress).run();
}

}  // namespace kvant::measure
