#include "measure/evaluate.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/for_each_part.h"
#include "base/refuse.h"
#include "base/size.h"
#include "io/file.h"
#include "measure/labels.h"
#include "measure/stored_size.h"
#include "model/model_facts.h"
#include "model/model_run.h"
#include "model/text_job.h"

namespace kvant::measure {
namespace {

using base::invalid_problem;

// Rows of logits at a time, at least: a vocabulary of 128,000 makes them 16 MB for each of two models.
constexpr std::int64_t kMinLogitRows = 32;

using base::size;

// How the output projections of all models are worked with.
struct HeadsMemory {
  std::int64_t rows = 0;   // of logits at a time
  bool all_loaded = true;  // or each is read again for every so many rows
};

// One output projection at a time, for few rows: the least that will do.
std::uint64_t logits_bytes(const std::vector<model::ModelRun>& runs, std::int64_t rows) {
  const auto models = static_cast<std::int64_t>(std::min<std::size_t>(runs.size(), 2));
  return static_cast<std::uint64_t>(models * rows * runs.front().vocabulary()) * sizeof(float);
}
std::uint64_t largest_head(const std::vector<model::ModelRun>& runs) {
  std::uint64_t bytes = 0;
  for (const model::ModelRun& run : runs) bytes = std::max(bytes, run.memory().head);
  return bytes;
}
std::uint64_t smallest_heads(const std::vector<model::ModelRun>& runs) {
  return largest_head(runs) + logits_bytes(runs, kMinLogitRows);
}

// What is left of the memory decides: all output projections at once where they fit.
HeadsMemory plan_heads(const std::vector<model::ModelRun>& runs, std::uint64_t memory) {
  constexpr std::int64_t kRows = 128, kMaxRows = 1024;
  std::uint64_t all = 0;
  for (const model::ModelRun& run : runs) all += run.memory().head;
  if (all + logits_bytes(runs, kRows) <= memory) return {kRows, true};
  // Reading a projection again costs less, the more rows it serves.
  const std::uint64_t rows = (memory - largest_head(runs)) / logits_bytes(runs, 1);
  return {std::clamp<std::int64_t>(static_cast<std::int64_t>(rows), kMinLogitRows, kMaxRows), false};
}

// Logits of all models, some rows at a time, and what they say of each token that follows.
class Heads {
 public:
  Heads(const Stream& stream, const NetworkSteps& steps, std::vector<model::ModelRun>& runs,
        const model::TokenText& text)
      : stream_(stream), steps_(steps), runs_(runs), text_(text), tokens_(runs.size()) {}

  Status run(const HeadsMemory& memory, base::Progress& progress) {
    const std::int64_t vocabulary = runs_.front().vocabulary();
    for (const model::ModelRun& each : runs_)
      if (each.vocabulary() != vocabulary)
        return invalid_problem("{}: knows {} tokens, the original {}", io::printable_path(each.weights().path()),
                               each.vocabulary(), vocabulary);
    if (memory.all_loaded)
      for (model::ModelRun& each : runs_)
        if (Status s = each.forward().load_head(memory.rows); !s.ok()) return s;
    for (std::int64_t first = 0; first < text_.rows(); first += memory.rows) {
      const std::int64_t rows = std::min(memory.rows, text_.rows() - first);
      find_predicting(first, rows);
      for (std::size_t m = 0; m < runs_.size(); ++m) {
        model::ModelRun& each = runs_[m];
        const auto states = each.final_rows(first, rows);
        if (!states.ok()) return states.status();
        if (!memory.all_loaded)
          if (Status s = each.forward().load_head(memory.rows); !s.ok()) return s;
        std::vector<float>& logits = m == 0 ? original_ : own_;
        logits.resize(size(rows * vocabulary));
        if (Status s = each.forward().run_head(*states, rows, logits.data()); !s.ok()) return s;
        if (!memory.all_loaded) each.forward().unload();
        if (Status s = look(m, first); !s.ok()) return s;
        progress.advance(static_cast<std::uint64_t>(rows));
      }
    }
    return {};
  }

  // Of a model, in the order of the text.
  const std::vector<PredictedToken>& tokens(std::size_t model) const { return tokens_[model]; }

 private:
  // Which of these rows predict a token: the last one of a sequence predicts nothing that is known.
  void find_predicting(std::int64_t first, std::int64_t rows) {
    predicting_.clear();
    std::int64_t begin = 0;
    for (const std::int64_t length : text_.lengths) {
      for (std::int64_t p = std::max<std::int64_t>(first - begin, 0); p < length - 1 && begin + p < first + rows; ++p)
        predicting_.push_back(begin + p);
      begin += length;
    }
    distributions_.resize(predicting_.size());
  }

  Status look(std::size_t m, std::int64_t first) {
    const std::int64_t vocabulary = runs_.front().vocabulary();
    const auto n = size(vocabulary);
    std::vector<PredictedToken>& tokens = tokens_[m];
    const std::size_t before = tokens.size();
    tokens.resize(before + predicting_.size());
    return base::for_each_part(stream_, 0, predicting_.size(), [&](std::size_t /*worker*/, std::uint64_t i) -> Status {
      const std::int64_t row = predicting_[i];
      const auto next = static_cast<std::size_t>(text_.ids[size(row + 1)]);
      const float* const p = original_.data() + (row - first) * vocabulary;
      const float* const q = m == 0 ? p : own_.data() + (row - first) * vocabulary;
      const NetworkSteps::Distribution own = steps_.distribution(q, n);
      if (m == 0) distributions_[i] = own;
      const NetworkSteps::Distribution& original = distributions_[i];
      tokens[before + i] = {static_cast<double>(q[next]) - own.log_sum_exp,
                            m == 0 ? 0 : steps_.kl_divergence(p, original, q, own, n),
                            static_cast<std::int32_t>(own.argmax), own.max - own.log_sum_exp};
      return {};
    });
  }

