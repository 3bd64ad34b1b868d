#include "measure/evaluate.h"

#include <algorithm>
#include <utility>

#include "base/for_each_part.h"
#include "base/refuse.h"
#include "format/scheme.h"
#include "io/file.h"
#include "measure/labels.h"
#include "measure/stored_size.h"
#include "model/model_facts.h"
#include "model/model_run.h"

namespace kvant::measure {
namespace {

using base::invalid_problem;

// Rows of logits at a time: a vocabulary of 128,000 makes them 64 MB for each model.
constexpr std::int64_t kLogitRows = 128;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

// Logits of all models, some rows at a time, and what they say of each token that follows.
class Heads {
 public:
  Heads(const Stream& stream, const NetworkSteps& steps, std::vector<model::ModelRun>& runs,
        const model::TokenText& text)
      : stream_(stream), steps_(steps), runs_(runs), text_(text), tokens_(runs.size()) {}

  Status run(base::Progress& progress) {
    for (model::ModelRun& each : runs_)
      if (Status s = each.forward().load_head(); !s.ok()) return s;
    std::vector<std::vector<float>> logits(runs_.size());
    const std::int64_t vocabulary = runs_.front().forward().vocabulary();
    for (std::int64_t first = 0; first < text_.rows(); first += kLogitRows) {
      const std::int64_t rows = std::min(kLogitRows, text_.rows() - first);
      for (std::size_t m = 0; m < runs_.size(); ++m) {
        model::ModelRun& each = runs_[m];
        if (each.forward().vocabulary() != vocabulary)
          return invalid_problem("{}: knows {} tokens, the original {}", io::printable_path(each.weights().path()),
                                 each.forward().vocabulary(), vocabulary);
        logits[m].resize(size(rows * vocabulary));
        if (Status s =
                each.forward().run_head(each.states().data() + first * each.network().hidden, rows, logits[m].data());
            !s.ok())
          return s;
      }
      if (Status s = look(logits, first, rows, vocabulary); !s.ok()) return s;
      progress.advance(static_cast<std::uint64_t>(rows) * runs_.size());
    }
    return {};
  }

  // Of a model, in the order of the text.
  const std::vector<PredictedToken>& tokens(std::size_t model) const { return tokens_[model]; }

 private:
  Status look(const std::vector<std::vector<float>>& logits, std::int64_t first, std::int64_t rows,
              std::int64_t vocabulary) {
    // The last token of a sequence predicts nothing that is known.
    std::vector<std::int64_t> predicting;
    std::int64_t begin = 0;
    for (const std::int64_t length : text_.lengths) {
      for (std::int64_t p = std::max<std::int64_t>(first - begin, 0); p < length - 1 && begin + p < first + rows; ++p)
        predicting.push_back(begin + p);
      begin += length;
    }
    std::vector<std::vector<PredictedToken>> found(runs_.size(), std::vector<PredictedToken>(predicting.size()));
    const auto n = size(vocabulary);
    const Status done =
        base::for_each_part(stream_, 0, predicting.size(), [&](std::size_t /*worker*/, std::uint64_t i) -> Status {
          const std::int64_t row = predicting[i];
          const auto next = static_cast<std::size_t>(text_.ids[size(row + 1)]);
          const float* const p = logits[0].data() + (row - first) * vocabulary;
          const NetworkSteps::Distribution original = steps_.distribution(p, n);
          for (std::size_t m = 0; m < runs_.size(); ++m) {
            const float* const q = logits[m].data() + (row - first) * vocabulary;
            const auto own = m == 0 ? original : steps_.distribution(q, n);
            found[m][i] = {static_cast<double>(q[next]) - own.log_sum_exp,
                           m == 0 ? 0 : steps_.kl_divergence(p, original, q, own, n),
                           static_cast<std::int32_t>(own.argmax), own.max - own.log_sum_exp};
          }
          return {};
        });
    for (std::size_t m = 0; m < runs_.size(); ++m)
      tokens_[m].insert(tokens_[m].end(), found[m].begin(), found[m].end());
    return done;
  }

  const Stream& stream_;
  NetworkSteps steps_;
  std::vector<model::ModelRun>& runs_;
  const model::TokenText& text_;
  std::vector<std::vector<PredictedToken>> tokens_;
};

ModelQuality facts_of_file(const model::ModelRun& run) {
  ModelQuality quality;
  quality.path = run.weights().path();
  if (run.weights().quantization()) quality.scheme = format::describe(run.weights().quantization()->scheme);
  quality.bytes = tensor_bytes(run.weights().checkpoint());
  quality.bits_per_weight = bits_per_weight(run.weights(), run.network());
  return quality;
}

}  // namespace

Result<Evaluation> evaluate(const EvaluateOptions& options, base::Progress& progress) {
  const Stream stream = options.threads == 0 ? Stream::cpu() : Stream::cpu(options.threads);
  if (!stream.status().ok()) return stream.status();
  const model::TokenText& text = options.text;
  const std::int64_t longest = text.lengths.empty() ? 0 : *std::max_element(text.lengths.begin(), text.lengths.end());
  if (longest < 2) return invalid_problem("eval: the text has {} tokens, must have at least 2", text.rows());
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
  Evaluation evaluation;
  evaluation.model_type = model::facts_of(runs.front().weights().checkpoint()).model_type;
  evaluation.is_encoder = !runs.front().network().head.has_value();
  evaluation.sequences = text.lengths.size();
  evaluation.tokens = evaluation.is_encoder ? text.ids.size() : text.ids.size() - text.lengths.size();
  std::uint64_t work = 0;
  for (const model::ModelRun& run : runs) work += run.work() + (evaluation.is_encoder ? 0 : text.ids.size());
  progress.begin("evaluating", work, base::Unit::tokens);
  for (model::ModelRun& run : runs)
    if (Status s = run.run_blocks(progress); !s.ok()) return s;

  evaluation.original = facts_of_file(runs.front());
  for (std::size_t m = 1; m < runs.size(); ++m) evaluation.quantized.push_back(facts_of_file(runs[m]));
  const std::vector<std::string> labels = labels_of(paths);
  evaluation.original.label = labels.front();
  for (std::size_t m = 1; m < runs.size(); ++m) evaluation.quantized[m - 1].label = labels[m];
  if (evaluation.is_encoder) {
    const auto embeddings = [&](const model::ModelRun& run) {
      return embeddings_of(run.states(), run.network().hidden, text);
    };
    const Embeddings original = embeddings(runs.front());
    for (std::size_t m = 1; m < runs.size(); ++m)
      compare_embeddings(original, embeddings(runs[m]), evaluation.quantized[m - 1]);
    return evaluation;
  }
  Heads heads(stream, *steps, runs, text);
  if (Status s = heads.run(progress); !s.ok()) return s;
  evaluation.original.prediction = predict(heads.tokens(0));
  evaluation.original.same_top = 1;
  for (std::size_t m = 1; m < runs.size(); ++m)
    compare_tokens(heads.tokens(0), heads.tokens(m), text, evaluation.quantized[m - 1]);
  return evaluation;
}

}  // namespace kvant::measure
