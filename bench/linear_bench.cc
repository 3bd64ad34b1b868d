#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/limit.h"
#include "bench/measure.h"
#include "bench/operators.h"
#include "bench/peers.h"
#include "bench/report.h"
#include "kvant/kvant.h"

namespace kvant::bench {
namespace {

constexpr std::int64_t kRows[] = {1, 16, 128, 512};
constexpr std::int64_t kMaxRows = 512;

struct Case {
  std::int64_t rows;          // M
  std::int64_t in_features;   // K
  std::int64_t out_features;  // N
  int threads;
};

void fill_uniform(std::int8_t* codes, std::int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  for (std::int64_t i = 0; i < n; ++i) codes[i] = static_cast<std::int8_t>(random() >> 24);
}

// Symmetric: the largest magnitude of the row becomes 127.
float quantize_row(const float* x, std::int64_t n, std::int8_t* codes) {
  float largest = 0;
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float scale = largest / 127;
  for (std::int64_t i = 0; i < n; ++i) codes[i] = static_cast<std::int8_t>(std::lrint(x[i] / scale));
  return scale;
}

// Weights, activations and peers of one K and N, for all M and thread counts.
class Layer {
 public:
  Layer(std::int64_t k, std::int64_t n) : in_features(k), out_features(n) {
    const auto weight_size = static_cast<std::size_t>(n * k), input_size = static_cast<std::size_t>(kMaxRows * k);
    bell = codes(buffers_[0], weight_size);
    uniform = codes(buffers_[1], weight_size);
    input = reinterpret_cast<float*>(buffers_[2].get(sizeof(float) * input_size));
    activation = codes(buffers_[3], input_size);
    full_range_activation = codes(buffers_[4], input_size);
    output = reinterpret_cast<float*>(buffers_[5].get(sizeof(float) * static_cast<std::size_t>(kMaxRows * n)));

    // All drawn anew: how often neighbouring weights are large together decides the speed of kernels with 16-bit sums.
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    std::vector<float> row(static_cast<std::size_t>(k));
    weight_scale.resize(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      for (float& x : row) x = normal(random);
      weight_scale[static_cast<std::size_t>(i)] = quantize_row(row.data(), k, bell + i * k);
    }
    activation_scale.resize(kMaxRows);
    for (std::int64_t i = 0; i < kMaxRows; ++i) {
      for (std::int64_t j = 0; j < k; ++j) input[i * k + j] = normal(random);
      activation_scale[static_cast<std::size_t>(i)] = quantize_row(input + i * k, k, activation + i * k);
    }
    fill_uniform(uniform, n * k, 12);
    fill_uniform(full_range_activation, kMaxRows * k, 13);
    peers = make_peers({k, n, bell, weight_scale.data()});
    check_sums();
  }

  // Packed on first use, so that a refusal is reported by the case that meets it.
  const Result<PackedWeight>& packed_bell() { return packed(packed_bell_, bell); }
  const Result<PackedWeight>& packed_uniform() { return packed(packed_uniform_, uniform); }
  // The bell-shaped weight dequantized, in floating point.
  const Result<PackedF32Weight>& packed_f32() {
    return packed_floats<float>(packed_f32_, [](float w) { return w; });
  }
  const Result<PackedF32Weight>& packed_bf16() { return packed_floats<BFloat16>(packed_bf16_, to_bfloat16); }

  // Whether a peer's sums of M rows are right where codes have their full range: "exact", "wrong", or "f32" for one
  // that does not multiply codes.
  const std::string& sums(const Peer& peer, std::int64_t rows) const { return sums_.at({peer.name(), rows}); }

  std::int64_t in_features;
  std::int64_t out_features;
  std::int8_t* bell;     // [N, K]
  std::int8_t* uniform;  // [N, K]
  float* input;          // [kMaxRows, K]
  std::int8_t* activation;
  std::int8_t* full_range_activation;
  float* output;  // [kMaxRows, N]
  std::vector<float> weight_scale;
  std::vector<float> activation_scale;
  std::vector<std::unique_ptr<Peer>> peers;

 private:
  static std::int8_t* codes(Buffer& buffer, std::size_t size) {
    return reinterpret_cast<std::int8_t*>(buffer.get(size));
  }

  const Result<PackedWeight>& packed(std::optional<Result<PackedWeight>>& kept, const std::int8_t* weight) const {
    if (!kept)
      kept.emplace(PackedWeight::pack(Stream::cpu(), TensorRef<std::int8_t>(weight, {out_features, in_features})));
    return *kept;
  }

  template <class W, class Convert>
  const Result<PackedF32Weight>& packed_floats(std::optional<Result<PackedF32Weight>>& kept,
                                               const Convert& convert) const {
    if (kept) return *kept;
    std::vector<W> weight(static_cast<std::size_t>(out_features * in_features));
    for (std::size_t i = 0; i < weight.size(); ++i)
      weight[i] = convert(weight_scale[i / static_cast<std::size_t>(in_features)] * static_cast<float>(bell[i]));
    kept.emplace(PackedF32Weight::pack(Stream::cpu(), TensorRef<W>(weight.data(), {out_features, in_features})));
    return *kept;
  }

