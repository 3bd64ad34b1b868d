#include "measure/calibrate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/refuse.h"
#include "format/activation_stats.h"
#include "format/kv_cache.h"
#include "io/file.h"
#include "io/json.h"
#include "io/scratch_folder.h"
#include "measure/cache_statistics.h"
#include "measure/hessian_sum.h"
#include "measure/input_statistics.h"
#include "measure/statistics_parts.h"
#include "model/model_run.h"
#include "model/text_job.h"
#include "quantize/manifest.h"
#include "quantize/quantize_checkpoint.h"

namespace kvant::measure {
namespace {

using base::invalid_problem;

// Keeps the statistics of one block in memory, and writes them when it is done.
class Collector : public model::InputObserver {
 public:
  Collector(StatisticsTools tools, const StatisticsParts& parts, const model::Network& network,
            const CalibrateOptions& options)
      : tools_(std::move(tools)), parts_(parts), network_(network), options_(options) {
    for (const model::Block& block : network.blocks)
      for (const model::Step& step : block.steps)
        for (const auto& readers : model::readers_of(step)) firsts_.insert(readers.front()->module);
  }

  // Linears that read what another one has read are that one's business.
  Status see(const model::LinearModule& linear, const float* x, std::int64_t stride, std::int64_t rows) override {
    if (!firsts_.contains(linear.module) || rows == 0) return {};
    return add(linear, x, stride, rows);
  }

  Status see_cache(const model::AttendStep& step, const float* keys, const float* values, std::int64_t stride,
                   std::int64_t rows) override {
    if (!network_.family->has_cache_scales) return {};
    const auto place = caches_.try_emplace(step.module, network_.kv_width()).first;
    return place->second.add(tools_.stream, keys, values, stride, rows);
  }

  Status finish_block(std::size_t block) override {
    std::vector<SeenInput> inputs;
    for (const model::Step& step : network_.blocks[block].steps)
      for (const auto& readers : model::readers_of(step))
        if (Status s = finish(readers, inputs); !s.ok()) return s;
    std::vector<SeenCache> caches;
    for (const auto& [attention, statistics] : caches_) {
      if (Status s = check_finite(attention, statistics); !s.ok()) return s;
      caches.push_back({attention, &statistics});
    }
    if (Status s = parts_.write_block(block, inputs, caches); !s.ok()) return s;
    seen_.clear();
    caches_.clear();
    return {};
  }

  // Its input is what the blocks leave behind.
  Status run_head(model::ModelRun& run, const model::LinearModule& head) {
    for (const model::Batch& batch : model::batches_of(options_.text, options_.text.longest())) {
      const auto rows = run.final_rows(batch.first_row, batch.rows);
      if (!rows.ok()) return rows.status();
      if (Status s = add(head, *rows, head.in, batch.rows); !s.ok()) return s;
    }
    std::vector<SeenInput> inputs;
    if (Status s = finish({&head}, inputs); !s.ok()) return s;
    if (Status s = parts_.write_head(inputs); !s.ok()) return s;
    seen_.clear();
    return {};
  }

 private:
  Status add(const model::LinearModule& linear, const float* x, std::int64_t stride, std::int64_t rows) {
    auto place = seen_.find(linear.module);
    if (place == seen_.end()) {
      auto made = InputStatistics::make(linear.in, options_.hessian);
      if (!made.ok()) return made.status();
      place = seen_.emplace(linear.module, std::move(made).value()).first;
    }
    return place->second.add(tools_, x, stride, rows);
  }

  Status finish(const std::vector<const model::LinearModule*>& readers, std::vector<SeenInput>& inputs) {
    const auto found = seen_.find(readers.front()->module);
    if (found == seen_.end()) return {};  // an expert without tokens
    if (Status s = found->second.finish(tools_); !s.ok()) return s;
    if (const auto channel = found->second.channel_not_finite())
      return invalid_problem("{}: the input of '{}' is not finite in channel {}; the model itself is broken",
                             io::printable_path(options_.model), io::printable(found->first), *channel);
    SeenInput& input = inputs.emplace_back(SeenInput{{}, &found->second});
    for (const model::LinearModule* linear : readers) input.modules.push_back(linear->module);
    return {};
  }

