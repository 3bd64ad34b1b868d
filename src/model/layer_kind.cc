#include "model/layer_kind.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <system_error>

#include "model/roles.h"

namespace kvant::model {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_number(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), is_digit); }

std::string_view parent_of(std::string_view module) {
  const std::size_t dot = module.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : module.substr(0, dot);
}

// "self_attn", "attention", "SelfAttention"
bool is_attention(std::string_view component) {
  return component.find("attn") != std::string_view::npos || component.find("ttention") != std::string_view::npos;
}

// "mlp", "ffn", "feed_forward", T5's "DenseReluDense" and "DenseGatedActDense"
bool is_mlp(std::string_view component) {
  for (const std::string_view part : {"mlp", "MLP", "ffn", "feed_forward", "Dense"})
    if (component.find(part) != std::string_view::npos) return true;
  return false;
}

struct Named {
  std::string_view component;
  LayerKind kind;
};

// Last components that mean the same wherever they stand: Llama, Qwen, Phi, Baichuan, OPT, BLOOM, GPT-NeoX, Falcon,
// GPT-2, MPT, BERT, T5, InternLM2, and Meta's own names.
constexpr std::array kNames = {
    Named{"q_proj", LayerKind::q},
    Named{"wq", LayerKind::q},
    Named{"query", LayerKind::q},
    Named{"q", LayerKind::q},
    Named{"k_proj", LayerKind::k},
    Named{"wk", LayerKind::k},
    Named{"key", LayerKind::k},
    Named{"k", LayerKind::k},
    Named{"v_proj", LayerKind::v},
    Named{"wv", LayerKind::v},
    Named{"value", LayerKind::v},
    Named{"v", LayerKind::v},
    Named{"qkv_proj", LayerKind::qkv},
    Named{"query_key_value", LayerKind::qkv},
    Named{"c_attn", LayerKind::qkv},
    Named{"Wqkv", LayerKind::qkv},
    Named{"wqkv", LayerKind::qkv},
    Named{"W_pack", LayerKind::qkv},
    Named{"o_proj", LayerKind::o},
    Named{"o", LayerKind::o},
    Named{"gate_proj", LayerKind::gate},
    Named{"w1", LayerKind::gate},
    Named{"wi_0", LayerKind::gate},
    Named{"up_proj", LayerKind::up},
    Named{"w3", LayerKind::up},
    Named{"wi_1", LayerKind::up},
    Named{"wi", LayerKind::up},
    Named{"fc1", LayerKind::up},
    Named{"c_fc", LayerKind::up},
    Named{"fc_in", LayerKind::up},
    Named{"dense_h_to_4h", LayerKind::up},
    Named{"gate_up_proj", LayerKind::gate_up},
    Named{"down_proj", LayerKind::down},
    Named{"w2", LayerKind::down},
    Named{"fc2", LayerKind::down},
    Named{"fc_out", LayerKind::down},
    Named{"dense_4h_to_h", LayerKind::down},
};

// A module called "dense" is what stands around it: BLOOM's self_attention.dense, and in BERT attention.output.dense,
// intermediate.dense and output.dense.
LayerKind kind_of_dense(std::string_view parent) {
  const std::string_view component = last_component(parent);
  if (is_attention(component)) return LayerKind::o;
  if (component == "intermediate") return LayerKind::up;
  if (component != "output") return LayerKind::other;
  return is_attention(last_component(parent_of(parent))) ? LayerKind::o : LayerKind::down;
}

// A piece of a name: a run of digits, or of anything else.
std::string_view first_piece(std::string_view text) {
  std::size_t end = 1;
  while (end < text.size() && is_digit(text[end]) == is_digit(text[0])) ++end;
  return text.substr(0, end);
}

// Digits as a number of any length.
int compare_numbers(std::string_view a, std::string_view b) {
  a.remove_prefix(std::min(a.find_first_not_of('0'), a.size()));
  b.remove_prefix(std::min(b.find_first_not_of('0'), b.size()));
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  return a.compare(b);
}

// Below 0: a comes first. 0: they differ in leading zeros at most.
int compare_names(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (is_digit(a[0]) && is_digit(b[0])) {
      const std::string_view x = first_piece(a), y = first_piece(b);
      if (const int order = compare_numbers(x, y); order != 0) return order;
      a.remove_prefix(x.size());
      b.remove_prefix(y.size());
      continue;
    }
    if (a[0] != b[0]) return static_cast<unsigned char>(a[0]) < static_cast<unsigned char>(b[0]) ? -1 : 1;
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  if (a.empty() && b.empty()) return 0;
  return a.empty() ? -1 : 1;
}

}  // namespace

std::string_view name(LayerKind kind) {
  switch (kind) {
    case LayerKind::q: return "q";
    case LayerKind::k: return "k";
    case LayerKind::v: return "v";
    case LayerKind::qkv: return "qkv";
    case LayerKind::o: return "o";
    case LayerKind::gate: return "gate";
    case LayerKind::up: return "up";
    case LayerKind::gate_up: return "gate_up";
    case LayerKind::down: return "down";
    case LayerKind::other: return "other";
  }
  return "other";
}

LayerKind kind_of(std::string_view module) {
  const std::string_view last = last_component(module), parent = parent_of(module);
  const auto* const found =
      std::find_if(kNames.begin(), kNames.end(), [&](const Named& named) { return named.component == last; });
  if (found != kNames.end()) return found->kind;
  if (last == "dense") return kind_of_dense(parent);
  // GPT-2 has a c_proj in either half of a block, T5 a wo in the MLP.
  if (last == "c_proj" || last == "out_proj" || last == "wo") {
    const std::string_view component = last_component(parent);
    if (is_attention(component)) return LayerKind::o;
    if (is_mlp(component)) return LayerKind::down;
    return last == "c_proj" ? LayerKind::other : LayerKind::o;
  }
  return LayerKind::other;
}

std::optional<std::uint64_t> block_of(std::string_view module) {
  while (true) {
    const std::size_t dot = module.find('.');
    const std::string_view component = module.substr(0, dot);
    if (is_number(component)) {
      std::uint64_t block = 0;
      const char* const end = component.data() + component.size();
      if (std::from_chars(component.data(), end, block).ec != std::errc()) return std::nullopt;
      return block;
    }
    if (dot == std::string_view::npos) return std::nullopt;
    module.remove_prefix(dot + 1);
  }
}

std::string_view stack_of(std::string_view module) {
  if (!block_of(module)) return {};
  std::size_t begin = 0;
  while (true) {
    const std::size_t dot = module.find('.', begin);
    if (is_number(module.substr(begin, dot == std::string_view::npos ? dot : dot - begin)))
      return module.substr(0, begin);
    begin = dot + 1;
  }
}

bool stands_before(std::string_view a, std::string_view b) {
  const auto block_a = block_of(a), block_b = block_of(b);
  if (block_a.has_value() != block_b.has_value()) return block_a.has_value();
  if (const int order = compare_names(stack_of(a), stack_of(b)); order != 0) return order < 0;
  if (block_a != block_b) return *block_a < *block_b;
  if (const LayerKind x = kind_of(a), y = kind_of(b); x != y) return x < y;
  if (const int order = compare_names(a, b); order != 0) return order < 0;
  return a < b;
}

}  // namespace kvant::model
