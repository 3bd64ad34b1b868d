#include "measure/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "base/for_each_part.h"
#include "base/refuse.h"
#include "format/scheme.h"
#include "io/file.h"
#include "model/model_facts.h"
#include "model/model_run.h"
#include "model/text_job.h"

namespace kvant::measure {
namespace {

using base::invalid_problem;

// Rows of logits at a time, at least: a vocabulary of 128,000 makes them 16 MB for each of two models.
constexpr std::int64_t kMinLogitRows = 32;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

// What is known of one predicted token.
struct Token {
  double log_probability;
  double kl;
  bool same_top;
};

Prediction predict(const std::vector<Token>& tokens) {
  double sum = 0, squares = 0;
  for (const Token& token : tokens) sum -= token.log_probability;
  const auto n = static_cast<double>(tokens.size());
  const double mean = sum / n;
  for (const Token& token : tokens) squares += (-token.log_probability - mean) * (-token.log_probability - mean);
  Prediction prediction;
  prediction.perplexity = std::exp(mean);
  prediction.perplexity_error =
      tokens.size() < 2 ? 0 : prediction.perplexity * std::sqrt(squares / (n - 1)) / std::sqrt(n);
  return prediction;
}

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
  const std::vector<Token>& tokens(std::size_t model) const { return tokens_[model]; }
  // The position in its sequence of each of them.
  const std::vector<std::int64_t>& positions() const { return positions_; }

 private:
  // Which of these rows predict a token: the last one of a sequence predicts nothing that is known.
  void find_predicting(std::int64_t first, std::int64_t rows) {
    predicting_.clear();
    std::int64_t begin = 0;
    for (const std::int64_t length : text_.lengths) {
      for (std::int64_t p = std::max<std::int64_t>(first - begin, 0); p < length - 1 && begin + p < first + rows; ++p) {
        predicting_.push_back(begin + p);
        positions_.push_back(p);
      }
      begin += length;
    }
    distributions_.resize(predicting_.size());
  }

  Status look(std::size_t m, std::int64_t first) {
    const std::int64_t vocabulary = runs_.front().vocabulary();
    const auto n = size(vocabulary);
    std::vector<Token>& tokens = tokens_[m];
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
                            m == 0 ? 0 : steps_.kl_divergence(p, original, q, own, n), own.argmax == original.argmax};
      return {};
    });
  }

  const Stream& stream_;
  NetworkSteps steps_;
  std::vector<model::ModelRun>& runs_;
  const model::TokenText& text_;
  std::vector<std::vector<Token>> tokens_;
  std::vector<std::int64_t> positions_;
  // Of the rows that are looked at.
  std::vector<std::int64_t> predicting_;
  std::vector<NetworkSteps::Distribution> distributions_;  // of the original
  std::vector<float> original_, own_;                      // logits
};

void compare_tokens(const std::vector<Token>& original, const std::vector<Token>& own,
                    const std::vector<std::int64_t>& positions, ModelQuality& quality) {
  std::vector<double> divergences;
  std::vector<std::uint64_t> counts;
  double change = 0;
  std::uint64_t same = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    // Rounding leaves tiny negative ones where nothing was lost.
    const double kl = std::isnan(own[i].kl) ? std::numeric_limits<double>::infinity() : std::max(own[i].kl, 0.0);
    divergences.push_back(kl);
    quality.mean_kl += kl;
    change += original[i].log_probability - own[i].log_probability;
    same += own[i].same_top ? 1 : 0;
    const auto position = size(positions[i]);
    if (position >= counts.size()) counts.resize(position + 1), quality.kl_by_position.resize(position + 1);
    ++counts[position];
    quality.kl_by_position[position] += kl;
  }
  const auto n = static_cast<double>(own.size());
  quality.mean_kl /= n;
  quality.mean_log_probability_change = change / n;
  quality.same_top = static_cast<double>(same) / n;
  for (std::size_t i = 0; i < counts.size(); ++i)
    quality.kl_by_position[i] /= static_cast<double>(std::max<std::uint64_t>(counts[i], 1));
  const auto at = static_cast<std::ptrdiff_t>((divergences.size() - 1) * 99 / 100);
  std::nth_element(divergences.begin(), divergences.begin() + at, divergences.end());
  quality.kl_99 = divergences[static_cast<std::size_t>(at)];
}