  // For each M, because few rows may take another kernel.
  void check_sums() {
    const std::vector<float> ones(static_cast<std::size_t>(out_features), 1.0f);
    for (const auto& peer : make_peers({in_features, out_features, uniform, ones.data()}))
      for (const std::int64_t rows : kRows) {
        std::string& found = sums_[{peer->name(), rows}];
        if (!peer->multiplies_codes()) {
          found = "f32";
          continue;
        }
        peer->prepare(rows, full_range_activation, output);
        peer->run();
        found = are_exact(rows, peer->activation_offset()) ? "exact" : "wrong";
      }
  }

  // Some outputs beside sums in 64 bits. Sums of random codes are small enough for f32 to hold them exactly.
  bool are_exact(std::int64_t rows, int offset) const {
    std::mt19937 random(14);
    for (int i = 0; i < 256; ++i) {
      const std::int64_t m = static_cast<std::int64_t>(random()) % rows;
      const std::int64_t n = static_cast<std::int64_t>(random()) % out_features;
      std::int64_t sum = 0;
      for (std::int64_t k = 0; k < in_features; ++k)
        sum += std::int64_t{full_range_activation[m * in_features + k] + offset} * uniform[n * in_features + k];
      if (output[m * out_features + n] != static_cast<float>(sum)) return false;
    }
    return true;
  }

