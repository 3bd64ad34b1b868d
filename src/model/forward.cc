#include "model/forward.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/float_environment.h"
#include "base/for_each_part.h"
#include "base/refuse.h"
#include "base/size.h"
#include "format/kv_cache.h"
#include "io/file.h"
#include "kvant/elementwise.h"

namespace kvant::model {
namespace {

using base::invalid_problem;

constexpr std::int64_t kQueries = 64;  // that attention takes at a time

using base::size;

// Calls f(first, last) for stretches of rows on the stream's threads.
Status for_rows(const Stream& stream, std::int64_t rows, const std::function<void(std::int64_t, std::int64_t)>& f) {
  constexpr std::int64_t kRows = 16;
  const auto parts = static_cast<std::uint64_t>((rows + kRows - 1) / kRows);
  return base::for_each_part(stream, 0, parts, [&](std::size_t /*worker*/, std::uint64_t part) -> Status {
    const base::DefaultFloatEnvironment environment;
    const std::int64_t first = static_cast<std::int64_t>(part) * kRows;
    f(first, std::min(first + kRows, rows));
    return {};
  });
}

}  // namespace

std::int64_t rows_of(Lengths lengths) { return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}); }

Result<Forward> Forward::make(const Stream& stream, const Weights& weights, const Network& network,
                              std::int64_t max_rows) {
  const auto steps = NetworkSteps::select(stream);
  if (!steps.ok()) return steps.status();
  Forward forward(stream, weights, network, *steps, max_rows);
  const auto* const table = weights.shape_of(fmt::format("{}.weight", network.tokens));
  if (table == nullptr || table->size() != 2)
    return invalid_problem("'{}' is no table of embeddings", io::printable(network.tokens));
  forward.vocabulary_ = static_cast<std::int64_t>((*table)[0]);
  if (!network.final_norm.empty()) {
    Loaded loaded;
    if (Status s = forward.load_norm(weights, network.final_norm, network.hidden, loaded); !s.ok()) return s;
    forward.final_norm_ = std::move(loaded.norms.begin()->second);
  }
  return forward;
}

Result<Forward::Memory> Forward::memory(const Stream& stream, const Weights& weights, const Network& network,
                                        std::int64_t longest_sequence) {
  Memory memory;
  std::int64_t inner = 0, of_experts = 0;
  std::uint64_t workspace = 0;
  const auto linear_memory = [&](const LinearModule& linear, std::uint64_t& kept, std::uint64_t& loading) -> Status {
    const auto each = LinearLayer::memory(stream, weights, linear);
    if (!each.ok()) return each.status();
    kept += each->kept;
    loading = std::max(loading, each->loading);
    workspace = std::max(workspace, each->workspace_row);
    return {};
  };
  for (const Block& block : network.blocks) {
    std::uint64_t kept = 0, loading = 0;
    for (const Step& step : block.steps) {
      for (const LinearModule* linear : linears_of(step))
        if (Status s = linear_memory(*linear, kept, loading); !s.ok()) return s;
      if (const auto* mlp = std::get_if<MlpStep>(&step)) {
        inner = std::max(inner, 2 * mlp->inner);
        if (mlp->router) of_experts = std::max(of_experts, 3 * network.hidden + mlp->router->out);
      }
    }
    memory.block = std::max(memory.block, kept + loading);
  }
  // Attention: the keys of a head and the scores of some queries, on each thread.
  memory.block += static_cast<std::uint64_t>(stream.threads() * longest_sequence * (network.head_size + kQueries)) * 4;
  memory.row = static_cast<std::uint64_t>(std::max(network.hidden, network.context_width()) + network.heads_width() +
                                          network.context_width() + inner + of_experts) *
                   sizeof(float) +
               workspace;
  if (network.head) {
    const auto* const table = weights.shape_of(fmt::format("{}.weight", network.tokens));
    std::uint64_t loading = 0;
    if (table != nullptr && table->size() == 2)
      if (Status s = linear_memory(head_of(network, static_cast<std::int64_t>((*table)[0])), memory.head, loading);
          !s.ok())
        return s;
    memory.head += loading;
  }
  return memory;
}