// The mean over each sequence, as sentence embeddings are made.
Result<std::vector<std::vector<double>>> embeddings(model::ModelRun& run, const model::TokenText& text) {
  std::vector<std::vector<double>> means;
  std::int64_t first = 0;
  for (const std::int64_t length : text.lengths) {
    const auto rows = run.final_rows(first, length);
    if (!rows.ok()) return rows.status();
    const float* row = *rows;
    first += length;
    std::vector<double> mean(size(run.network().hidden));
    for (std::int64_t r = 0; r < length; ++r)
      for (double& value : mean) value += static_cast<double>(*row++);
    means.push_back(std::move(mean));
  }
  return means;
}

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
  return aa == 0 || bb == 0 ? (aa == bb ? 1 : 0) : ab / std::sqrt(aa * bb);
}

Status compare_embeddings(std::vector<model::ModelRun>& runs, const model::TokenText& text, Evaluation& evaluation) {
  const auto original = embeddings(runs.front(), text);
  if (!original.ok()) return original.status();
  for (std::size_t m = 1; m < runs.size(); ++m) {
    ModelQuality& quality = evaluation.quantized[m - 1];
    const auto own = embeddings(runs[m], text);
    if (!own.ok()) return own.status();
    double sum = 0;
    quality.min_cosine = 1;
    for (std::size_t i = 0; i < own->size(); ++i) {
      const double value = cosine((*original)[i], (*own)[i]);
      sum += value;
      quality.min_cosine = std::min(quality.min_cosine, value);
    }
    quality.mean_cosine = sum / static_cast<double>(own->size());
    quality.verdict = quality.mean_cosine > 0.999  ? Verdict::good
                      : quality.mean_cosine > 0.98 ? Verdict::noticeable
                                                   : Verdict::broken;
  }
  return {};
}

ModelQuality facts_of_file(const model::ModelRun& run) {
  ModelQuality quality;
  quality.path = run.weights().path();
  quality.scheme = run.weights().scheme();
  quality.bytes = run.weights().stored_bytes();
  return quality;
}

}  // namespace

std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::good: return "good";
    case Verdict::noticeable: return "noticeable";
    case Verdict::broken: return "broken";
  }
  return "unknown";
}

Verdict judge_loss(double mean_kl, double perplexity, double original_perplexity) {
  if (!std::isfinite(mean_kl) || !std::isfinite(perplexity)) return Verdict::broken;
  if (mean_kl > 0.3 || perplexity > 1.5 * original_perplexity) return Verdict::broken;
  return mean_kl < 0.02 && perplexity < 1.02 * original_perplexity ? Verdict::good : Verdict::noticeable;
}

Result<Evaluation> evaluate(const EvaluateOptions& options, base::Progress& progress) {
  const Stream stream = options.threads == 0 ? Stream::cpu() : Stream::cpu(options.threads);
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
                                   {.max_memory = options.max_memory,
                                    .at_the_end = is_encoder ? 0 : smallest_heads(runs),
                                    .scratch = options.scratch,
                                    .resume = options.resume});
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
  if (evaluation.is_encoder) {
    if (Status s = compare_embeddings(runs, text, evaluation); !s.ok()) return s;
    if (Status s = job->finish(); !s.ok()) return s;
    return evaluation;
  }
  Heads heads(stream, *steps, runs, text);
  if (Status s = heads.run(plan_heads(runs, job->memory_at_the_end()), progress); !s.ok()) return s;
  evaluation.original.prediction = predict(heads.tokens(0));
  evaluation.original.same_top = 1;
  for (std::size_t m = 1; m < runs.size(); ++m) {
    ModelQuality& quality = evaluation.quantized[m - 1];
    quality.prediction = predict(heads.tokens(m));
    compare_tokens(heads.tokens(0), heads.tokens(m), heads.positions(), quality);
    quality.verdict =
        judge_loss(quality.mean_kl, quality.prediction.perplexity, evaluation.original.prediction.perplexity);
  }
  if (Status s = job->finish(); !s.ok()) return s;
  return evaluation;
}

}  // namespace kvant::measure