  Status check_finite(const std::string& attention, const CacheStatistics& statistics) const {
    for (const format::CacheHalf half : format::kCacheHalves) {
      const std::vector<float>& absmax = statistics.absmax(half);
      for (std::size_t i = 0; i < absmax.size(); ++i)
        if (!std::isfinite(absmax[i]))
          return invalid_problem("{}: the {} of '{}' are not finite in channel {}; the model itself is broken",
                                 io::printable_path(options_.model), format::name(half), io::printable(attention), i);
    }
    return {};
  }

  StatisticsTools tools_;
  const StatisticsParts& parts_;
  const model::Network& network_;
  const CalibrateOptions& options_;
  std::set<std::string_view> firsts_;  // of those that read the same
  std::map<std::string, InputStatistics> seen_;
  std::map<std::string, CacheStatistics> caches_;  // by attention layer
};

// The blocks of a model as they will be quantized, each from its own statistics.
class QuantizedBlocks {
 public:
  QuantizedBlocks(const CalibrateOptions& options, const model::Network& network, const StatisticsParts& parts,
                  std::uint64_t max_memory)
      : options_(*options.through), network_(network), parts_(parts) {
    options_.input = options.model;
    options_.output = options.run.scratch.empty() ? options.output : options.run.scratch;
    options_.output += ".block";
    options_.threads = options.run.threads;
    options_.max_memory = std::max(max_memory, quantize::kMinMaxMemory);
    options_.resume = false;
    options_.force = true;
  }
  ~QuantizedBlocks() { remove(); }
  QuantizedBlocks(const QuantizedBlocks&) = delete;
  QuantizedBlocks& operator=(const QuantizedBlocks&) = delete;

  Result<std::unique_ptr<const model::Weights>> make(std::size_t block) {
    remove();
    options_.stats = parts_.block_file(block);
    options_.only = network_.blocks[block].prefix;
    auto quantizer = quantize::CheckpointQuantizer::plan(options_);
    if (!quantizer.ok()) return quantizer.status();
    base::Silence silence;
    if (const auto done = quantizer->run(silence); !done.ok()) return done.status();
    auto weights = model::Weights::open(options_.output);
    if (!weights.ok()) return weights.status();
    return std::make_unique<const model::Weights>(std::move(weights).value());
  }

 private:
  void remove() const {
    std::error_code ignored;
    std::filesystem::remove_all(options_.output, ignored);
  }

