// The forward pass of every family beside the same steps as plain loops in double precision, and its promise: the same
// bits for any number of threads, any batch and any instruction set.
#include "model/forward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "kvant/element.h"
#include "tests/support/float_grid_reference.h"
#include "tests/support/isas.h"
#include "tests/support/network_fixture.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

const std::vector<std::int32_t> kIds = {3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32, 3, 8, 46, 26, 4, 3, 38, 32, 60, 0, 11};
const std::vector<std::int64_t> kLengths = {13, 1, 9};

// What a network computes, stated once more: dense loops, one sequence, no steps.
class PlainModel {
 public:
  explicit PlainModel(const NetworkFixture& fixture) : config_(fixture.files().config) {
    for (const FixtureTensor& tensor : fixture.files().shards[0]) {
      Row values;
      const std::size_t width = tensor.dtype == io::DType::f32 ? 4 : 2;
      for (std::size_t i = 0; i < tensor.bytes.size(); i += width) {
        float value = 0;
        if (width == 4)
          std::memcpy(&value, &tensor.bytes[i], 4);
        else {
          BFloat16 narrow{};
          std::memcpy(&narrow, &tensor.bytes[i], 2);
          value = to_float(narrow);
        }
        values.push_back(static_cast<double>(value));
      }
      tensors_[tensor.name] = std::move(values);
      shapes_[tensor.name] = tensor.shape;
    }
  }

  bool has(const std::string& name) const { return tensors_.contains(name); }

  Row linear(const std::string& module, const Row& x, bool conv1d = false) const {
    const Row& w = tensors_.at(module + ".weight");
    const std::size_t in = x.size(), out = w.size() / in;
    Row y(out);
    for (std::size_t n = 0; n < out; ++n) {
      for (std::size_t k = 0; k < in; ++k) y[n] += x[k] * (conv1d ? w[k * out + n] : w[n * in + k]);
      if (has(module + ".bias")) y[n] += tensors_.at(module + ".bias")[n];
    }
    return y;
  }

