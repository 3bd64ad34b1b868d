// What a checkpoint lost, from what it and the original said of the same tokens.
//
//   perplexity        exp of the mean of -log p(next token); its standard error, to first order, is
//                     perplexity * (deviation of -log p) / √tokens
//   KL divergence     Σ p log(p / q) of the original's distribution p and the checkpoint's q, in nats, token by token
//   same top token    how often both give the highest probability to the same token
//
// For encoders, a sentence's embedding is the mean of its last hidden states:
//
//   cosine            between the original's and the checkpoint's embedding of a sentence
//   rank agreement    whether both order the other sentences alike by their cosine to this one: Spearman's correlation
//                     of the two orders, 1 for the same and -1 for the opposite; mean over sentences
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/token_text.h"

namespace kvant::measure {

// How far a checkpoint is from the original.
enum class Verdict : std::uint8_t { good, noticeable, broken };
std::string_view name(Verdict verdict);

// The bounds of mean KL divergence, perplexity (in parts of the original's) and mean cosine: good is better than the
// first, broken is worse than the second or not finite, noticeable lies between.
struct Bounds {
  double good;
  double broken;
};
inline constexpr Bounds kKlBounds{0.02, 0.3};
inline constexpr Bounds kPerplexityBounds{1.02, 1.5};
inline constexpr Bounds kCosineBounds{0.999, 0.98};

// Good where both are good; broken where either is.
Verdict judge_loss(double mean_kl, double perplexity, double original_perplexity);
Verdict judge_cosine(double mean_cosine);
// The rule in words: "good: mean KL below 0.02 and …; broken: …".
std::string verdict_rule(bool is_encoder);

// What a model said of one token that came.
struct PredictedToken {
  double log_probability = 0;
  double kl = 0;          // from the original; 0 for the original itself
  std::int32_t top = -1;  // the token that it found most likely; -1: there is none
  double top_log_probability = 0;
};

// What a language model predicted.
struct Prediction {
  double perplexity = 0;
  double perplexity_error = 0;
};
Prediction predict(const std::vector<PredictedToken>& tokens);

// A token that the original and a checkpoint predicted differently.
struct TokenDifference {
  struct Guess {
    std::int32_t token = -1;
    double probability = 0;
  };
  std::size_t sequence = 0;
  std::int64_t position = 0;          // of the token before it in the sequence, as kl_by_position counts
  std::vector<std::int32_t> context;  // tokens before it, the last of them
  std::int32_t token = 0;             // that came
  double kl = 0;
  double original_probability = 0;  // of the token that came
  double probability = 0;
  Guess original_top;  // what each found most likely
  Guess top;
};
inline constexpr std::size_t kDifferences = 20;
inline constexpr std::int64_t kContextTokens = 30;

// A checkpoint beside the original.
struct ModelQuality {
  std::filesystem::path path;
  std::string label;           // the last part of the path; as much more of it as tells it from the others
  std::string scheme;          // empty: not quantized
  std::uint64_t bytes = 0;     // of its tensors
  double bits_per_weight = 0;  // as stored_size.h counts
  Verdict verdict = Verdict::good;

  // Of language models.
  Prediction prediction;
  double mean_kl = 0;
  double kl_99 = 0;                          // the 99th percentile
  double same_top = 0;                       // share of tokens
  double mean_log_probability_change = 0;    // of the tokens that came, original minus this
  std::vector<double> kl_by_position;        // mean over sequences
  std::vector<TokenDifference> differences;  // the largest KL first, at most kDifferences; none where it is 0

  // Of encoders.
  double mean_cosine = 1;
  double min_cosine = 1;
  std::optional<double> rank_agreement;  // nothing for fewer than three sentences
};

// Fills in what follows from predictions. They are of all tokens of the text but the first of each sequence, in order.
void compare_tokens(const std::vector<PredictedToken>& original, const std::vector<PredictedToken>& own,
                    const model::TokenText& text, ModelQuality& quality);

// Of each sequence the mean over its states [tokens, hidden].
using Embeddings = std::vector<std::vector<double>>;
Embeddings embeddings_of(const std::vector<float>& states, std::int64_t hidden, const model::TokenText& text);

// Fills in what follows from embeddings.
void compare_embeddings(const Embeddings& original, const Embeddings& own, ModelQuality& quality);

// Mean over sentences of the correlation of both orders. Sentences that are as near as each other share the mean of
// their ranks; an order in which all are equal agrees with another such one (1) and with nothing else (0), and so does
// one with NaN (0). Of many sentences the first kRankedSentences are taken: the work grows with their square. Nothing
// for fewer than three: two others are the least that can be ordered.
std::optional<double> rank_agreement(const Embeddings& original, const Embeddings& own);
inline constexpr std::size_t kRankedSentences = 500;

}  // namespace kvant::measure