  const Stream& stream_;
  NetworkSteps steps_;
  std::vector<model::ModelRun>& runs_;
  const model::TokenText& text_;
  std::vector<std::vector<PredictedToken>> tokens_;
  // Of the rows that are looked at.
  std::vector<std::int64_t> predicting_;
  std::vector<NetworkSteps::Distribution> distributions_;  // of the original
  std::vector<float> original_, own_;                      // logits
};

// The embeddings of all sequences.
Result<Embeddings> embeddings_of(model::ModelRun& run, const model::TokenText& text) {
  Embeddings means;
  std::int64_t first = 0;
  for (const std::int64_t length : text.lengths) {
    const auto rows = run.final_rows(first, length);
    if (!rows.ok()) return rows.status();
    means.push_back(embedding_of(*rows, length, run.network().hidden));
    first += length;
  }
  return means;
}

Status compare_embeddings(std::vector<model::ModelRun>& runs, const model::TokenText& text, Evaluation& evaluation) {
  const auto original = embeddings_of(runs.front(), text);
  if (!original.ok()) return original.status();
  for (std::size_t m = 1; m < runs.size(); ++m) {
    const auto own = embeddings_of(runs[m], text);
    if (!own.ok()) return own.status();
    compare_embeddings(*original, *own, evaluation.quantized[m - 1]);
  }
  return {};
}

ModelQuality facts_of_file(const model::ModelRun& run) {
  ModelQuality quality;
  quality.path = run.weights().path();
  quality.scheme = run.weights().scheme();
  quality.bytes = run.weights().stored_bytes();
  quality.bits_per_weight = bits_per_weight(run.weights(), run.network());
  return quality;
}

}  // namespace

Result<Evaluation> evaluate(const EvaluateOptions& options, base::Progress& progress) {
  const Stream stream = options.run.threads == 0 ? Stream::cpu() : Stream::cpu(options.run.threads);
  if (!stream.status().ok()) return stream.status();
  const model::TokenText& text = options.text;
  if (text.longest() < 2) return invalid_problem("eval: the text has {} tokens, must have at least 2", text.rows());
  const auto steps = NetworkSteps::select(stream);
  if (!steps.ok()) return steps.status();

  std::vector<model::ModelRun> runs;
  std::vector<std::filesystem::path> paths = {options.original};
  paths.insert(paths.end(), options.quantized.begin(), options.quantized.end());
  for (const std::filesystem::path& path : paths) {
    auto run = model::ModelRun::open(stream, path, text);
    if (!run.ok()) return run.status();
    runs.push_back(std::move(run).value());
  }
  const bool is_encoder = !runs.front().network().head.has_value();
  auto job = model::TextJob::begin(stream, runs, text,
                                   {.run = options.run, .at_the_end = is_encoder ? 0 : smallest_heads(runs)});
  if (!job.ok()) return job.status();
  Evaluation evaluation;
  evaluation.model_type = model::facts_of(runs.front().weights().config()).model_type;
  evaluation.is_encoder = is_encoder;
  evaluation.sequences = text.lengths.size();
  evaluation.tokens = is_encoder ? text.ids.size() : text.ids.size() - text.lengths.size();
  std::uint64_t work = 0;
  for (const model::ModelRun& run : runs) work += run.work() + (is_encoder ? 0 : text.ids.size());
  progress.begin("evaluating", work, base::Unit::tokens, runs.front().network().blocks.size() + (is_encoder ? 0 : 1));
  for (model::ModelRun& run : runs)
    if (Status s = run.run_blocks(progress); !s.ok()) return s;

  evaluation.original = facts_of_file(runs.front());
  for (std::size_t m = 1; m < runs.size(); ++m) evaluation.quantized.push_back(facts_of_file(runs[m]));
  const std::vector<std::string> labels = labels_of(paths);
  evaluation.original.label = labels.front();
  for (std::size_t m = 1; m < runs.size(); ++m) evaluation.quantized[m - 1].label = labels[m];
  if (evaluation.is_encoder) {
    if (Status s = compare_embeddings(runs, text, evaluation); !s.ok()) return s;
    if (Status s = job->finish(); !s.ok()) return s;
    return evaluation;
  }
  Heads heads(stream, *steps, runs, text);
  if (Status s = heads.run(plan_heads(runs, job->memory_at_the_end()), progress); !s.ok()) return s;
  evaluation.original.prediction = predict(heads.tokens(0));
  evaluation.original.same_top = 1;
  for (std::size_t m = 1; m < runs.size(); ++m)
    compare_tokens(heads.tokens(0), heads.tokens(m), text, evaluation.quantized[m - 1]);
  if (Status s = job->finish(); !s.ok()) return s;
  return evaluation;
}

}  // namespace kvant::measure