  Row norm(const std::string& module, const Row& x, bool layer, double epsilon) const {
    double mean = 0, variance = 0;
    if (layer) mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
    for (const double value : x) variance += (value - mean) * (value - mean) / static_cast<double>(x.size());
    Row y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      y[i] = (x[i] - mean) / std::sqrt(variance + epsilon) * tensors_.at(module + ".weight")[i];
      if (has(module + ".bias")) y[i] += tensors_.at(module + ".bias")[i];
    }
    return y;
  }

  // Of queries, keys and values with `size` numbers in a head.
  static Rows attend(const Rows& q, const Rows& k, const Rows& v, std::size_t size, bool causal, std::size_t window) {
    const std::size_t heads = q[0].size() / size, share = heads / (k[0].size() / size);
    Rows out(q.size(), Row(q[0].size()));
    for (std::size_t h = 0; h < heads; ++h)
      for (std::size_t i = 0; i < q.size(); ++i) {
        Row scores(k.size(), -INFINITY);
        for (std::size_t j = 0; j < k.size(); ++j) {
          if ((causal && j > i) || (window > 0 && j + window <= i)) continue;
          scores[j] = 0;
          for (std::size_t d = 0; d < size; ++d) scores[j] += q[i][h * size + d] * k[j][h / share * size + d];
          scores[j] /= std::sqrt(static_cast<double>(size));
        }
        const double largest = *std::max_element(scores.begin(), scores.end());
        double sum = 0;
        for (double& score : scores) sum += score = std::exp(score - largest);
        for (std::size_t j = 0; j < k.size(); ++j)
          for (std::size_t d = 0; d < size; ++d) out[i][h * size + d] += scores[j] / sum * v[j][h / share * size + d];
      }
    return out;
  }

  static void rotate(Row& heads, std::size_t size, std::size_t position, double theta) {
    for (std::size_t h = 0; h < heads.size(); h += size)
      for (std::size_t i = 0; i < size / 2; ++i) {
        const double angle =
            static_cast<double>(position) * std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(size));
        const double a = heads[h + i], b = heads[h + i + size / 2];
        heads[h + i] = a * std::cos(angle) - b * std::sin(angle);
        heads[h + i + size / 2] = b * std::cos(angle) + a * std::sin(angle);
      }
  }

  // What an FP8 cache gives back, where the model has a scale for it.
  void through_cache(const std::string& scale, Row& x) const {
    if (!has(scale)) return;
    const double s = tensors_.at(scale)[0];
    const GridReference grid(ElementKind::e4m3);
    for (double& value : x) value = s * grid.number_of(grid.code_of(value / s, true));
  }

  Row row_of(const std::string& table, std::size_t row) const {
    const std::size_t width = shapes_.at(table + ".weight")[1];
    const Row& all = tensors_.at(table + ".weight");
    return {all.begin() + static_cast<std::ptrdiff_t>(row * width),
            all.begin() + static_cast<std::ptrdiff_t>((row + 1) * width)};
  }

  static void add(Row& to, const Row& x) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += x[i];
  }

  static double silu(double x) { return x / (1 + std::exp(-x)); }

  Rows llama(const std::vector<std::int32_t>& ids) const {
    constexpr std::size_t kSize = NetworkFixture::kHidden / 4;
    const double eps = config_["rms_norm_eps"];
    const std::size_t window = config_.contains("sliding_window") ? config_["sliding_window"].get<std::size_t>() : 0;
    Rows x;
    for (const std::int32_t id : ids) x.push_back(row_of("model.embed_tokens", static_cast<std::size_t>(id)));
    for (std::uint64_t layer = 0; layer < NetworkFixture::kLayers; ++layer) {
      const std::string at = fmt::format("model.layers.{}.", layer);
      Rows q, k, v;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const Row n = norm(at + "input_layernorm", x[i], false, eps);
        q.push_back(linear(at + "self_attn.q_proj", n));
        k.push_back(linear(at + "self_attn.k_proj", n));
        v.push_back(linear(at + "self_attn.v_proj", n));
        for (const auto& [row, name] : {std::pair{&q.back(), "q_norm"}, std::pair{&k.back(), "k_norm"}}) {
          const std::string module = at + "self_attn." + name;
          if (has(module + ".weight"))
            for (std::size_t h = 0; h < row->size(); h += kSize) {
              const auto begin = row->begin() + static_cast<std::ptrdiff_t>(h);
              const Row normed = norm(module, Row(begin, begin + kSize), false, eps);
              std::copy(normed.begin(), normed.end(), begin);
            }
          rotate(*row, kSize, i, config_["rope_theta"]);
        }
        through_cache(at + "self_attn.k_scale", k.back());
        through_cache(at + "self_attn.v_scale", v.back());
      }
      const Rows seen = attend(q, k, v, kSize, true, window);
      for (std::size_t i = 0; i < x.size(); ++i) {
        add(x[i], linear(at + "self_attn.o_proj", seen[i]));
        const Row n = norm(at + "post_attention_layernorm", x[i], false, eps);
        add(x[i], has(at + "mlp.gate_proj.weight")
                      ? mlp(at + "mlp.gate_proj", at + "mlp.up_proj", at + "mlp.down_proj", n)
                      : experts(at + "block_sparse_moe.", n));
      }
    }
    for (Row& row : x) row = linear("lm_head", norm("model.norm", row, false, eps));
    return x;
  }

  Row mlp(const std::string& gate, const std::string& up, const std::string& down, const Row& x) const {
    Row g = linear(gate, x);
    const Row u = linear(up, x);
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = silu(g[i]) * u[i];
    return linear(down, g);
  }

  // The best two, whose shares are made to add up to one.
  Row experts(const std::string& at, const Row& x) const {
    const Row logits = linear(at + "gate", x);
    std::vector<std::size_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
    const double first = 1 / (1 + std::exp(logits[order[1]] - logits[order[0]]));
    Row y(x.size());
    for (const auto& [expert, share] : {std::pair{order[0], first}, std::pair{order[1], 1 - first}}) {
      const std::string e = fmt::format("{}experts.{}.", at, expert);
      Row out = mlp(e + "w1", e + "w3", e + "w2", x);
      for (double& value : out) value *= share;
      add(y, out);
    }
    return y;
  }

  // GPT-2, OPT and BERT: LayerNorm before or after each half of a block, learned positions.
  struct Classic {
    std::string tokens = {}, positions = {}, types = {}, embedding_norm = {}, blocks = {};
    std::size_t first_position = 0;
    std::vector<std::string> qkv = {};
    std::string o = {}, attention_norm = {}, up = {}, down = {}, mlp_norm = {}, final_norm = {};
    double epsilon = 1e-5;
    bool norm_before = true, causal = true, conv1d = false, head = true;
    std::function<double(double)> activation = {};
  };
  Rows classic(const Classic& c, const std::vector<std::int32_t>& ids) const {
    Rows x;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      x.push_back(row_of(c.tokens, static_cast<std::size_t>(ids[i])));
      add(x[i], row_of(c.positions, i + c.first_position));
      if (!c.types.empty()) add(x[i], row_of(c.types, 0));
      if (!c.embedding_norm.empty()) x[i] = norm(c.embedding_norm, x[i], true, c.epsilon);
    }
    for (std::uint64_t layer = 0; layer < NetworkFixture::kLayers; ++layer) {
      const std::string at = fmt::format("{}{}.", c.blocks, layer);
      const auto before = [&](const std::string& name, const Row& row) {
        return c.norm_before ? norm(at + name, row, true, c.epsilon) : row;
      };
      const auto after = [&](const std::string& name, Row& row) {
        if (!c.norm_before) row = norm(at + name, row, true, c.epsilon);
      };
      Rows parts[3];
      for (const Row& row : x) {
        Row all;
        for (const std::string& name : c.qkv) {
          const Row y = linear(at + name, before(c.attention_norm, row), c.conv1d);
          all.insert(all.end(), y.begin(), y.end());
        }
        for (std::size_t p = 0; p < 3; ++p)
          parts[p].emplace_back(all.begin() + static_cast<std::ptrdiff_t>(p * row.size()),
                                all.begin() + static_cast<std::ptrdiff_t>((p + 1) * row.size()));
      }
      const Rows seen = attend(parts[0], parts[1], parts[2], NetworkFixture::kHidden / 4, c.causal, 0);
      for (std::size_t i = 0; i < x.size(); ++i) {
        add(x[i], linear(at + c.o, seen[i], c.conv1d));
        after(c.attention_norm, x[i]);
        Row inner = linear(at + c.up, before(c.mlp_norm, x[i]), c.conv1d);
        for (double& value : inner) value = c.activation(value);
        add(x[i], linear(at + c.down, inner, c.conv1d));
        after(c.mlp_norm, x[i]);
      }
    }
    for (Row& row : x) {
      if (!c.final_norm.empty()) row = norm(c.final_norm, row, true, c.epsilon);
      if (c.head) row = linear(c.tokens, row);
    }
    return x;
  }

 private:
  io::Json config_;
  std::map<std::string, Row> tensors_;
  std::map<std::string, std::vector<std::uint64_t>> shapes_;
};

