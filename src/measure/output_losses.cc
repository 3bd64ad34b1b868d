#include "measure/output_losses.h"

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "base/refuse.h"
#include "base/size.h"
#include "kvant/stream.h"
#include "measure/candidate.h"
#include "measure/sqnr.h"
#include "model/linear_layer.h"
#include "model/model_run.h"
#include "model/text_job.h"

namespace kvant::measure {
namespace {

using base::size;

// A quantized checkpoint, to find its layers and to run them.
struct Runnable {
  Candidate candidate;
  model::Weights weights;
};

Result<Runnable> open_runnable(const io::Checkpoint& original, const OriginalWeights& all,
                               const std::filesystem::path& path) {
  std::uint64_t bytes = 0;
  auto candidate = open_candidate(original, all, path, bytes);
  if (!candidate.ok()) return candidate.status();
  auto weights = model::Weights::open(path);
  if (!weights.ok()) return weights.status();
  return Runnable{std::move(candidate).value(), std::move(weights).value()};
}

// Runs every linear that is seen in all checkpoints, and adds up squares.
class OutputSums : public model::InputObserver {
 public:
  struct Sums {
    double signal = 0, noise = 0;
  };

  OutputSums(const Stream& stream, const model::Weights& original, const std::vector<Runnable>& quantized)
      : stream_(stream), original_(original), quantized_(quantized), sums_(quantized.size()) {}

  Status see(const model::LinearModule& linear, const float* x, std::int64_t stride, std::int64_t rows) override {
    std::vector<float> wanted, got, smoothed;
    for (std::size_t i = 0; i < quantized_.size(); ++i) {
      const Candidate& candidate = quantized_[i].candidate;
      const auto layer = candidate.by_name.find(linear.module);
      if (layer == candidate.by_name.end()) continue;
      if (wanted.empty())
        if (Status s = run(original_, linear, x, stride, rows, wanted); !s.ok()) return s;
      const float* input = x;
      std::int64_t input_stride = stride;
      if (layer->second.s != nullptr) {
        if (Status s = smooth(candidate, layer->second, x, stride, rows, smoothed); !s.ok()) return s;
        input = smoothed.data();
        input_stride = linear.in;
      }
      if (Status s = run(quantized_[i].weights, linear, input, input_stride, rows, got); !s.ok()) return s;
      Sums& sums = sums_[i][linear.module];
      for (std::size_t k = 0; k < wanted.size(); ++k) {
        const double y = static_cast<double>(wanted[k]), error = y - static_cast<double>(got[k]);
        sums.signal += y * y;
        sums.noise += error * error;
      }
    }
    return {};
  }

  const std::map<std::string, Sums>& of(std::size_t checkpoint) const { return sums_[checkpoint]; }

 private:
  Status run(const model::Weights& weights, const model::LinearModule& linear, const float* x, std::int64_t stride,
             std::int64_t rows, std::vector<float>& y) {
    const auto layer = model::LinearLayer::load(stream_, weights, linear, rows);
    if (!layer.ok()) return layer.status();
    workspace_.resize(layer->workspace_size());
    y.resize(size(rows * linear.out));
    return layer->run(stream_, {workspace_.data(), workspace_.size()}, x, stride, rows, y.data(), linear.out);
  }

  static Status smooth(const Candidate& candidate, const Candidate::Layer& layer, const float* x, std::int64_t stride,
                       std::int64_t rows, std::vector<float>& to) {
    const auto in = static_cast<std::size_t>(layer.layer->columns);
    std::vector<float> s(in);
    if (Status status = candidate.smoothing->read(*layer.s, 0, s); !status.ok()) return status;
    to.resize(size(rows) * in);
    for (std::size_t r = 0; r < size(rows); ++r)
      for (std::size_t k = 0; k < in; ++k) to[r * in + k] = x[r * size(stride) + k] / s[k];
    return {};
  }

  const Stream& stream_;
  const model::Weights& original_;
  const std::vector<Runnable>& quantized_;
  std::vector<std::map<std::string, Sums>> sums_;
  std::vector<std::byte> workspace_;
};

}  // namespace

Result<OutputLosses> measure_outputs(const std::filesystem::path& original,
                                     const std::vector<std::filesystem::path>& quantized, const model::TokenText& text,
                                     int threads, base::Progress& progress) {
  const Stream stream = threads == 0 ? Stream::cpu() : Stream::cpu(threads);
  if (!stream.status().ok()) return stream.status();
  if (text.ids.empty()) return base::invalid_problem("outputs: the text has no tokens");
  std::vector<model::ModelRun> runs;
  if (auto opened = model::ModelRun::open(stream, original, text); opened.ok())
    runs.push_back(std::move(opened).value());
  else
    return opened.status();
  model::ModelRun& run = runs.front();
  const auto job = model::TextJob::begin(stream, runs, text, {});
  if (!job.ok()) return job.status();
  const auto all = original_weights(run.weights().checkpoint());
  if (!all.ok()) return all.status();
  std::vector<Runnable> checkpoints;
  for (const std::filesystem::path& path : quantized) {
    auto runnable = open_runnable(run.weights().checkpoint(), *all, path);
    if (!runnable.ok()) return runnable.status();
    checkpoints.push_back(std::move(runnable).value());
  }
  OutputSums sums(stream, run.weights(), checkpoints);
  progress.begin("comparing outputs", run.work(), base::Unit::tokens, run.network().blocks.size());
  if (Status s = run.run_blocks(progress, &sums); !s.ok()) return s;
  OutputLosses losses(checkpoints.size());
  for (std::size_t i = 0; i < checkpoints.size(); ++i)
    for (const auto& [module, of] : sums.of(i)) losses[i].emplace(module, sqnr_db(of.signal, of.noise));
  return losses;
}

}  // namespace kvant::measure
