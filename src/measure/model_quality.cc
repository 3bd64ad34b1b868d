#include "measure/model_quality.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "base/size.h"

namespace kvant::measure {
namespace {

using base::size;

// Where a predicted token stands.
struct Place {
  std::size_t sequence;
  std::int64_t position;  // of the token before it
  std::int64_t row;       // of that one, in the whole text
};

// Of every token but the first of each sequence.
std::vector<Place> places_in(const model::TokenText& text) {
  std::vector<Place> places;
  std::int64_t begin = 0;
  for (std::size_t s = 0; s < text.lengths.size(); ++s) {
    for (std::int64_t p = 0; p + 1 < text.lengths[s]; ++p) places.push_back({s, p, begin + p});
    begin += text.lengths[s];
  }
  return places;
}

TokenDifference difference(const PredictedToken& original, const PredictedToken& own, double kl, const Place& place,
                           const model::TokenText& text) {
  const auto end = text.ids.begin() + place.row + 1;
  return {.sequence = place.sequence,
          .position = place.position,
          .context = {end - std::min(place.position + 1, kContextTokens), end},
          .token = *end,
          .kl = kl,
          .original_probability = std::exp(original.log_probability),
          .probability = std::exp(own.log_probability),
          .original_top = {original.top, std::exp(original.top_log_probability)},
          .top = {own.top, std::exp(own.top_log_probability)}};
}

// The places of the largest, largest first, earlier ones before others that are as large.
std::vector<std::size_t> largest(const std::vector<double>& values, std::size_t count) {
  std::vector<std::size_t> places(values.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  const auto end = places.begin() + static_cast<std::ptrdiff_t>(std::min(count, places.size()));
  std::partial_sort(places.begin(), end, places.end(), [&](std::size_t a, std::size_t b) {
    return values[a] != values[b] ? values[a] > values[b] : a < b;
  });
  places.erase(end, places.end());
  return places;
}

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
  return aa == 0 || bb == 0 ? (aa == bb ? 1 : 0) : ab / std::sqrt(aa * bb);
}

// 1 for the least; those that are equal share the mean of their ranks.
std::vector<double> ranks_of(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (std::size_t i = 0; i < order.size();) {
    std::size_t end = i + 1;
    while (end < order.size() && values[order[end]] == values[order[i]]) ++end;
    const double rank = static_cast<double>(i + 1 + end) / 2;
    for (; i < end; ++i) ranks[order[i]] = rank;
  }
  return ranks;
}

double spearman(std::span<const double> a, std::span<const double> b) {
  const auto is_nan = [](double value) { return std::isnan(value); };
  if (std::any_of(a.begin(), a.end(), is_nan) || std::any_of(b.begin(), b.end(), is_nan)) return 0;
  const std::vector<double> x = ranks_of(a), y = ranks_of(b);
  const double mean = (static_cast<double>(x.size()) + 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xx == 0 || yy == 0 ? (xx == yy ? 1 : 0) : xy / std::sqrt(xx * yy);
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
  if (mean_kl > kKlBounds.broken || perplexity > kPerplexityBounds.broken * original_perplexity) return Verdict::broken;
  return mean_kl < kKlBounds.good && perplexity < kPerplexityBounds.good * original_perplexity ? Verdict::good
                                                                                               : Verdict::noticeable;
}

Verdict judge_cosine(double mean_cosine) {
  return mean_cosine > kCosineBounds.good     ? Verdict::good
         : mean_cosine > kCosineBounds.broken ? Verdict::noticeable
                                              : Verdict::broken;
}

std::string verdict_rule(bool is_encoder) {
  if (is_encoder)
    return fmt::format(
        "good: mean cosine above {}; broken: mean cosine of {} or less, or not a number; noticeable: between.",
        kCosineBounds.good, kCosineBounds.broken);
  const auto above = [](double bound) { return std::lround(100 * (bound - 1)); };
  return fmt::format(
      "good: mean KL below {} and perplexity less than {} % above the original's; broken: mean KL above {}, or "
      "perplexity more than {} % above the original's, or either not finite; noticeable: between.",
      kKlBounds.good, above(kPerplexityBounds.good), kKlBounds.broken, above(kPerplexityBounds.broken));
}

Prediction predict(const std::vector<PredictedToken>& tokens) {
  double sum = 0, squares = 0;
  for (const PredictedToken& token : tokens) sum -= token.log_probability;
  const auto n = static_cast<double>(tokens.size());
  const double mean = sum / n;
  for (const PredictedToken& token : tokens)
    squares += (-token.log_probability - mean) * (-token.log_probability - mean);
  Prediction prediction;
  prediction.perplexity = std::exp(mean);
  prediction.perplexity_error =
      tokens.size() < 2 ? 0 : prediction.perplexity * std::sqrt(squares / (n - 1)) / std::sqrt(n);
  return prediction;
}

void compare_tokens(const std::vector<PredictedToken>& original, const std::vector<PredictedToken>& own,
                    const model::TokenText& text, ModelQuality& quality) {
  const std::vector<Place> places = places_in(text);
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
    same += own[i].top == original[i].top ? 1 : 0;
    const auto position = size(places[i].position);
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
  for (const std::size_t i : largest(divergences, kDifferences))
    if (divergences[i] > 0)
      quality.differences.push_back(difference(original[i], own[i], divergences[i], places[i], text));
  const auto at = static_cast<std::ptrdiff_t>((divergences.size() - 1) * 99 / 100);
  std::nth_element(divergences.begin(), divergences.begin() + at, divergences.end());
  quality.kl_99 = divergences[static_cast<std::size_t>(at)];
  quality.prediction = predict(own);
  quality.verdict = judge_loss(quality.mean_kl, quality.prediction.perplexity, predict(original).perplexity);
}

std::vector<double> embedding_of(const float* states, std::int64_t tokens, std::int64_t hidden) {
  std::vector<double> mean(size(hidden));
  for (std::int64_t r = 0; r < tokens; ++r)
    for (double& value : mean) value += static_cast<double>(*states++);
  for (double& value : mean) value /= static_cast<double>(tokens);
  return mean;
}

void compare_embeddings(const Embeddings& original, const Embeddings& own, ModelQuality& quality) {
  double sum = 0;
  quality.min_cosine = 1;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const double value = cosine(original[i], own[i]);
    sum += value;
    if (std::isnan(value) || value < quality.min_cosine) quality.min_cosine = value;
  }
  quality.mean_cosine = sum / static_cast<double>(own.size());
  quality.rank_agreement = rank_agreement(original, own);
  quality.verdict = judge_cosine(quality.mean_cosine);
}

std::optional<double> rank_agreement(const Embeddings& original, const Embeddings& own) {
  const std::size_t n = std::min(own.size(), kRankedSentences);
  if (n < 3) return std::nullopt;
  double sum = 0;
  std::vector<double> a(n - 1), b(n - 1);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0, to = 0; j < n; ++j) {
      if (j == i) continue;
      a[to] = cosine(original[i], original[j]);
      b[to++] = cosine(own[i], own[j]);
    }
    sum += spearman(a, b);
  }
  return sum / static_cast<double>(n);
}

}  // namespace kvant::measure
