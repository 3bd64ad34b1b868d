#include "measure/calibrate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include "base/float_environment.h"
#include "base/for_each_part.h"
#include "base/refuse.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "kvant/network_steps.h"
#include "model/model_run.h"
#include "model/text_job.h"

namespace kvant::measure {
namespace {

using base::invalid_problem;

struct Channels {
  std::vector<float> min, max;
  std::vector<double> squares;
  std::uint64_t rows = 0;
};

// Adds up the channels of every linear, row after row: the sums do not depend on who adds which channels.
class Collector : public model::InputObserver {
 public:
  Collector(const Stream& stream, const NetworkSteps& steps) : stream_(stream), steps_(steps) {}

  Status see(const model::LinearModule& linear, const float* x, std::int64_t stride, std::int64_t rows) override {
    constexpr std::uint64_t kChannels = 256;  // at a time
    Channels& channels = all_[linear.module];
    const auto in = static_cast<std::uint64_t>(linear.in);
    if (channels.rows == 0) {
      channels.min.assign(in, std::numeric_limits<float>::infinity());
      channels.max.assign(in, -std::numeric_limits<float>::infinity());
      channels.squares.assign(in, 0.0);
    }
    channels.rows += static_cast<std::uint64_t>(rows);
    return base::for_each_part(stream_, 0, (in + kChannels - 1) / kChannels,
                               [&](std::size_t /*worker*/, std::uint64_t part) -> Status {
                                 const base::DefaultFloatEnvironment environment;
                                 const std::uint64_t first = part * kChannels;
                                 const auto count = static_cast<std::size_t>(std::min(kChannels, in - first));
                                 for (std::int64_t r = 0; r < rows; ++r)
                                   steps_.add_channels(x + r * stride + first, count, channels.min.data() + first,
                                                       channels.max.data() + first, channels.squares.data() + first);
                                 return {};
                               });
  }

  const std::map<std::string, Channels>& all() const { return all_; }

 private:
  const Stream& stream_;
  NetworkSteps steps_;
  std::map<std::string, Channels> all_;
};

Status write_stats(const std::map<std::string, Channels>& all, std::uint64_t tokens, const CalibrateOptions& options) {
  std::vector<io::TensorInfo> tensors;
  std::vector<float> values;
  for (const auto& entry : all) {
    // Not as structured bindings: Clang 14 lets no lambda see those.
    const std::string& module = entry.first;
    const Channels& channels = entry.second;
    const auto add = [&](std::string_view what, const auto& value_of) {
      tensors.push_back(
          {.name = base::text("{}.{}", module, what), .dtype = io::DType::f32, .shape = {channels.min.size()}});
      for (std::size_t i = 0; i < channels.min.size(); ++i) values.push_back(value_of(i));
    };
    for (std::size_t i = 0; i < channels.min.size(); ++i)
      if (!std::isfinite(channels.squares[i]) || !std::isfinite(channels.min[i]) || !std::isfinite(channels.max[i]))
        return invalid_problem("{}: the input of '{}' is not finite in channel {}; the model itself is broken",
                               io::printable_path(options.model), io::printable(module), i);
    add("absmax", [&](std::size_t i) { return std::max(std::fabs(channels.min[i]), std::fabs(channels.max[i])); });
    add("min", [&](std::size_t i) { return channels.min[i]; });
    add("max", [&](std::size_t i) { return channels.max[i]; });
    add("mean_square",
        [&](std::size_t i) { return static_cast<float>(channels.squares[i] / static_cast<double>(channels.rows)); });
  }
  const auto layout = io::lay_out_safetensors(
      std::move(tensors), {{"format", "pt"}, {"made_by", "kvant calibrate"}, {"tokens", std::to_string(tokens)}});
  if (!layout.ok()) return layout.status();
  auto file = io::AtomicFile::create(options.output, options.overwrite);
  if (!file.ok()) return file.status();
  if (Status s = file->write(std::as_bytes(std::span(layout->header))); !s.ok()) return s;
  if (Status s = file->write(std::as_bytes(std::span(values))); !s.ok()) return s;
  return file->commit(options.overwrite);
}

}  // namespace

Result<Calibration> calibrate(const CalibrateOptions& options, base::Progress& progress) {
  const Stream stream = options.threads == 0 ? Stream::cpu() : Stream::cpu(options.threads);
  if (!stream.status().ok()) return stream.status();
  if (options.text.ids.empty()) return invalid_problem("calibrate: the text has no tokens");
  std::error_code error;
  if (!options.overwrite && std::filesystem::exists(options.output, error))
    return invalid_problem("{}: exists already; --force overwrites it", io::printable_path(options.output));
  const auto steps = NetworkSteps::select(stream);
  if (!steps.ok()) return steps.status();
  std::vector<model::ModelRun> runs;
  if (auto opened = model::ModelRun::open(stream, options.model, options.text); opened.ok())
    runs.push_back(std::move(opened).value());
  else
    return opened.status();
  model::ModelRun& run = runs.front();
  if (!run.weights().scheme().empty() && run.weights().gguf() == nullptr)
    return invalid_problem("{}: is quantized; statistics come from the original", io::printable_path(options.model));
  auto job = model::TextJob::begin(stream, runs, options.text,
                                   {.max_memory = options.max_memory, .scratch = options.scratch, .resume = false});
  if (!job.ok()) return job.status();
  Collector collector(stream, *steps);
  progress.begin("calibrating", run.work(), base::Unit::tokens, run.network().blocks.size());
  if (Status s = run.run_blocks(progress, &collector); !s.ok()) return s;
  if (const auto& head = run.network().head) {
    // Its input, not its output.
    for (const model::Batch& batch : model::batches_of(options.text, options.text.longest())) {
      const auto rows = run.final_rows(batch.first_row, batch.rows);
      if (!rows.ok()) return rows.status();
      if (Status s = collector.see(*head, *rows, run.network().hidden, batch.rows); !s.ok()) return s;
    }
  }
  Calibration calibration;
  calibration.tokens = options.text.ids.size();
  calibration.linears = collector.all().size();
  for (const model::Block& block : run.network().blocks)
    for (const model::Step& step : block.steps)
      for (const model::LinearModule* linear : model::linears_of(step))
        if (!collector.all().contains(linear->module)) calibration.unseen.push_back(linear->module);
  if (Status s = write_stats(collector.all(), calibration.tokens, options); !s.ok()) return s;
  if (Status s = job->finish(); !s.ok()) return s;
  return calibration;
}

}  // namespace kvant::measure
