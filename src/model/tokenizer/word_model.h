// The section "model": a word in, its ids out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/status.h"
#include "model/tokenizer/section.h"
#include "model/tokenizer/vocabulary.h"

namespace kvant::model::tokenizer {

class WordModel {
 public:
  // Of the types that are supported.
  static Result<std::unique_ptr<const WordModel>> read(const Section& file, const Section& model);

  explicit WordModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~WordModel() = default;

  const Vocabulary& vocabulary() const { return vocabulary_; }

  // Appends the ids of a word, which is not empty. May be called from many threads.
  virtual Status encode(std::string_view word, std::vector<std::int32_t>& ids) const = 0;
  // What a token stands for, apart from spaces and bytes that pre-tokenizers write otherwise.
  virtual std::string text_of(std::string_view token) const = 0;
  // Whether a space stands before it in a text although it holds none.
  virtual bool begins_word(std::string_view token) const = 0;

 private:
  Vocabulary vocabulary_;
};

}  // namespace kvant::model::tokenizer
