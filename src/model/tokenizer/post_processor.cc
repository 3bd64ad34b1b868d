#include "model/tokenizer/post_processor.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "io/file.h"
#include "io/json.h"
#include "model/tokenizer/limits.h"

namespace kvant::model::tokenizer {

class PostProcessor::Reader {
 public:
  explicit Reader(std::int32_t size) : size_(size) {}

  Status read(const Section& section) {
    const auto type = section.type();
    if (!type.ok()) return type.status();
    if (*type == "Sequence") {
      const auto steps = section.sections("processors");
      if (!steps.ok()) return steps.status();
      for (const Section& step : *steps)
        if (Status s = read(step); !s.ok()) return s;
      return {};
    }
    const auto* kind =
        std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& known) { return known.type == *type; });
    if (kind == std::end(kKinds)) return unknown_type(section, *type, kKinds);
    if (kind->read == nullptr) return {};
    // The second would see the special tokens of the first as a text of their own.
    if (template_) return section.unsupported("is the second that adds tokens; only one is supported");
    auto made = (this->*kind->read)(section);
    if (!made.ok()) return made.status();
    template_ = std::move(made).value();
    return {};
  }

  std::optional<Template> take() { return std::move(template_); }

 private:
  struct Kind {
    std::string_view type;
    Result<Template> (Reader::*read)(const Section&) const;  // nullptr: changes offsets only
  };
  static const Kind kKinds[4];

  Result<std::int32_t> id(const Section& section, std::string_view token, const io::Json& value) const {
    auto number = token_id(section, token, value);
    if (!number.ok() || *number < size_) return number;
    return section.refuse("the id of '{}' is {}, but ids are below {}", io::printable(token), *number, size_);
  }

  // "cls" and "sep": ["[CLS]", 101]
  Result<Template> read_bert(const Section& section) const {
    Template around;
    for (const std::string_view key : {"cls", "sep"}) {
      const io::Json* token = section.find(key);
      if (token == nullptr || !token->is_array() || token->size() != 2 || !(*token)[0].is_string())
        return section.wrong(key, "a token and its id");
      const auto number = id(section, (*token)[0].get_ref<const std::string&>(), (*token)[1]);
      if (!number.ok()) return number.status();
      around.push_back(std::vector{*number});
    }
    around.insert(around.begin() + 1, std::nullopt);
    return around;
  }

  Result<Template> read_template(const Section& section) const {
    const auto pieces = section.sections("single");
    if (!pieces.ok()) return pieces.status();
    Template single;
    bool has_text = false;
    for (const Section& piece : *pieces) {
      if (const io::Json* special = piece.find("SpecialToken")) {
        const auto name = Section(*special, piece.place()).text("id");
        if (!name.ok()) return name.status();
        auto ids = special_ids(section, *name);
        if (!ids.ok()) return ids.status();
        single.push_back(std::move(ids).value());
        continue;
      }
      const io::Json* sequence = piece.find("Sequence");
      if (sequence == nullptr) return piece.refuse("must be a \"SpecialToken\" or a \"Sequence\"");
      const auto name = Section(*sequence, piece.place()).text("id");
      if (!name.ok()) return name.status();
      if (*name != "A" || has_text) return piece.refuse("must be the sequence \"A\", once: there is one text, not two");
      has_text = true;
      single.push_back(std::nullopt);
    }
    if (!has_text) return section.refuse("\"single\" has no place for the text");
    return single;
  }

  Result<std::vector<std::int32_t>> special_ids(const Section& section, const std::string& name) const {
    const io::Json* tokens = section.find("special_tokens");
    const io::Json* token = tokens != nullptr ? Section(*tokens, "").find(name) : nullptr;
    const io::Json* ids = token != nullptr ? Section(*token, "").find("ids") : nullptr;
    if (ids == nullptr || !ids->is_array())
      return section.refuse("\"special_tokens\" has no \"ids\" for '{}'", io::printable(name));
    std::vector<std::int32_t> numbers;
    for (const io::Json& value : *ids) {
      const auto number = id(section, name, value);
      if (!number.ok()) return number.status();
      numbers.push_back(*number);
    }
    return numbers;
  }

  std::int32_t size_;
  std::optional<Template> template_;
};

const PostProcessor::Reader::Kind PostProcessor::Reader::kKinds[4] = {{"TemplateProcessing", &Reader::read_template},
                                                                      {"BertProcessing", &Reader::read_bert},
                                                                      {"RobertaProcessing", &Reader::read_bert},
                                                                      {"ByteLevel", nullptr}};

Result<PostProcessor> PostProcessor::read(const Section& section, std::int32_t size) {
  Reader reader(size);
  if (Status s = reader.read(section); !s.ok()) return s;
  PostProcessor processor;
  processor.template_ = reader.take();
  return processor;
}

std::vector<std::int32_t> PostProcessor::apply(std::vector<std::int32_t> ids, bool add_special_tokens) const {
  if (!template_ || !add_special_tokens) return ids;
  std::vector<std::int32_t> all;
  for (const auto& special : *template_) {
    const std::vector<std::int32_t>& part = special ? *special : ids;
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace kvant::model::tokenizer