  Buffer buffers_[6];
  std::optional<Result<PackedWeight>> packed_bell_;
  std::optional<Result<PackedWeight>> packed_uniform_;
  std::optional<Result<PackedF32Weight>> packed_f32_;
  std::optional<Result<PackedF32Weight>> packed_bf16_;
  std::map<std::pair<std::string, std::int64_t>, std::string> sums_;  // by peer and M
};

// One at a time: the largest takes some 900 MB.
Layer& layer_of(std::int64_t k, std::int64_t n) {
  static std::unique_ptr<Layer> layer;
  if (!layer || layer->in_features != k || layer->out_features != n) {
    layer.reset();
    layer = std::make_unique<Layer>(k, n);
  }
  return *layer;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Something to time, and the fastest call so far.
struct Contestant {
  std::function<void()> run;
  double best = 1e9;
};

// All take turns, so that what disturbs one disturbs the others. A turn is one call, or as many as fit its time: the
// first ones bring back to the cache what the turns of others threw out.
void compete(const std::vector<Contestant*>& contestants) {
  constexpr double kTurn = 0.02, kAll = 6;
  constexpr int kMinRounds = 3;
  const double begin = now();
  for (int round = 0; round < kMinRounds || now() - begin < kAll; ++round)
    for (Contestant* contestant : contestants) {
      const double turn = now();
      do contestant->best = std::min(contestant->best, seconds_of(contestant->run, 1));
      while (now() - turn < kTurn);
    }
}

// A plan of kvant's with its arguments and scratch memory, and the row it will fill.
struct Entry {
  Row row;
  Contestant contestant;
  int weight_bytes;  // of an element
};

void run_case(benchmark::State& state, const Case& c) {
  const std::int64_t m = c.rows, k = c.in_features, n = c.out_features;
  Layer& layer = layer_of(k, n);
  const Stream stream = Stream::cpu(c.threads);
  const Shape input_shape = {m, k}, weight_shape = {n, k}, output_shape = {m, n};
  const auto refuse = [&](const Status& status) { state.SkipWithError(std::string(status.message()).c_str()); };
  if (!layer.packed_bell().ok()) return refuse(layer.packed_bell().status());
  if (!layer.packed_uniform().ok()) return refuse(layer.packed_uniform().status());
  if (!layer.packed_f32().ok()) return refuse(layer.packed_f32().status());
  if (!layer.packed_bf16().ok()) return refuse(layer.packed_bf16().status());

  const auto w8a8 = W8A8LinearPlan<float>::select(stream, {.max_rows = m, .in_features = k, .out_features = n});
  if (!w8a8.ok()) return refuse(w8a8.status());
  const auto quantized =
      QuantizedLinearPlan<float>::select(stream, {.max_rows = m, .in_features = k, .out_features = n});
  if (!quantized.ok()) return refuse(quantized.status());
  const auto f32 = F32LinearPlan<float>::select(stream, {.max_rows = m, .in_features = k, .out_features = n});
  if (!f32.ok()) return refuse(f32.status());
  const auto bf16 = F32LinearPlan<BFloat16>::select(stream, {.max_rows = m, .in_features = k, .out_features = n});
  if (!bf16.ok()) return refuse(bf16.status());
  std::vector<std::byte> scratch(
      std::max({w8a8->workspace_size(), quantized->workspace_size(), f32->workspace_size()}));
  const Workspace workspace{scratch.data(), scratch.size()};

  std::vector<Entry> entries;
  Status failed;
  const auto enter = [&](const char* op, const char* mode, const char* in, int input_bytes, int weight_bytes,
                         const auto& plan, const auto& args) {
    Row row;
    row.op = op;
    row.mode = mode;
    row.granularity = "token";
    row.direction = "forward";
    row.in = in;
    row.out = "f32";
    row.numerics = "exact";
    row.isa = name(plan.sku().arch);
    row.shape = {m, k, n};
    row.threads = c.threads;
    row.macs = static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(n);
    row.bytes = static_cast<double>(input_bytes * m * k + weight_bytes * n * k + 4 * m * n);
    entries.push_back({std::move(row),
                       {[&, args] {
                         if (const Status status = plan.run(stream, workspace, args); !status.ok()) failed = status;
                       }},
                       weight_bytes});
  };
  W8A8LinearPlan<float>::Args args{.activation = TensorRef<std::int8_t>(layer.activation, input_shape),
                                   .act_scale = TensorRef<float>(layer.activation_scale.data(), {m}),
                                   .packed_weight = &*layer.packed_bell(),
                                   .weight_scale = TensorRef<float>(layer.weight_scale.data(), {n}),
                                   .output = {layer.output, output_shape}};
  enter("w8a8_linear", "bell", "s8", 1, 1, *w8a8, args);
  args.packed_weight = &*layer.packed_uniform();
  enter("w8a8_linear", "uniform", "s8", 1, 1, *w8a8, args);
  if (k == 4096 && n == 4096) {
    args.packed_weight = nullptr;
    args.weight = {layer.bell, weight_shape};
    enter("w8a8_linear", "raw", "s8", 1, 1, *w8a8, args);
  }
  enter("quantized_linear", "bell", "f32", 4, 1, *quantized,
        QuantizedLinearPlan<float>::Args{.input = {layer.input, input_shape},
                                         .packed_weight = &*layer.packed_bell(),
                                         .weight_scale = TensorRef<float>(layer.weight_scale.data(), {n}),
                                         .output = {layer.output, output_shape}});
  enter("f32_linear", "f32", "f32", 4, 4, *f32,
        F32LinearArgs<float>{.input = {layer.input, input_shape},
                             .packed_weight = &*layer.packed_f32(),
                             .output = {layer.output, output_shape}});
  enter("f32_linear", "bf16", "f32", 4, 2, *bf16,
        F32LinearArgs<BFloat16>{.input = {layer.input, input_shape},
                                .packed_weight = &*layer.packed_bf16(),
                                .output = {layer.output, output_shape}});

  std::vector<Contestant> peers;
  std::map<int, Contestant> limits;  // by the bytes of a weight's element
  for (const auto& peer : layer.peers) {
    peer->set_threads(c.threads);  // first: primitives are made for as many threads as there are
    peer->prepare(m, layer.activation, layer.output);
    peers.push_back({[&peer] { peer->run(); }});
  }
  // One row reads every weight for one multiplication each, which takes longer than the multiplication.
  const Traffic readings[] = {{layer.bell, nullptr, nullptr, n * k, 2, 0},
                              {layer.packed_bf16()->bytes().data(), nullptr, nullptr, n * k, 4, 0},
                              {layer.packed_f32()->bytes().data(), nullptr, nullptr, n * k, 8, 0}};
  if (m == 1)
    for (const Traffic& reading : readings)
      limits[reading.read_half_bytes / 2] = {[&] { move(stream, reading, Stores::plain); }};

  // A peer comes after each of ours.
  std::vector<Contestant*> order;
  for (std::size_t i = 0; i < std::max(entries.size(), peers.size()); ++i) {
    if (i < entries.size()) order.push_back(&entries[i].contestant);
    if (i < peers.size()) order.push_back(&peers[i]);
  }
  for (auto& [bytes, limit] : limits) order.push_back(&limit);

  for ([[maybe_unused]] auto _ : state) {
    compete(order);
    state.SetIterationTime(entries.front().contestant.best);
  }
  if (!failed.ok()) return refuse(failed);
  for (Entry& entry : entries) {
    entry.row.seconds = entry.contestant.best;
    if (const auto limit = limits.find(entry.weight_bytes); limit != limits.end())
      entry.row.limit_seconds = limit->second.best;
    for (std::size_t i = 0; i < peers.size(); ++i) {
      const Peer& peer = *layer.peers[i];
      entry.row.peers.push_back({peer.name(), peers[i].best, layer.sums(peer, m)});
    }
    add(std::move(entry.row));
  }
}

}  // namespace

void register_linear() {
  const std::pair<std::int64_t, std::int64_t> layers[] = {{4096, 4096}, {1024, 4096}, {4096, 11008}};
  for (const auto& [k, n] : layers)
    for (const int threads : thread_counts())
      for (const std::int64_t m : kRows) {
        const Case c{m, k, n, threads};
        benchmark::RegisterBenchmark(fmt::format("linear/{}/threads{}", shape_name({m, k, n}), threads).c_str(),
                                     [c](benchmark::State& state) { run_case(state, c); })
            ->UseManualTime()
            ->Iterations(1);
      }
}

}  // namespace kvant::bench
