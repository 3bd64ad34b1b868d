#include "model/tokenizer/tokenizer.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/refuse.h"
#include "base/utf8.h"
#include "io/checkpoint.h"
#include "io/file.h"
#include "io/json.h"
#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/byte_token.h"
#include "model/tokenizer/limits.h"
#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/pieces.h"
#include "model/tokenizer/post_processor.h"
#include "model/tokenizer/pre_tokenizer.h"
#include "model/tokenizer/section.h"
#include "model/tokenizer/word_cache.h"
#include "model/tokenizer/word_model.h"

namespace kvant::model {
namespace {

using tokenizer::Section;
using tokenizer::WordCache;

// Each call of encode() borrows a cache, so that none waits for another; there are as many as calls at one time.
class CachePool {
 public:
  class Loan {
   public:
    explicit Loan(CachePool& pool) : pool_(pool), cache_(pool.take()) {}
    ~Loan() { pool_.put_back(std::move(cache_)); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    WordCache& cache() { return *cache_; }

   private:
    CachePool& pool_;
    std::unique_ptr<WordCache> cache_;
  };

 private:
  std::unique_ptr<WordCache> take() {
    const std::lock_guard lock(mutex_);
    if (caches_.empty()) return std::make_unique<WordCache>();
    std::unique_ptr<WordCache> cache = std::move(caches_.back());
    caches_.pop_back();
    return cache;
  }
  void put_back(std::unique_ptr<WordCache> cache) {
    const std::lock_guard lock(mutex_);
    caches_.push_back(std::move(cache));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<WordCache>> caches_;
};

// A section that may be missing or null: what it reads as, or the default.
template <class Part, class... Args>
Result<Part> read_or_default(const Section& file, std::string_view key, const Args&... args) {
  const io::Json* json = file.find(key);
  if (json == nullptr) return Part();
  return Part::read(Section(*json, base::text("{}: {}", file.place(), key)), args...);
}

}  // namespace

struct Tokenizer::Parts {
  tokenizer::Normalizer normalizer;
  tokenizer::AddedTokens added;
  tokenizer::PreTokenizer pre_tokenizer;
  std::unique_ptr<const tokenizer::WordModel> model;
  tokenizer::PostProcessor post_processor;
  mutable CachePool caches;

  std::int32_t size() const { return std::max(added.size(), model->vocabulary().size()); }

  // Text between added tokens that are looked for in the text as given.
  Status encode_given(std::string_view text, bool at_start, WordCache& cache, std::vector<std::int32_t>& ids) const {
    std::string normalized(text);
    if (Status s = normalizer.apply(normalized); !s.ok()) return s;
    for (const auto& [range, id] : added.split_normalized(normalized)) {
      if (id) {
        ids.push_back(*id);
        continue;
      }
      const std::string_view part = std::string_view(normalized).substr(range.begin, range.end - range.begin);
      if (Status s = encode_part(part, at_start && range.begin == 0, cache, ids); !s.ok()) return s;
    }
    return {};
  }