// Runs a model; sequences go through blocks `together` at a time.
std::vector<float> run(const fs::path& folder, const Stream& stream, std::size_t together = 99) {
  const auto weights = model::Weights::open(folder);
  must(weights.status());
  const auto network = model::make_network(weights->config(), weights->modules());
  must(network.status());
  const std::int64_t rows = model::rows_of(kLengths);
  auto forward = model::Forward::make(stream, *weights, *network, rows);
  must(forward.status());
  std::vector<float> states(static_cast<std::size_t>(rows * network->hidden));
  must(forward->check_text(kIds, kLengths));
  must(forward->embed(kIds, kLengths, states.data()));
  for (std::size_t block = 0; block < network->blocks.size(); ++block) {
    must(forward->load_block(block));
    float* at = states.data();
    for (std::size_t first = 0; first < kLengths.size(); first += together) {
      const auto some = std::span(kLengths).subspan(first, std::min(together, kLengths.size() - first));
      must(forward->run_block(some, at));
      at += model::rows_of(some) * network->hidden;
    }
  }
  must(forward->finish(states.data(), rows));
  if (!network->head) return states;
  must(forward->load_head(rows));
  std::vector<float> logits(static_cast<std::size_t>(rows * forward->vocabulary()));
  must(forward->run_head(states.data(), rows, logits.data()));
  return logits;
}

