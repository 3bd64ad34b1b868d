#include "model/model_run.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/refuse.h"
#include "io/file.h"

namespace kvant::model {
namespace {

// Rows whose activations are in memory at a time.
constexpr std::int64_t kRows = 2048;

}  // namespace

Result<ModelRun> ModelRun::open(const Stream& stream, const std::filesystem::path& path, const TokenText& text) {
  ModelRun run;
  run.text_ = &text;
  auto weights = Weights::open(path);
  if (!weights.ok()) return weights.status();
  run.weights_ = std::make_unique<const Weights>(std::move(weights).value());
  auto network = make_network(run.weights_->config(), run.weights_->modules());
  if (!network.ok())
    return Status(network.status().code(), base::text("{}: {}", io::printable_path(path), network.status().message()));
  run.network_ = std::make_unique<const Network>(std::move(network).value());
  const std::int64_t longest = text.lengths.empty() ? 0 : *std::max_element(text.lengths.begin(), text.lengths.end());
  auto forward = Forward::make(stream, *run.weights_, *run.network_, std::max(kRows, longest));
  if (!forward.ok()) return forward.status();
  run.forward_ = std::make_unique<Forward>(std::move(forward).value());
  return run;
}

std::uint64_t ModelRun::work() const { return text_->ids.size() * network_->blocks.size(); }

Status ModelRun::run_blocks(base::Progress& progress, InputObserver* observer) {
  const std::int64_t hidden = network_->hidden;
  states_.resize(text_->ids.size() * static_cast<std::size_t>(hidden));
  if (Status s = forward_->embed(text_->ids, text_->lengths, states_.data()); !s.ok()) return s;
  for (std::size_t block = 0; block < network_->blocks.size(); ++block) {
    if (Status s = forward_->load_block(block); !s.ok()) return s;
    for (const Batch& batch : batches_of(*text_, kRows)) {
      const Lengths lengths = std::span(text_->lengths).subspan(batch.first, batch.count);
      if (Status s = forward_->run_block(lengths, states_.data() + batch.first_row * hidden, observer); !s.ok())
        return s;
      progress.advance(static_cast<std::uint64_t>(batch.rows));
    }
    if (observer != nullptr)
      if (Status s = observer->finish_block(block); !s.ok()) return s;
  }
  return forward_->finish(states_.data(), text_->rows());
}

}  // namespace kvant::model