// ---- Loading ----

Status Forward::load_norm(const Weights& weights, const std::string& module, std::int64_t elements, Loaded& to) const {
  auto weight = weights.read_vector(fmt::format("{}.weight", module), elements);
  if (!weight.ok()) return weight.status();
  auto bias = weights.read_vector_if_there(fmt::format("{}.bias", module), elements);
  if (!bias.ok()) return bias.status();
  to.norms[module] = {std::move(weight).value(), std::move(bias).value()};
  return {};
}

Status Forward::load_linear(const Weights& weights, const LinearModule& linear, std::int64_t max_rows,
                            Loaded& to) const {
  auto layer = LinearLayer::load(stream_, weights, linear, max_rows);
  if (!layer.ok()) return layer.status();
  to.linears.insert_or_assign(linear.module, std::move(layer).value());
  return {};
}

void Forward::grow_workspace(const Loaded& loaded) {
  for (const auto& [module, layer] : loaded.linears)
    if (layer.workspace_size() > workspace_.size()) workspace_.resize(layer.workspace_size());
}

Status Forward::load_block(std::size_t index, const Weights* weights) {
  const Weights& from = weights == nullptr ? *weights_ : *weights;
  block_ = &network_->blocks[index];
  loaded_ = {};
  x_.resize(size(max_rows_ * std::max(network_->hidden, network_->context_width())));
  heads_.resize(size(max_rows_ * network_->heads_width()));
  context_.resize(size(max_rows_ * network_->context_width()));
  Loaded loaded;
  for (const Step& step : block_->steps) {
    if (const auto* norm = std::get_if<NormStep>(&step))
      if (Status s = load_norm(from, norm->module, network_->hidden, loaded); !s.ok()) return s;
    if (const auto* norms = std::get_if<HeadNormsStep>(&step))
      for (const std::string& module : {norms->queries, norms->keys})
        if (Status s = load_norm(from, module, network_->head_size, loaded); !s.ok()) return s;
    if (const auto* attention = std::get_if<AttendStep>(&step); attention != nullptr && from.fp8_kv_cache()) {
      const auto keys = from.cache_scale(attention->module, format::CacheHalf::keys);
      if (!keys.ok()) return keys.status();
      const auto values = from.cache_scale(attention->module, format::CacheHalf::values);
      if (!values.ok()) return values.status();
      loaded.cache = {*keys, *values};
    }
    for (const LinearModule* linear : linears_of(step))
      if (Status s = load_linear(from, *linear, max_rows_, loaded); !s.ok()) return s;
    if (const auto* mlp = std::get_if<MlpStep>(&step)) {
      inner_.resize(std::max(inner_.size(), size(max_rows_ * 2 * mlp->inner)));
      if (mlp->router) {
        chosen_.resize(size(max_rows_ * network_->hidden));
        expert_out_.resize(size(max_rows_ * network_->hidden));
        logits_.resize(std::max(logits_.size(), size(max_rows_ * mlp->router->out)));
      }
    }
  }
  grow_workspace(loaded);
  loaded_ = std::move(loaded);
  return {};
}

LinearModule Forward::head_of(const Network& network, std::int64_t vocabulary) {
  LinearModule head = *network.head;
  head.out = vocabulary;
  return head;
}

void Forward::unload() {
  block_ = nullptr;
  loaded_ = {};
  // Not = {}, which keeps the memory.
  std::vector<std::byte>().swap(workspace_);
  for (std::vector<float>* each : {&x_, &heads_, &context_, &inner_, &chosen_, &expert_out_, &logits_})
    std::vector<float>().swap(*each);
}

Status Forward::load_head(std::int64_t max_rows) {
  loaded_ = {};
  block_ = nullptr;
  Loaded loaded;
  if (Status s = load_linear(*weights_, head_of(*network_, vocabulary_), max_rows, loaded); !s.ok()) return s;
  grow_workspace(loaded);
  loaded_ = std::move(loaded);
  return {};
}