  // Text without added tokens.
  Status encode_part(std::string_view text, bool at_start, WordCache& cache, std::vector<std::int32_t>& ids) const {
    tokenizer::Pieces pieces(text, at_start);
    if (Status s = pre_tokenizer.apply(pieces); !s.ok()) return s;
    const auto encode = [&](std::string_view word, std::vector<std::int32_t>& to) { return model->encode(word, to); };
    for (const tokenizer::Range range : pieces.ranges())
      if (Status s = cache.encode(pieces.view(range), ids, encode); !s.ok()) return s;
    return {};
  }
};

Result<Tokenizer> Tokenizer::open(const std::filesystem::path& file) {
  const auto text = io::read_text(file, tokenizer::kMaxFileBytes);
  if (!text.ok()) return text.status();
  return parse(*text, file.filename().native());
}

Result<Tokenizer> Tokenizer::parse(std::string_view json, std::string_view file_name) {
  const auto document = io::parse_json(json, file_name);
  if (!document.ok()) return document.status();
  const Section file(*document, io::printable(file_name));
  const io::Json* model_json = file.find("model");
  if (model_json == nullptr || !model_json->is_object()) return file.wrong("model", "an object");

  const auto parts = std::make_shared<Parts>();
  auto model = tokenizer::WordModel::read(file, Section(*model_json, file.place() + ": model"));
  if (!model.ok()) return model.status();
  parts->model = std::move(model).value();
  auto normalizer = read_or_default<tokenizer::Normalizer>(file, "normalizer");
  if (!normalizer.ok()) return normalizer.status();
  parts->normalizer = std::move(normalizer).value();
  auto added = tokenizer::AddedTokens::read(file, parts->model->vocabulary(), parts->normalizer);
  if (!added.ok()) return added.status();
  parts->added = std::move(added).value();
  auto pre_tokenizer = read_or_default<tokenizer::PreTokenizer>(file, "pre_tokenizer");
  if (!pre_tokenizer.ok()) return pre_tokenizer.status();
  parts->pre_tokenizer = std::move(pre_tokenizer).value();
  auto post_processor = read_or_default<tokenizer::PostProcessor>(file, "post_processor", parts->size());
  if (!post_processor.ok()) return post_processor.status();
  parts->post_processor = std::move(post_processor).value();
  return Tokenizer(parts);
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  if (text.size() > tokenizer::kMaxTextBytes)
    return base::invalid_problem("the text has {} bytes, the most are {}", text.size(), tokenizer::kMaxTextBytes);
  if (const std::size_t valid = base::valid_utf8_bytes(text); valid != text.size())
    return base::invalid_problem("the text is no UTF-8 at byte {} of {}", valid, text.size());
  CachePool::Loan loan(parts_->caches);
  std::vector<std::int32_t> ids;
  for (const auto& [range, id] : parts_->added.split_given(text)) {
    if (id) {
      ids.push_back(*id);
      continue;
    }
    const std::string_view part = text.substr(range.begin, range.end - range.begin);
    if (Status s = parts_->encode_given(part, range.begin == 0, loan.cache(), ids); !s.ok()) return s;
  }
  return parts_->post_processor.apply(std::move(ids), add_special_tokens);
}

std::string Tokenizer::piece(std::int32_t id) const {
  if (const std::string* content = parts_->added.content(id)) return *content;
  const std::string* token = parts_->model->vocabulary().token(id);
  if (token == nullptr) return "";
  if (parts_->pre_tokenizer.is_byte_level())
    if (auto bytes = tokenizer::bytes_of_byte_level(*token)) return *std::move(bytes);
  std::string text = parts_->model->text_of(*token);
  for (const std::string* marker : {&parts_->normalizer.space_marker(), &parts_->pre_tokenizer.space_marker()})
    if (!marker->empty())
      for (std::size_t at = text.find(*marker); at != std::string::npos; at = text.find(*marker, at + 1))
        text.replace(at, marker->size(), " ");
  return text;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    // Added tokens of a model with words stand by themselves as well.
    const std::string* token = parts_->model->vocabulary().token(id);
    if (token == nullptr) token = parts_->added.content(id);
    if (token == nullptr) continue;
    if (!bytes.empty() && parts_->model->begins_word(*token)) bytes += ' ';
    bytes += piece(id);
  }
  std::string text;
  for (std::string_view rest = bytes; !rest.empty();) {
    const std::size_t valid = base::valid_utf8_bytes(rest);
    text += rest.substr(0, valid);
    rest.remove_prefix(valid);
    if (rest.empty()) break;
    text += tokenizer::byte_token(static_cast<unsigned char>(rest.front()));
    rest.remove_prefix(1);
  }
  return text;
}

std::int32_t Tokenizer::size() const { return parts_->size(); }

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
  if (const auto id = parts_->added.id_of(token)) return id;
  return parts_->model->vocabulary().id_of(token);
}

}  // namespace kvant::model
