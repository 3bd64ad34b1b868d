// A network as data: what a model computes from the ids of tokens to logits or embeddings, as a list of steps over
// modules by their names. Made from config.json, the family's row in families.cc, and the names of the checkpoint's
// modules, which decide between the forms of a row (q, k and v, or qkv; an MLP, or experts).
//
// A block works on rows, one for each token: the residual, and x, which the last step made.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "io/json_fwd.h"
#include "kvant/network_steps.h"
#include "kvant/status.h"
#include "model/families.h"
#include "model/rotary.h"
#include "model/smooth_groups.h"

namespace kvant::model {

struct LinearModule {
  std::string module;
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool is_conv1d = false;  // the weight is stored as [in, out]
};

// x = norm(residual); or residual = norm(residual), and x with it.
struct NormStep {
  std::string module;
  bool in_place = false;
};

// heads = the outputs of the linears of x (or of the residual after no norm), side by side: queries, keys, values.
struct HeadsStep {
  std::vector<LinearModule> linears;
};

// Every query and every key by itself.
struct HeadNormsStep {
  std::string queries;
  std::string keys;
};

// Queries and keys of `heads` by their positions.
struct RotateStep {};

// x = the values of `heads`, weighted by softmax(query · key * scale) over the tokens that a token sees.
struct AttendStep {
  std::string module;       // the attention layer, whose keys and values a cache holds
  std::int64_t window = 0;  // so many tokens up to itself; 0: all
};

// x = linear(x)
struct LinearStep {
  LinearModule linear;
};

// x = output(activation(inputs(x))), of one expert.
struct Expert {
  std::vector<LinearModule> inputs;  // side by side
  LinearModule output;
};
// Without a router there is one expert. With one, x becomes the sum of the best `chosen` experts of a token, weighted
// by softmax(router(x)); with `renormalize` the chosen weights are divided by their sum.
struct MlpStep {
  std::optional<LinearModule> router;
  std::vector<Expert> experts;
  std::int64_t inner = 0;  // what an output reads
  std::int64_t chosen = 1;
  bool renormalize = false;
};

// residual += x
struct AddStep {};

using Step = std::variant<NormStep, HeadsStep, HeadNormsStep, RotateStep, AttendStep, LinearStep, MlpStep, AddStep>;

struct Block {
  std::string prefix;  // "model.layers.3."
  std::vector<Step> steps;
};

struct Network {
  const Family* family = nullptr;
  std::int64_t hidden = 0;
  std::int64_t vocabulary = 0;  // 0: as many as the table of embeddings has rows
  std::int64_t max_positions = 0;

  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;
  float scale = 0;  // of scores
  Rotary rotary;

  float epsilon = 0;
  NetworkSteps::Activation activation = NetworkSteps::Activation::silu;

  std::string tokens;
  std::string positions;       // empty: none are learned
  std::string token_types;     // empty: none
  std::string embedding_norm;  // empty: none
  std::vector<Block> blocks;
  std::string final_norm;            // empty: none
  std::optional<LinearModule> head;  // its module is `tokens` where they share a table; nothing: an encoder

  const NetworkSpec& spec() const { return *family->network; }
  // Columns of queries, keys and values together.
  std::int64_t heads_width() const { return context_width() + 2 * kv_width(); }
  // Of keys, and of values.
  std::int64_t kv_width() const { return kv_heads * head_size; }
  std::int64_t context_width() const { return heads * head_size; }
};

// Refuses with the reason what kvant cannot run: another family, a form of attention or of scaling that it does not
// know, a module that is missing.
Result<Network> make_network(const io::Json& config, const Modules& modules);

// The linears of a step, in order, experts one after the other; those that read the same rows together.
std::vector<std::vector<const LinearModule*>> readers_of(const Step& step);
// The same one by one.
std::vector<const LinearModule*> linears_of(const Step& step);

}  // namespace kvant::model