// ---- Running ----

Result<StoredTensor> Forward::table(const std::string& module) const {
  const std::string name = fmt::format("{}.weight", module);
  const auto* const shape = weights_->shape_of(name);
  const std::uint64_t rows = shape == nullptr || shape->empty() ? 0 : (*shape)[0];
  return weights_->find(name, {rows, static_cast<std::uint64_t>(network_->hidden)});
}

Status Forward::check_text(std::span<const std::int32_t> ids, Lengths lengths) const {
  const Network& n = *network_;
  const auto tokens = table(n.tokens);
  if (!tokens.ok()) return tokens.status();
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || static_cast<std::uint64_t>(ids[i]) >= tokens->shape[0])
      return invalid_problem("token {} has the id {}, must be below {}, the rows of '{}'", i, ids[i], tokens->shape[0],
                             io::printable(n.tokens));
  if (n.positions.empty()) return {};
  const auto positions = table(n.positions);
  if (!positions.ok()) return positions.status();
  const std::int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  const std::int64_t known = static_cast<std::int64_t>(positions->shape[0]) - n.spec().first_position;
  if (longest > known)
    return invalid_problem("a sequence has {} tokens, '{}' has positions for {}", longest, io::printable(n.positions),
                           known);
  return {};
}

Status Forward::embed(std::span<const std::int32_t> ids, Lengths lengths, float* residual) const {
  const Network& n = *network_;
  const auto tokens = table(n.tokens);
  if (!tokens.ok()) return tokens.status();
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (Status s = weights_->read_rows(*tokens, static_cast<std::uint64_t>(ids[i]), 1, residual + size(n.hidden) * i);
        !s.ok())
      return s;
  const auto add_row = [&](std::size_t row, const float* values) {
    steps_.add(residual + row * size(n.hidden), values, size(n.hidden));
  };
  std::vector<float> row(size(n.hidden));
  if (!n.token_types.empty()) {
    const auto types = table(n.token_types);
    if (!types.ok()) return types.status();
    if (Status s = weights_->read_rows(*types, 0, 1, row.data()); !s.ok()) return s;
    for (std::size_t i = 0; i < ids.size(); ++i) add_row(i, row.data());
  }
  if (!n.positions.empty()) {
    const auto positions = table(n.positions);
    if (!positions.ok()) return positions.status();
    const std::int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
    for (std::int64_t position = 0; position < longest; ++position) {
      if (Status s = weights_->read_rows(*positions, static_cast<std::uint64_t>(position + n.spec().first_position), 1,
                                         row.data());
          !s.ok())
        return s;
      std::int64_t first = 0;
      for (const std::int64_t length : lengths) {
        if (position < length) add_row(size(first + position), row.data());
        first += length;
      }
    }
  }
  if (n.embedding_norm.empty()) return {};
  Loaded loaded;
  if (Status s = load_norm(*weights_, n.embedding_norm, n.hidden, loaded); !s.ok()) return s;
  const Norm& norm = loaded.norms.begin()->second;
  for (std::size_t i = 0; i < ids.size(); ++i)
    normalize_row(norm, residual + i * size(n.hidden), n.hidden, residual + i * size(n.hidden));
  return {};
}

void Forward::normalize_row(const Norm& norm, const float* x, std::int64_t elements, float* y) const {
  if (network_->spec().norm == NormKind::rms)
    steps_.rms_norm(x, norm.weight.data(), network_->epsilon, size(elements), y);
  else
    steps_.layer_norm(x, norm.weight.data(), norm.bias.empty() ? nullptr : norm.bias.data(), network_->epsilon,
                      size(elements), y);
}

Status Forward::finish(float* residual, std::int64_t rows) {
  if (network_->final_norm.empty()) return {};
  return for_rows(stream_, rows, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      float* const row = residual + r * network_->hidden;
      normalize_row(final_norm_, row, network_->hidden, row);
    }
  });
}

