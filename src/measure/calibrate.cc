#include "measure/calibrate.h"

#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/refuse.h"
#include "format/activation_stats.h"
#include "io/file.h"
#include "measure/input_statistics.h"
#include "measure/statistics_parts.h"
#include "model/model_run.h"

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

  Status finish_block(std::size_t block) override {
    std::vector<SeenInput> inputs;
    for (const model::Step& step : network_.blocks[block].steps)
      for (const auto& readers : model::readers_of(step))
        if (Status s = finish(readers, inputs); !s.ok()) return s;
    if (Status s = parts_.write_block(block, inputs); !s.ok()) return s;
    seen_.clear();
    return {};
  }

  // Its input is what the blocks leave behind.
  Status run_head(const model::LinearModule& head, const float* x, std::int64_t rows) {
    std::vector<SeenInput> inputs;
    if (Status s = add(head, x, head.in, rows); !s.ok()) return s;
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

  StatisticsTools tools_;
  const StatisticsParts& parts_;
  const model::Network& network_;
  const CalibrateOptions& options_;
  std::set<std::string_view> firsts_;  // of those that read the same
  std::map<std::string, InputStatistics> seen_;
};

}  // namespace

Result<Calibration> calibrate(const CalibrateOptions& options, base::Progress& progress) {
  const Stream stream = options.threads == 0 ? Stream::cpu() : Stream::cpu(options.threads);
  if (!stream.status().ok()) return stream.status();
  if (options.text.ids.empty()) return invalid_problem("calibrate: the text has no tokens");
  std::error_code error;
  if (!options.overwrite && std::filesystem::exists(options.output, error))
    return invalid_problem("{}: exists already; --force overwrites it", io::printable_path(options.output));
  auto tools = StatisticsTools::select(stream);
  if (!tools.ok()) return tools.status();
  auto run = model::ModelRun::open(stream, options.model, options.text);
  if (!run.ok()) return run.status();
  if (run->weights().quantization())
    return invalid_problem("{}: is quantized; statistics come from the original", io::printable_path(options.model));
  const auto parts = StatisticsParts::open(options.scratch, {{"format", "pt"},
                                                             {"made_by", "kvant calibrate"},
                                                             {"tokens", std::to_string(options.text.ids.size())},
                                                             {"hessian", options.hessian ? "yes" : "no"}});
  if (!parts.ok()) return parts.status();
  const model::Network& network = run->network();
  Collector collector(std::move(tools).value(), *parts, network, options);
  progress.begin("calibrating", run->work(), base::Unit::tokens);
  if (Status s = run->run_blocks(progress, &collector); !s.ok()) return s;
  if (network.head)
    if (Status s = collector.run_head(*network.head, run->states().data(), options.text.rows()); !s.ok()) return s;
  const auto names =
      parts->join(network.blocks.size(), network.head.has_value(), options.output, options.overwrite, progress);
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
  return calibration;
}

}  // namespace kvant::measure