  quantize::QuantizeOptions options_;
  const model::Network& network_;
  const StatisticsParts& parts_;
};

// Statistics of a block's inputs: a few numbers for each channel, and with Hessians half a matrix in f64 with rows that
// wait for it. Codes of a batch for the errors that they make.
std::uint64_t memory_beside_block(const model::Network& network, const CalibrateOptions& options) {
  constexpr std::uint64_t kChannelMemory = 64, kHistogramMemory = 256 << 10;
  std::uint64_t most = 0, widest = 0;
  for (const model::Block& block : network.blocks) {
    std::uint64_t bytes = 0;
    for (const model::Step& step : block.steps)
      for (const auto& readers : model::readers_of(step)) {
        const auto in = static_cast<std::uint64_t>(readers.front()->in);
        bytes += in * kChannelMemory + kHistogramMemory;
        if (options.hessian) bytes += in * (in + HessianSum::kTile) * 4 + in * HessianSum::kRows * 8;
        widest = std::max(widest, in);
      }
    most = std::max(most, bytes);
  }
  const auto rows = static_cast<std::uint64_t>(std::min<std::int64_t>(options.text.rows(), model::TextJob::kMaxRows));
  // And the states of a batch that is only looked at.
  const std::uint64_t looked_at = options.through ? rows * static_cast<std::uint64_t>(network.hidden) * 4 : 0;
  return most + rows * widest + looked_at;
}

}  // namespace

std::string through_text(const std::optional<quantize::QuantizeOptions>& through) {
  return through ? quantize::options_json(*through).dump() : std::string();
}

Result<Calibration> calibrate(const CalibrateOptions& options, base::Progress& progress) {
  const Stream stream = options.run.threads == 0 ? Stream::cpu() : Stream::cpu(options.run.threads);
  if (!stream.status().ok()) return stream.status();
  if (options.text.ids.empty()) return invalid_problem("calibrate: the text has no tokens");
  std::error_code error;
  if (!options.overwrite && std::filesystem::exists(options.output, error))
    return invalid_problem("{}: exists already; --force overwrites it", io::printable_path(options.output));
  auto tools = StatisticsTools::select(stream);
  if (!tools.ok()) return tools.status();
  std::vector<model::ModelRun> runs;
  if (auto opened = model::ModelRun::open(stream, options.model, options.text); opened.ok())
    runs.push_back(std::move(opened).value());
  else
    return opened.status();
  model::ModelRun& run = runs.front();
  const model::Network& network = run.network();
  if (run.weights().is_quantized())
    return invalid_problem("{}: is quantized; statistics come from the original", io::printable_path(options.model));
  model::RunSettings settings = options.run;
  if (settings.scratch.empty()) settings.scratch = options.output, settings.scratch += io::kScratchSuffix;
  auto job = model::TextJob::begin(
      stream, runs, options.text,
      {.run = settings,
       .beside_block = memory_beside_block(network, options),
       // Parts of a run that did not look at them have no keys and values.
       .purpose = (options.hessian ? "calibrate with keys, values and Hessians " : "calibrate with keys and values ") +
                  through_text(options.through)});
  if (!job.ok()) return job.status();
  std::map<std::string, std::string> facts = {{"format", "pt"},
                                              {"made_by", "kvant calibrate"},
                                              {"tokens", std::to_string(options.text.ids.size())},
                                              {"hessian", options.hessian ? "yes" : "no"}};
  if (options.through) facts.emplace(kThroughKey, through_text(options.through));
  const StatisticsParts parts(*job->folder(), facts);
  // A run that was killed while it removed its files has left some of them.
  if (!parts.has_blocks(run.blocks_done())) run.begin_again();
  Collector collector(std::move(tools).value(), parts, network, options);
  std::optional<QuantizedBlocks> blocks;
  model::ModelRun::Replacement replace;
  if (options.through) {
    blocks.emplace(options, network, parts, job->memory_at_the_end());
    replace = [&](std::size_t block) { return blocks->make(block); };
  }
  progress.begin("calibrating", run.work() * (replace ? 2 : 1), base::Unit::tokens, network.blocks.size());
  if (Status s = run.run_blocks(progress, &collector, replace); !s.ok()) return s;
  blocks.reset();
  if (network.head)
    if (Status s = collector.run_head(run, *network.head); !s.ok()) return s;
  const auto names =
      parts.join(network.blocks.size(), network.head.has_value(), options.output, options.overwrite, progress);
  if (!names.ok()) return names.status();

  Calibration calibration;
  calibration.tokens = options.text.ids.size();
  const auto note = [&](const std::string& module) {
    if (names->contains(format::statistic_name(module, format::Statistic::count)))
      ++calibration.linears;
    else
      calibration.unseen.push_back(module);
  };
  for (const model::Block& block : network.blocks)
    for (const model::Step& step : block.steps)
      for (const model::LinearModule* linear : model::linears_of(step)) note(linear->module);
  if (network.head) note(network.head->module);
  if (Status s = job->finish(); !s.ok()) return s;
  return calibration;
}

}  // namespace kvant::measure
