#include "cli/text_argument.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/refuse.h"
#include "io/checkpoint.h"
#include "io/file.h"
#include "io/gguf.h"
#include "io/json.h"
#include "model/families.h"
#include "model/gguf_model.h"
#include "model/model_facts.h"

namespace kvant::cli {
namespace {

using base::invalid_problem;

constexpr std::uint64_t kMaxTextBytes = std::uint64_t{1} << 30;

bool is_encoder(const std::filesystem::path& model) {
  if (io::is_gguf(model)) return false;
  const auto checkpoint = io::Checkpoint::open(model);
  if (!checkpoint.ok()) return false;  // whoever runs it will say why
  const model::Family* const family = model::family_of(model::facts_of(*checkpoint).model_type);
  return family != nullptr && family->network != nullptr && family->network->head.empty();
}

Result<model::TokenText> read_lines(const model::Tokenizer& tokenizer, std::string_view text,
                                    const TextOptions& options) {
  model::TokenText lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto ids = tokenizer.encode(line, true);
    if (!ids.ok()) return ids.status();
    if (static_cast<int>(ids->size()) > options.length) {
      // What a loader cuts off a long sentence is its end, not the token that closes it.
      const std::int32_t last = ids->back();
      ids->resize(static_cast<std::size_t>(options.length));
      ids->back() = last;
    }
    if (options.max_tokens > 0 && lines.rows() + static_cast<std::int64_t>(ids->size()) > options.max_tokens) break;
    lines.lengths.push_back(static_cast<std::int64_t>(ids->size()));
    lines.ids.insert(lines.ids.end(), ids->begin(), ids->end());
  }
  return lines;
}

}  // namespace

Result<model::Tokenizer> tokenizer_of(const std::filesystem::path& model) {
  if (!io::is_gguf(model)) return model::Tokenizer::open(model / "tokenizer.json");
  const auto gguf = model::GgufModel::open(model);
  if (!gguf.ok()) return gguf.status();
  if (gguf->tokenizer() == nullptr)
    return invalid_problem("{}: its tokenizer is not known: {}; give the ids of tokens with --tokens",
                           io::printable_path(model), gguf->tokenizer_problem());
  return model::Tokenizer::parse(gguf->tokenizer()->dump(), io::printable_path(model));
}

std::vector<Argument> text_arguments(TextOptions& options) {
  return {{.name = "--text",
           .placeholder = "FILE",
           .help = "The text, UTF-8; the model's tokenizer.json cuts it into tokens. For encoders each line is a "
                   "sentence",
           .to = &options.text,
           .is_path = true},
          {.name = "--tokens",
           .placeholder = "FILE",
           .help = "Ids of tokens in place of a text, separated by spaces or commas",
           .to = &options.tokens,
           .is_path = true},
          {.name = "--length",
           .placeholder = "N",
           .help = "Tokens in a sequence (default 512)",
           .to = Count{&options.length, 2}},
          {.name = "--max-tokens",
           .placeholder = "N",
           .help = "Take the first N tokens of the text; 0: all (default)",
           .to = Count{&options.max_tokens, 0}}};
}

Result<model::TokenText> read_text_for(const std::filesystem::path& model, const TextOptions& options) {
  if (options.text.empty() == options.tokens.empty())
    return invalid_problem("give the text with --text FILE, or its tokens with --tokens FILE");
  if (!options.tokens.empty()) {
    auto ids = model::read_ids(options.tokens);
    if (!ids.ok()) return ids.status();
    return model::cut(std::move(ids).value(), options.length, options.max_tokens);
  }
  // Before its tokenizer: what is no model at all has none either.
  if (!io::is_gguf(model))
    if (const auto checkpoint = io::Checkpoint::open(model); !checkpoint.ok()) return checkpoint.status();
  const auto text = io::read_text(options.text, kMaxTextBytes);
  if (!text.ok()) return text.status();
  const auto tokenizer = tokenizer_of(model);
  if (!tokenizer.ok()) return tokenizer.status();
  if (is_encoder(model)) return read_lines(*tokenizer, *text, options);
  auto ids = tokenizer->encode(*text, true);
  if (!ids.ok())
    return Status(ids.status().code(), base::text("{}: {}", io::printable(options.text), ids.status().message()));
  return model::cut(std::move(ids).value(), options.length, options.max_tokens);
}

}  // namespace kvant::cli