void expect_near(const std::vector<float>& got, const NetworkFixture& fixture,
                 const std::function<Rows(const PlainModel&, const std::vector<std::int32_t>&)>& reference) {
  const PlainModel plain(fixture);
  std::size_t at = 0;
  auto begin = kIds.begin();
  for (const std::int64_t length : kLengths) {
    const Rows want = reference(plain, {begin, begin + length});
    begin += length;
    double largest = 0;
    for (const Row& row : want)
      for (const double value : row) largest = std::max(largest, std::fabs(value));
    for (const Row& row : want)
      for (const double value : row) {
        ASSERT_LT(at, got.size());
        ASSERT_NEAR(static_cast<double>(got[at]), value, 1e-5 * largest) << "at " << at;
        ++at;
      }
  }
  EXPECT_EQ(at, got.size());
}

void expect_same_bits(const NetworkFixture& fixture,
                      const std::function<Rows(const PlainModel&, const std::vector<std::int32_t>&)>& reference) {
  const ScratchFolder scratch;
  fixture.files().write(scratch / "model");
  const std::vector<float> one = run(scratch / "model", Stream::cpu(1));
  expect_near(one, fixture, reference);
  EXPECT_EQ(run(scratch / "model", Stream::cpu(3)), one) << "with three threads";
  EXPECT_EQ(run(scratch / "model", Stream::cpu(2), 1), one) << "sequence by sequence";
  for (const ArchSku isa : compiled_isas()) {
    ASSERT_EQ(setenv("KVANT_FORCE_ISA", std::string(name(isa)).c_str(), 1), 0);
    EXPECT_EQ(run(scratch / "model", Stream::cpu(1)), one) << name(isa);
    ASSERT_EQ(unsetenv("KVANT_FORCE_ISA"), 0);
  }
}

Rows as_llama(const PlainModel& plain, const std::vector<std::int32_t>& ids) { return plain.llama(ids); }

TEST(Forward, OfLlama) { expect_same_bits(llama_model(llama_config()), as_llama); }
TEST(Forward, OfLlamaInBFloat16) { expect_same_bits(llama_model(llama_config(), io::DType::bf16), as_llama); }
TEST(Forward, OfQwen2WithBiases) { expect_same_bits(llama_model(llama_config("qwen2")), as_llama); }
TEST(Forward, OfQwen3WithNormsOfHeads) { expect_same_bits(llama_model(llama_config("qwen3")), as_llama); }

