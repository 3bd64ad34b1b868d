#include "model/model_run.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/refuse.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/json.h"
#include "kvant/version.h"

namespace kvant::model {

Result<ModelRun> ModelRun::open(const Stream& stream, const std::filesystem::path& path, const TokenText& text) {
  ModelRun run;
  run.text_ = &text;
  run.stream_ = stream;
  auto weights = Weights::open(path);
  if (!weights.ok()) return weights.status();
  run.weights_ = std::make_unique<const Weights>(std::move(weights).value());
  auto network = make_network(run.weights_->config(), run.weights_->modules());
  if (!network.ok())
    return Status(network.status().code(), base::text("{}: {}", io::printable_path(path), network.status().message()));
  run.network_ = std::make_unique<const Network>(std::move(network).value());
  const auto memory = Forward::memory(stream, *run.weights_, *run.network_, text.longest());
  if (!memory.ok()) return memory.status();
  run.memory_ = *memory;
  auto forward = Forward::make(stream, *run.weights_, *run.network_, text.longest());
  if (!forward.ok()) return forward.status();
  run.forward_ = std::make_unique<Forward>(std::move(forward).value());
  if (Status s = run.forward_->check_text(text.ids, text.lengths); !s.ok()) return s;
  return run;
}

std::uint64_t ModelRun::states_bytes() const {
  return text_->ids.size() * static_cast<std::uint64_t>(network_->hidden) * sizeof(float);
}

// Of everything that decides the states.
Result<std::uint64_t> ModelRun::key(std::string_view purpose) const {
  const auto files = weights_->fingerprints();
  if (!files.ok()) return files.status();
  io::Hash hash;
  hash.add(KVANT_VERSION);
  hash.add(purpose);
  hash.add(files->dump());
  hash.add(std::as_bytes(std::span(text_->ids)));
  hash.add(std::as_bytes(std::span(text_->lengths)));
  return hash.value();
}

Status ModelRun::start(const RunMemory& memory, const io::ScratchFolder* folder, const std::string& name,
                       std::string_view purpose, bool resume) {
  const auto made_key = folder == nullptr ? Result<std::uint64_t>(0) : key(purpose);
  if (!made_key.ok()) return made_key.status();
  batch_rows_ = memory.batch_rows;
  auto forward = Forward::make(*stream_, *weights_, *network_, std::max(batch_rows_, text_->longest()));
  if (!forward.ok()) return forward.status();
  forward_ = std::make_unique<Forward>(std::move(forward).value());
  auto states = States::make(
      text_->rows(), network_->hidden,
      {.in_memory = memory.states_in_memory, .folder = folder, .stem = name, .key = *made_key, .resume = resume});
  if (!states.ok()) return states.status();
  states_ = std::move(states).value();
  return {};
}

std::uint64_t ModelRun::work() const { return text_->ids.size() * (network_->blocks.size() - blocks_done()); }

template <class Each, class Finish>
Status ModelRun::pass(const Each& each, const Finish& finish) {
  for (const Batch& batch : batches_of(*text_, batch_rows_)) {
    const auto rows = states_->rows(batch.first_row, batch.rows);
    if (!rows.ok()) return rows.status();
    if (Status s = each(batch, *rows); !s.ok()) return s;
    if (Status s = states_->put_back(); !s.ok()) return s;
  }
  // What was learned of the block is safe before the block counts as done.
  if (Status s = finish(); !s.ok()) return s;
  return states_->finish_pass();
}

Status ModelRun::look(InputObserver& observer, base::Progress& progress) {
  for (const Batch& batch : batches_of(*text_, batch_rows_)) {
    const auto rows = states_->rows(batch.first_row, batch.rows);
    if (!rows.ok()) return rows.status();
    final_rows_.assign(*rows, *rows + batch.rows * network_->hidden);
    if (Status s = forward_->run_block(std::span(text_->lengths).subspan(batch.first, batch.count), final_rows_.data(),
                                       &observer);
        !s.ok())
      return s;
    progress.advance(static_cast<std::uint64_t>(batch.rows));
  }
  return observer.finish_block(blocks_done());
}

Status ModelRun::run_blocks(base::Progress& progress, InputObserver* observer, const Replacement& replace) {
  const auto lengths_of = [&](const Batch& batch) {
    return std::span(text_->lengths).subspan(batch.first, batch.count);
  };
  if (!states_->blocks_done()) {
    const auto embed = [&](const Batch& batch, float* states) {
      const auto ids = std::span(text_->ids)
                           .subspan(static_cast<std::size_t>(batch.first_row), static_cast<std::size_t>(batch.rows));
      return forward_->embed(ids, lengths_of(batch), states);
    };
    if (Status s = pass(embed, [] { return Status(); }); !s.ok()) return s;
  }
  while (blocks_done() < network_->blocks.size()) {
    if (Status s = forward_->load_block(blocks_done()); !s.ok()) return s;
    if (replace) {
      if (Status s = look(*observer, progress); !s.ok()) return s;
      forward_->unload();
      auto weights = replace(blocks_done());
      if (!weights.ok()) return weights.status();
      if (Status s = forward_->load_block(blocks_done(), weights->get()); !s.ok()) return s;
    }
    InputObserver* const watching = replace ? nullptr : observer;
    const auto run = [&](const Batch& batch, float* states) -> Status {
      if (Status s = forward_->run_block(lengths_of(batch), states, watching); !s.ok()) return s;
      progress.advance(static_cast<std::uint64_t>(batch.rows));
      return {};
    };
    const auto finish = [&] { return watching == nullptr ? Status() : watching->finish_block(blocks_done()); };
    if (Status s = pass(run, finish); !s.ok()) return s;
  }
  forward_->unload();
  return {};
}

Result<const float*> ModelRun::final_rows(std::int64_t first, std::int64_t count) {
  const auto rows = states_->rows(first, count);
  if (!rows.ok()) return rows.status();
  final_rows_.assign(*rows, *rows + count * network_->hidden);
  if (Status s = forward_->finish(final_rows_.data(), count); !s.ok()) return s;
  return final_rows_.data();
}

}  // namespace kvant::model