Status Forward::run_linear(const LinearModule& linear, const float* x, std::int64_t x_stride, std::int64_t rows,
                           float* y, std::int64_t y_stride, InputObserver* observer) {
  if (observer != nullptr)
    if (Status s = observer->see(linear, x, x_stride, rows); !s.ok()) return s;
  return loaded_.linears.at(linear.module)
      .run(stream_, {workspace_.data(), workspace_.size()}, x, x_stride, rows, y, y_stride);
}

Status Forward::run_head(const float* hidden, std::int64_t rows, float* logits, InputObserver* observer) {
  return run_linear(*network_->head, hidden, network_->hidden, rows, logits, vocabulary_, observer);
}

Status Forward::run_block(Lengths lengths, float* residual, InputObserver* observer) {
  // What a block without a norm at its beginning reads.
  const std::int64_t rows = rows_of(lengths);
  if (!std::holds_alternative<NormStep>(block_->steps.front()))
    std::copy(residual, residual + rows * network_->hidden, x_.begin());
  for (const Step& step : block_->steps)
    if (Status s = std::visit([&](const auto& each) { return run(each, lengths, residual, observer); }, step); !s.ok())
      return s;
  return {};
}

Status Forward::run(const NormStep& step, Lengths lengths, float* residual, InputObserver* /*observer*/) {
  const Norm& norm = loaded_.norms.at(step.module);
  return for_rows(stream_, rows_of(lengths), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      float* const row = residual + r * network_->hidden;
      float* const to = x_.data() + r * network_->hidden;
      normalize_row(norm, row, network_->hidden, to);
      if (step.in_place) std::copy(to, to + network_->hidden, row);
    }
  });
}

Status Forward::run(const AddStep& /*step*/, Lengths lengths, float* residual, InputObserver* /*observer*/) {
  return for_rows(stream_, rows_of(lengths), [&](std::int64_t first, std::int64_t last) {
    steps_.add(residual + first * network_->hidden, x_.data() + first * network_->hidden,
               size((last - first) * network_->hidden));
  });
}

Status Forward::run(const LinearStep& step, Lengths lengths, float* /*residual*/, InputObserver* observer) {
  return run_linear(step.linear, context_.data(), network_->context_width(), rows_of(lengths), x_.data(),
                    network_->hidden, observer);
}

// ---- Attention ----

Status Forward::run(const HeadsStep& step, Lengths lengths, float* /*residual*/, InputObserver* observer) {
  float* to = heads_.data();
  for (const LinearModule& linear : step.linears) {
    if (Status s =
            run_linear(linear, x_.data(), network_->hidden, rows_of(lengths), to, network_->heads_width(), observer);
        !s.ok())
      return s;
    to += linear.out;
  }
  return {};
}

Status Forward::run(const HeadNormsStep& step, Lengths lengths, float* /*residual*/, InputObserver* /*observer*/) {
  const Norm& queries = loaded_.norms.at(step.queries);
  const Norm& keys = loaded_.norms.at(step.keys);
  return for_rows(stream_, rows_of(lengths), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r)
      for (std::int64_t head = 0; head < network_->heads + network_->kv_heads; ++head) {
        float* const row = heads_.data() + r * network_->heads_width() + head * network_->head_size;
        normalize_row(head < network_->heads ? queries : keys, row, network_->head_size, row);
      }
  });
}

Status Forward::run(const RotateStep& /*step*/, Lengths lengths, float* /*residual*/, InputObserver* /*observer*/) {
  const Rotary& rotary = network_->rotary;
  const std::size_t half = rotary.frequencies.size();
  const std::int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  for (auto known = static_cast<std::int64_t>(cosines_.size() / half); known < longest; ++known) {
    cosines_.resize(cosines_.size() + half);
    sines_.resize(sines_.size() + half);
    turn(rotary, known, std::span(cosines_).last(half), std::span(sines_).last(half));
  }
  std::vector<std::int64_t> positions;
  for (const std::int64_t length : lengths)
    for (std::int64_t p = 0; p < length; ++p) positions.push_back(p);
  return for_rows(stream_, rows_of(lengths), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const std::size_t at = size(positions[size(r)]) * half;
      for (std::int64_t head = 0; head < network_->heads + network_->kv_heads; ++head)
        steps_.rotate_half(heads_.data() + r * network_->heads_width() + head * network_->head_size,
                           cosines_.data() + at, sines_.data() + at, half);
    }
  });
}