// Scales of powers of two and others; one is so small that most keys are clipped.
NetworkFixture with_fp8_cache(NetworkFixture fixture) {
  const double scales[] = {1.0 / 64, 0.011, 0.0005, 0.25};
  std::size_t next = 0;
  for (std::uint64_t layer = 0; layer < NetworkFixture::kLayers; ++layer)
    for (const char* name : {"k_scale", "v_scale"})
      fixture.files().add(f32_tensor(fmt::format("model.layers.{}.self_attn.{}", layer, name), {1}, {scales[next++]}));
  io::Json& quantized = fixture.files().config["quantization_config"] = config_json(w8a8(), {"re:.*"});
  quantized["kv_cache_scheme"] = {
      {"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}, {"symmetric", true}, {"dynamic", false}};
  return fixture;
}

TEST(Forward, OfFp8KeysAndValues) {
  expect_same_bits(with_fp8_cache(llama_model(llama_config())), as_llama);
  expect_same_bits(with_fp8_cache(llama_model(llama_config("qwen3"))), as_llama);
}

TEST(Forward, RefusesFp8KeysWithoutTheirScales) {
  for (const char* const name : {"model.layers.1.self_attn.k_scale", "model.layers.1.self_attn.v_scale"}) {
    const ScratchFolder scratch;
    NetworkFixture fixture = with_fp8_cache(llama_model(llama_config()));
    const auto load = [&] {
      fixture.files().write(scratch / "model");
      const auto weights = model::Weights::open(scratch / "model");
      must(weights.status());
      const auto network = model::make_network(weights->config(), weights->modules());
      must(network.status());
      auto forward = model::Forward::make(Stream::cpu(1), *weights, *network, 4);
      must(forward.status());
      must(forward->load_block(0));
      return forward->load_block(1);
    };
    FixtureTensor* const scale = fixture.files().find(name);
    for (const double bad : {0.0, -1.0, HUGE_VAL, std::nan("")}) {
      *scale = f32_tensor(name, {1}, {bad});
      EXPECT_TRUE(refused(load(), StatusCode::InvalidProblem, {name, "must be finite and positive"})) << bad;
    }
    *scale = f32_tensor(name, {2}, {1, 1});
    EXPECT_TRUE(refused(load(), StatusCode::InvalidProblem, {name, "[2]"}));
    fixture.files().remove(name);
    EXPECT_TRUE(refused(load(), StatusCode::InvalidProblem, {"there is no tensor", name}));
  }
}

TEST(Forward, OfMistralSeesAWindow) {
  io::Json config = llama_config("mistral");
  config["sliding_window"] = 5;
  expect_same_bits(llama_model(config), as_llama);
}

TEST(Forward, OfMixtralChoosesExperts) { expect_same_bits(mixtral_model(), as_llama); }

TEST(Forward, OfGpt2ReadsConv1d) {
  const auto gelu = [](double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
  };
  expect_same_bits(gpt2_model(), [&](const PlainModel& plain, const std::vector<std::int32_t>& ids) {
    return plain.classic({.tokens = "transformer.wte",
                          .positions = "transformer.wpe",
                          .blocks = "transformer.h.",
                          .qkv = {"attn.c_attn"},
                          .o = "attn.c_proj",
                          .attention_norm = "ln_1",
                          .up = "mlp.c_fc",
                          .down = "mlp.c_proj",
                          .mlp_norm = "ln_2",
                          .final_norm = "transformer.ln_f",
                          .conv1d = true,
                          .activation = gelu},
                         ids);
  });
}

TEST(Forward, OfOptWithNormsBeforeAndAfter) {
  for (const bool before : {true, false})
    expect_same_bits(opt_model(before), [&](const PlainModel& plain, const std::vector<std::int32_t>& ids) {
      return plain.classic({.tokens = "model.decoder.embed_tokens",
                            .positions = "model.decoder.embed_positions",
                            .blocks = "model.decoder.layers.",
                            .first_position = 2,
                            .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                            .o = "self_attn.out_proj",
                            .attention_norm = "self_attn_layer_norm",
                            .up = "fc1",
                            .down = "fc2",
                            .mlp_norm = "final_layer_norm",
                            .final_norm = before ? "model.decoder.final_layer_norm" : "",
                            .norm_before = before,
                            .activation = [](double x) { return std::max(x, 0.0); }},
                           ids);
    });
}

TEST(Forward, OfBertSeesBothWays) {
  expect_same_bits(bert_model(), [](const PlainModel& plain, const std::vector<std::int32_t>& ids) {
    return plain.classic({.tokens = "embeddings.word_embeddings",
                          .positions = "embeddings.position_embeddings",
                          .types = "embeddings.token_type_embeddings",
                          .embedding_norm = "embeddings.LayerNorm",
                          .blocks = "encoder.layer.",
                          .qkv = {"attention.self.query", "attention.self.key", "attention.self.value"},
                          .o = "attention.output.dense",
                          .attention_norm = "attention.output.LayerNorm",
                          .up = "intermediate.dense",
                          .down = "output.dense",
                          .mlp_norm = "output.LayerNorm",
                          .epsilon = 1e-12,
                          .norm_before = false,
                          .causal = false,
                          .head = false,
                          .activation = [](double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }},
                         ids);
  });
}

// The model with all linears of its blocks quantized that fit the scheme.
CheckpointFixture quantized_model(const NetworkFixture& fixture, const format::Scheme& scheme) {
  CheckpointFixture files;
  files.config = fixture.files().config;
  std::vector<std::string> ignore = {"lm_head"};
  for (const FixtureTensor& tensor : fixture.files().shards[0]) {
    if (!tensor.name.ends_with("_proj.weight")) {
      files.add(tensor);
      continue;
    }
    FixtureLayer layer;
    layer.module = tensor.name.substr(0, tensor.name.rfind('.'));
    layer.rows = tensor.shape[0];
    layer.columns = tensor.shape[1];
    if (layer.columns % static_cast<std::uint64_t>(format::column_unit(scheme.weights)) != 0) {
      files.add(tensor);
      ignore.push_back(layer.module);
      continue;
    }
    std::vector<float> values(layer.rows * layer.columns);
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    layer.weights.assign(values.begin(), values.end());
    layer.quantized = layer.weights;
    quantize_plainly(layer, scheme);
    files.add(quantized_tensors(layer, scheme));
  }
  files.config["quantization_config"] = config_json(scheme, ignore);
  return files;
}

// linear_layer_test.cc says what each linear makes; here all of them are in the model.
TEST(Forward, OfQuantizedModels) {
  const NetworkFixture fixture = llama_model(llama_config());
  const ScratchFolder scratch;
  fixture.files().write(scratch / "plain");
  const std::vector<float> plain = run(scratch / "plain", Stream::cpu(1));
  double power = 0;
  for (const float value : plain) power += static_cast<double>(value) * static_cast<double>(value);
  // What is stored for static activations is not made for this model: it clips.
  const auto least_db = [](const format::Scheme& scheme) {
    if (scheme.needs_statistics()) return 0;
    const bool four = bits_per_element(scheme.weights.code) == 4 ||
                      (scheme.activations && bits_per_element(scheme.activations->code) == 4);
    return four ? 6 : 20;
  };
  for (const format::Scheme& scheme : all_schemes(16)) {
    SCOPED_TRACE(format::describe(scheme));
    quantized_model(fixture, scheme).write(scratch / "quantized");
    const std::vector<float> one = run(scratch / "quantized", Stream::cpu(1));
    ASSERT_EQ(one.size(), plain.size());
    double noise = 0;
    for (std::size_t i = 0; i < one.size(); ++i) {
      const double error = static_cast<double>(one[i]) - static_cast<double>(plain[i]);
      noise += error * error;
    }
    EXPECT_GT(noise, 0);
    EXPECT_GT(10 * std::log10(power / noise), least_db(scheme));
    EXPECT_EQ(run(scratch / "quantized", Stream::cpu(3)), one) << "with three threads";
    EXPECT_EQ(run(scratch / "quantized", Stream::cpu(2), 1), one) << "sequence by sequence";
    for (const ArchSku isa : compiled_isas()) {
      ASSERT_EQ(setenv("KVANT_FORCE_ISA", std::string(name(isa)).c_str(), 1), 0);
      EXPECT_EQ(run(scratch / "quantized", Stream::cpu(1)), one) << name(isa);
      ASSERT_EQ(unsetenv("KVANT_FORCE_ISA"), 0);
    }
  }
}

TEST(Forward, RefusesIdsAndPositionsThatTheTablesLack) {
  const ScratchFolder scratch;
  opt_model(true).files().write(scratch / "model");
  const auto weights = model::Weights::open(scratch / "model");
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  const auto network = model::make_network(weights->config(), weights->modules());
  ASSERT_TRUE(network.ok()) << network.status().message();
  const auto forward = model::Forward::make(Stream::cpu(1), *weights, *network, 64);
  ASSERT_TRUE(forward.ok()) << forward.status().message();
  const std::vector<std::int32_t> ids(41, 60), wrong = {1, 61};
  const std::int64_t long_one = 41, two = 2;
  EXPECT_EQ(forward->check_text(wrong, {&two, 1}).message(),
            "token 1 has the id 61, must be below 61, the rows of 'model.decoder.embed_tokens'");
  EXPECT_EQ(forward->check_text(ids, {&long_one, 1}).message(),
            "a sequence has 41 tokens, 'model.decoder.embed_positions' has positions for 40");
}

}  // namespace
}  // namespace kvant::tests
