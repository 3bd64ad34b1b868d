#include "model/tokenizer/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/refuse.h"
#include "base/utf8.h"
#include "io/json.h"
#include "model/tokenizer/characters.h"
#include "model/tokenizer/limits.h"
#include "model/tokenizer/pattern.h"

namespace kvant::model::tokenizer {
namespace {

using NormalizerStep = Normalizer::Step;

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// Calls `each(character, to)` for every character; the new text is what it appends.
template <class Each>
void rewrite(std::string& text, const Each& each) {
  std::string to;
  to.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const base::CodePoint c = base::first_code_point(std::string_view(text).substr(at));
    each(c.value, to);
    at += c.bytes;
  }
  text = std::move(to);
}

template <class Drop>
void drop(std::string& text, const Drop& is_dropped) {
  rewrite(text, [&](char32_t c, std::string& to) {
    if (!is_dropped(c)) base::append_utf8(to, c);
  });
}

void lower(std::string& text) {
  rewrite(text, [](char32_t c, std::string& to) { append_lower(to, c); });
}

// ---- Normal forms -----------------------------------------------------------------------------------------------

// The tables of `tokenizers` are of this version: younger characters stay as they are.
constexpr char kAge[] = "[:age=9.0:]";

struct OldCharacters {
  UErrorCode error = U_ZERO_ERROR;
  icu::UnicodeSet set{icu::UnicodeString::fromUTF8(kAge), error};
};

const OldCharacters& old_characters() {
  static const OldCharacters characters;
  return characters;
}

Status normalize(const icu::Normalizer2& form, std::string& text) {
  if (is_ascii(text)) return {};
  UErrorCode error = U_ZERO_ERROR;
  std::string to;
  icu::StringByteSink<std::string> sink(&to, static_cast<std::int32_t>(text.size()));
  icu::FilteredNormalizer2(form, old_characters().set)
      .normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())), sink, nullptr, error);
  if (U_FAILURE(error))
    return base::refuse(StatusCode::Internal, "a text of {} bytes cannot be normalized: {}", text.size(),
                        u_errorName(error));
  text = std::move(to);
  return {};
}

using Form = const icu::Normalizer2* (*)(UErrorCode&);

Result<const icu::Normalizer2*> form_of_icu(Form get, const Section& section) {
  UErrorCode error = old_characters().error;
  const icu::Normalizer2* form = U_SUCCESS(error) ? get(error) : nullptr;
  if (form == nullptr) return section.unsupported("ICU has no data for it: {}", u_errorName(error));
  return form;
}

Result<NormalizerStep> normal_form(Form get, const Section& section) {
  const auto form = form_of_icu(get, section);
  if (!form.ok()) return form.status();
  return NormalizerStep([form = *form](std::string& text) { return normalize(*form, text); });
}

Result<NormalizerStep> read_nfc(const Section& section) {
  return normal_form(icu::Normalizer2::getNFCInstance, section);
}
Result<NormalizerStep> read_nfd(const Section& section) {
  return normal_form(icu::Normalizer2::getNFDInstance, section);
}
Result<NormalizerStep> read_nfkc(const Section& section) {
  return normal_form(icu::Normalizer2::getNFKCInstance, section);
}
Result<NormalizerStep> read_nfkd(const Section& section) {
  return normal_form(icu::Normalizer2::getNFKDInstance, section);
}

// ---- The others -------------------------------------------------------------------------------------------------

Result<NormalizerStep> read_lowercase(const Section&) {
  return NormalizerStep([](std::string& text) -> Status {
    lower(text);
    return {};
  });
}

Result<NormalizerStep> read_strip_accents(const Section&) {
  return NormalizerStep([](std::string& text) -> Status {
    drop(text, is_mark);
    return {};
  });
}

Result<NormalizerStep> read_strip(const Section& section) {
  const auto left = section.flag_or("strip_left", true);
  if (!left.ok()) return left.status();
  const auto right = section.flag_or("strip_right", true);
  if (!right.ok()) return right.status();
  return NormalizerStep([left = *left, right = *right](std::string& text) -> Status {
    std::size_t begin = text.size(), end = 0;  // of what is no space
    for (std::size_t at = 0; at < text.size();) {
      const base::CodePoint c = base::first_code_point(std::string_view(text).substr(at));
      if (!is_space(c.value)) {
        begin = std::min(begin, at);
        end = at + c.bytes;
      }
      at += c.bytes;
    }
    if (right) text.resize(end);
    if (left) text.erase(0, begin);
    return {};
  });
}

Result<NormalizerStep> read_prepend(const Section& section) {
  const auto prefix = section.text("prepend");
  if (!prefix.ok()) return prefix.status();
  if (prefix->size() > kMaxAddedTokenBytes)
    return section.refuse("\"prepend\" has {} bytes, the most are {}", prefix->size(), kMaxAddedTokenBytes);
  return NormalizerStep([prefix = *prefix](std::string& text) -> Status {
    if (!text.empty()) text.insert(0, prefix);
    return {};
  });
}