Status Forward::round_cache(float* x, float scale, std::int64_t rows) const {
  const Shape shape = {rows, network_->kv_width()};
  const auto plan = ElementwisePlan::select(stream_, {.op = QuantizeKind::fake_quantize,
                                                      .shape = shape,
                                                      .input = ElementKind::f32,
                                                      .output = ElementKind::f32,
                                                      .grid = format::kCacheCode});
  if (!plan.ok()) return plan.status();
  ElementwiseArgs args;
  args.input = {x, ElementKind::f32, shape, network_->heads_width()};
  args.output = {x, ElementKind::f32, shape, network_->heads_width()};
  args.scale = AnyParameter(AnyRef{&scale, ElementKind::f32, {}, 0});
  return plan->run(stream_, {}, args);
}

Status Forward::run(const AttendStep& step, Lengths lengths, float* /*residual*/, InputObserver* observer) {
  float* const keys = heads_.data() + network_->context_width();
  float* const values = keys + network_->kv_width();
  if (observer != nullptr)
    if (Status s = observer->see_cache(step, keys, values, network_->heads_width(), rows_of(lengths)); !s.ok())
      return s;
  if (loaded_.cache) {
    if (Status s = round_cache(keys, loaded_.cache->keys, rows_of(lengths)); !s.ok()) return s;
    if (Status s = round_cache(values, loaded_.cache->values, rows_of(lengths)); !s.ok()) return s;
  }
  std::vector<std::int64_t> firsts;
  std::int64_t first = 0;
  for (const std::int64_t length : lengths) firsts.push_back(std::exchange(first, first + length));
  const auto kv_heads = static_cast<std::uint64_t>(network_->kv_heads);
  std::vector<std::vector<float>> scratch(size(stream_.threads()));
  return base::for_each_part(
      stream_, 0, firsts.size() * kv_heads, [&](std::size_t worker, std::uint64_t part) -> Status {
        const base::DefaultFloatEnvironment environment;
        const std::size_t sequence = part / kv_heads;
        attend(step, firsts[sequence], lengths[sequence], static_cast<std::int64_t>(part % kv_heads), scratch[worker]);
        return {};
      });
}

void Forward::attend(const AttendStep& step, std::int64_t first_row, std::int64_t length, std::int64_t kv_head,
                     std::vector<float>& scratch) {
  const Network& n = *network_;
  const std::int64_t width = n.heads_width(), queries_of_head = n.heads / n.kv_heads;
  const bool causal = n.spec().causal;
  scratch.resize(std::max(scratch.size(), size((n.head_size + kQueries) * length)));
  float* const keys = scratch.data();
  float* const scores = keys + n.head_size * length;
  const float* const rows = heads_.data() + first_row * width;
  const float* const values = rows + (n.heads + n.kv_heads + kv_head) * n.head_size;
  steps_.transpose(rows + (n.heads + kv_head) * n.head_size, size(width), size(length), size(n.head_size), keys,
                   size(length));
  // The first key that a token sees; it does not depend on which tokens are worked on together.
  const auto first_key = [&](std::int64_t token) {
    return step.window == 0 ? std::int64_t{0} : std::max<std::int64_t>(token - step.window + 1, 0);
  };
  for (std::int64_t head = kv_head * queries_of_head; head < (kv_head + 1) * queries_of_head; ++head)
    for (std::int64_t q = 0; q < length; q += kQueries) {
      const std::int64_t count = std::min(kQueries, length - q);
      const std::int64_t begin = first_key(q), end = causal ? q + count : length;
      const std::int64_t seen = end - begin;
      steps_.chain_products(rows + q * width + head * n.head_size, size(width), keys + begin, size(length), size(count),
                            size(n.head_size), size(seen), scores, size(seen));
      for (std::int64_t r = 0; r < count; ++r) {
        float* const row = scores + r * seen;
        const std::int64_t from = first_key(q + r) - begin, to = causal ? q + r + 1 - begin : seen;
        std::fill(row, row + from, 0.0f);
        std::fill(row + to, row + seen, 0.0f);
        steps_.scale(row + from, n.scale, size(to - from));
        steps_.softmax(row + from, size(to - from));
      }
      steps_.chain_products(
          scores, size(seen), values + begin * width, size(width), size(count), size(seen), size(n.head_size),
          context_.data() + (first_row + q) * n.context_width() + head * n.head_size, size(n.context_width()));
    }
}

