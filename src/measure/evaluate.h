// What a model lost: the original and quantized checkpoints run over the same tokens, and their predictions are put
// side by side.
//
//   perplexity        exp of the mean of -log p(next token); its standard error, to first order, is
//                     perplexity * (deviation of -log p) / √tokens
//   KL divergence     Σ p log(p / q) of the original's distribution p and the checkpoint's q, in nats, token by token
//   same top token    how often both give the highest probability to the same token
//
// For encoders: the cosine between the mean of the original's last hidden states over a sequence and the checkpoint's.
//
// Every checkpoint is read block by block. The states of all tokens are kept, in a file where they do not fit, so a
// model needs the memory of its largest block. The numbers are the same for any number of threads and any limit of
// memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/progress.h"
#include "io/json_fwd.h"
#include "kvant/status.h"
#include "model/token_text.h"

namespace kvant::measure {

struct EvaluateOptions {
  std::filesystem::path original;
  std::vector<std::filesystem::path> quantized;
  model::TokenText text;
  int threads = 0;               // 0: all
  std::uint64_t max_memory = 0;  // 0: three quarters of what is available
  // A folder for the states after every block, which is removed at the end. Empty: they are only in memory, and a run
  // that is stopped begins again.
  std::filesystem::path scratch = {};
  bool resume = false;  // after the last block that an earlier run of the same finished
};

// How far a checkpoint is from the original.
enum class Verdict : std::uint8_t { good, noticeable, broken };
std::string_view name(Verdict verdict);

// Of numbers that say how much was lost. Good: mean KL divergence below 0.02 and perplexity within 2 % of the
// original's. Broken: KL above 0.3, or perplexity half as high again, or not finite. Noticeable: between them.
Verdict judge_loss(double mean_kl, double perplexity, double original_perplexity);

// What a language model predicted.
struct Prediction {
  double perplexity = 0;
  double perplexity_error = 0;
};

// A checkpoint beside the original.
struct ModelQuality {
  std::filesystem::path path;
  std::string scheme;       // empty: not quantized
  std::uint64_t bytes = 0;  // of its tensors
  Prediction prediction;
  double mean_kl = 0;
  double kl_99 = 0;                        // the 99th percentile
  double same_top = 0;                     // share of tokens
  double mean_log_probability_change = 0;  // of the tokens that came, original minus this
  std::vector<double> kl_by_position;      // mean over sequences
  double mean_cosine = 1;                  // of encoders
  double min_cosine = 1;
  Verdict verdict = Verdict::good;
};

struct Evaluation {
  std::string model_type;
  bool is_encoder = false;
  std::uint64_t tokens = 0;  // that were predicted; of encoders: that were read
  std::uint64_t sequences = 0;
  ModelQuality original;
  std::vector<ModelQuality> quantized;
};

Result<Evaluation> evaluate(const EvaluateOptions& options, base::Progress& progress);

io::Json to_json(const Evaluation& evaluation);

}  // namespace kvant::measure