Result<NormalizerStep> read_replace(const Section& section) {
  auto pattern = read_pattern(section);
  if (!pattern.ok()) return pattern.status();
  const auto content = section.text("content");
  if (!content.ok()) return content.status();
  return NormalizerStep(
      [regex = pattern->regex, content = *content, place = section.place()](std::string& text) -> Status {
        std::vector<Range> found;
        if (Status s = regex.find_all(text, found); !s.ok()) return s;
        if (found.empty()) return {};
        std::string to;
        std::size_t at = 0;
        for (const Range match : found) {
          to.append(text, at, match.begin - at);
          to += content;
          at = match.end;
          if (to.size() > kMaxTextBytes)
            return base::invalid_problem("{}: the text grows beyond {} bytes", place, kMaxTextBytes);
        }
        to.append(text, at);
        text = std::move(to);
        return {};
      });
}

Result<NormalizerStep> read_bert_normalizer(const Section& section) {
  const auto clean = section.flag_or("clean_text", true);
  if (!clean.ok()) return clean.status();
  const auto chinese = section.flag_or("handle_chinese_chars", true);
  if (!chinese.ok()) return chinese.status();
  const auto lowercase = section.flag_or("lowercase", true);
  if (!lowercase.ok()) return lowercase.status();
  // null: as lowercase
  const auto accents = section.flag_or("strip_accents", *lowercase);
  if (!accents.ok()) return accents.status();
  const auto nfd = form_of_icu(icu::Normalizer2::getNFDInstance, section);
  if (!nfd.ok()) return nfd.status();
  return NormalizerStep([clean = *clean, chinese = *chinese, lowercase = *lowercase, accents = *accents,
                         nfd = *nfd](std::string& text) -> Status {
    if (clean)
      rewrite(text, [](char32_t c, std::string& to) {
        const bool is_blank = c == '\t' || c == '\n' || c == '\r';
        if (c == 0 || c == 0xFFFD || (is_other(c) && !is_blank)) return;
        base::append_utf8(to, is_space(c) ? U' ' : c);
      });
    if (chinese)
      rewrite(text, [](char32_t c, std::string& to) {
        const std::string_view around = is_chinese(c) ? " " : "";
        to += around;
        base::append_utf8(to, c);
        to += around;
      });
    if (accents) {
      if (Status s = normalize(*nfd, text); !s.ok()) return s;
      drop(text, is_nonspacing_mark);
    }
    if (lowercase) lower(text);
    return {};
  });
}

struct NormalizerKind {
  std::string_view type;
  Result<NormalizerStep> (*read)(const Section&);
};
constexpr NormalizerKind kNormalizers[] = {{"NFC", read_nfc},
                                           {"NFD", read_nfd},
                                           {"NFKC", read_nfkc},
                                           {"NFKD", read_nfkd},
                                           {"Lowercase", read_lowercase},
                                           {"StripAccents", read_strip_accents},
                                           {"Strip", read_strip},
                                           {"Prepend", read_prepend},
                                           {"Replace", read_replace},
                                           {"BertNormalizer", read_bert_normalizer}};

}  // namespace

Result<Normalizer> Normalizer::read(const Section& section) {
  Normalizer normalizer;
  if (Status s = normalizer.add(section); !s.ok()) return s;
  return normalizer;
}

Status Normalizer::add(const Section& section) {
  const auto type = section.type();
  if (!type.ok()) return type.status();
  if (*type == "Sequence") {
    const auto steps = section.sections("normalizers");
    if (!steps.ok()) return steps.status();
    for (const Section& step : *steps)
      if (Status s = add(step); !s.ok()) return s;
    return {};
  }
  const auto* kind = std::find_if(std::begin(kNormalizers), std::end(kNormalizers),
                                  [&](const NormalizerKind& k) { return k.type == *type; });
  if (kind == std::end(kNormalizers)) return unknown_type(section, *type, kNormalizers);
  auto step = kind->read(section);
  if (!step.ok()) return step.status();
  steps_.push_back(std::move(step).value());
  if (*type == "Replace" && Section(*section.find("pattern"), "").text_or("String", "").value() == " ")
    space_marker_ = section.text("content").value();
  return {};
}

Status Normalizer::apply(std::string& text) const {
  for (const NormalizerStep& step : steps_) {
    if (Status s = step(text); !s.ok()) return s;
    if (text.size() > kMaxTextBytes)
      return base::invalid_problem("the text grows beyond {} bytes when it is normalized", kMaxTextBytes);
  }
  return {};
}

}  // namespace kvant::model::tokenizer