// ---- MLP ----

Status Forward::run(const MlpStep& step, Lengths lengths, float* /*residual*/, InputObserver* observer) {
  const std::int64_t rows = rows_of(lengths);
  if (step.router) return run_experts(step, rows, observer);
  return run_expert(step.experts.front(), step.inner, x_.data(), rows, x_.data(), observer);
}

Status Forward::run_expert(const Expert& expert, std::int64_t inner, const float* x, std::int64_t rows, float* y,
                           InputObserver* observer) {
  const bool gated = network_->spec().gated;
  const std::int64_t width = gated ? 2 * inner : inner;
  float* to = inner_.data();
  for (const LinearModule& linear : expert.inputs) {
    if (Status s = run_linear(linear, x, network_->hidden, rows, to, width, observer); !s.ok()) return s;
    to += linear.out;
  }
  const Status done = for_rows(stream_, rows, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      float* const row = inner_.data() + r * width;
      if (gated)
        steps_.gated(network_->activation, row, row + inner, size(inner), row);
      else
        steps_.activate(network_->activation, row, size(inner));
    }
  });
  if (!done.ok()) return done;
  return run_linear(expert.output, inner_.data(), width, rows, y, network_->hidden, observer);
}

Status Forward::run_experts(const MlpStep& step, std::int64_t rows, InputObserver* observer) {
  const std::int64_t experts = step.router->out, hidden = network_->hidden;
  if (Status s = run_linear(*step.router, x_.data(), hidden, rows, logits_.data(), experts, observer); !s.ok())
    return s;
  // Who goes where: for each expert its rows and their weights, in order of rows.
  struct Choice {
    std::int64_t row;
    float weight;
  };
  std::vector<std::vector<Choice>> choices(size(experts));
  std::vector<std::int64_t> order(size(experts));
  for (std::int64_t r = 0; r < rows; ++r) {
    float* const shares = logits_.data() + r * experts;
    steps_.softmax(shares, size(experts));
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + step.chosen, order.end(), [&](std::int64_t a, std::int64_t b) {
      return shares[a] != shares[b] ? shares[a] > shares[b] : a < b;
    });
    float sum = 0;
    for (std::int64_t i = 0; i < step.chosen; ++i) sum += shares[order[size(i)]];
    for (std::int64_t i = 0; i < step.chosen; ++i) {
      const std::int64_t e = order[size(i)];
      choices[size(e)].push_back({r, step.renormalize ? shares[e] / sum : shares[e]});
    }
  }
  std::vector<float> sums(size(rows * hidden), 0.0f);
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::vector<Choice>& mine = choices[size(e)];
    const auto count = static_cast<std::int64_t>(mine.size());
    if (count == 0) continue;
    for (std::int64_t i = 0; i < count; ++i) {
      const float* const row = x_.data() + mine[size(i)].row * hidden;
      std::copy(row, row + hidden, chosen_.begin() + i * hidden);
    }
    if (Status s = run_expert(step.experts[size(e)], step.inner, chosen_.data(), count, expert_out_.data(), observer);
        !s.ok())
      return s;
    for (std::int64_t i = 0; i < count; ++i)
      steps_.multiply_add(sums.data() + mine[size(i)].row * hidden, mine[size(i)].weight,
                          expert_out_.data() + i * hidden, size(hidden));
  }
  std::copy(sums.begin(), sums.end(), x_.begin());
  return {};
}

}  // namespace kvant::model
