// A small Llama-like GGUF: every tensor in F32 with numbers that tell their places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/text.h"
#include "tests/support/gguf_writer.h"

namespace kvant::tests {

struct GgufFixture {
  std::string architecture = "llama";
  std::uint32_t layers = 2, hidden = 64, heads = 4, kv_heads = 2, head = 16, intermediate = 96, vocabulary = 40;
  std::uint32_t experts = 0, expert_intermediate = 32;
  bool qkv_bias = false, output_bias = false, head_norms = false, output = true;

  // Exact in f32, different in every tensor.
  static std::vector<float> numbers(std::size_t count, std::size_t seed) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>((seed * 7919 + i) % 65536) / 256.0f - 100.0f;
    return values;
  }
  static std::string bytes_of(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }

  GgufWriter writer() const {
    GgufWriter made;
    const auto key = [&](const char* name) { return architecture + "." + name; };
    made.set("general.architecture", gguf_value(architecture.c_str()));
    made.set(key("block_count"), gguf_value(layers));
    made.set(key("context_length"), gguf_value(std::uint32_t{512}));
    made.set(key("embedding_length"), gguf_value(hidden));
    made.set(key("feed_forward_length"), gguf_value(intermediate));
    made.set(key("attention.head_count"), gguf_value(heads));
    made.set(key("attention.head_count_kv"), gguf_value(kv_heads));
    made.set(key("attention.key_length"), gguf_value(head));
    made.set(key("attention.layer_norm_rms_epsilon"), gguf_value(1e-5f));
    made.set(key("rope.freq_base"), gguf_value(100000.0f));
    if (experts > 0) {
      made.set(key("expert_count"), gguf_value(experts));
      made.set(key("expert_used_count"), gguf_value(std::uint32_t{2}));
      made.set(key("expert_feed_forward_length"), gguf_value(expert_intermediate));
    }
    std::size_t seed = 0;
    const auto add = [&](const std::string& name, std::vector<std::uint64_t> shape) {
      std::size_t count = 1;
      for (const std::uint64_t size : shape) count *= size;
      made.add(name, io::GgufType::f32, std::move(shape), bytes_of(numbers(count, seed++)));
    };
    add("token_embd.weight", {vocabulary, hidden});
    for (std::uint32_t i = 0; i < layers; ++i) {
      const auto name = [&](const char* part) { return base::text("blk.{}.{}", i, part); };
      const std::uint64_t query = heads * head, key_value = kv_heads * head;
      add(name("attn_norm.weight"), {hidden});
      add(name("attn_q.weight"), {query, hidden});
      add(name("attn_k.weight"), {key_value, hidden});
      add(name("attn_v.weight"), {key_value, hidden});
      add(name("attn_output.weight"), {hidden, query});
      if (qkv_bias) {
        add(name("attn_q.bias"), {query});
        add(name("attn_k.bias"), {key_value});
        add(name("attn_v.bias"), {key_value});
      }
      if (output_bias) add(name("attn_output.bias"), {hidden});
      if (head_norms) {
        add(name("attn_q_norm.weight"), {head});
        add(name("attn_k_norm.weight"), {head});
      }
      add(name("ffn_norm.weight"), {hidden});
      if (experts == 0) {
        add(name("ffn_gate.weight"), {intermediate, hidden});
        add(name("ffn_up.weight"), {intermediate, hidden});
        add(name("ffn_down.weight"), {hidden, intermediate});
        continue;
      }
      const std::uint64_t inner = architecture == "llama" ? intermediate : expert_intermediate;
      add(name("ffn_gate_inp.weight"), {experts, hidden});
      add(name("ffn_gate_exps.weight"), {experts, inner, hidden});
      add(name("ffn_up_exps.weight"), {experts, inner, hidden});
      add(name("ffn_down_exps.weight"), {experts, hidden, inner});
    }
    add("output_norm.weight", {hidden});
    if (output) add("output.weight", {vocabulary, hidden});
    return made;
  }
};

}  // namespace kvant::tests
