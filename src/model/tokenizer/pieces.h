// A text and the pieces that are still to be tokenized. Pre-tokenizers cut pieces, drop some, and write the text anew.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/refuse.h"
#include "base/utf8.h"
#include "kvant/status.h"
#include "model/tokenizer/limits.h"

namespace kvant::model::tokenizer {

struct Range {
  std::size_t begin = 0, end = 0;
};

// What becomes of the delimiters that a split finds.
enum class SplitBehavior : std::uint8_t { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };

class Pieces {
 public:
  // All of the text is one piece. `at_start`: it is the beginning of what was given to encode().
  Pieces(std::string_view text, bool at_start) : text_(text), at_start_(at_start) {
    if (!text.empty()) ranges_.push_back({0, text.size()});
  }

  const std::vector<Range>& ranges() const { return ranges_; }
  std::string_view view(Range range) const {
    return std::string_view(text_).substr(range.begin, range.end - range.begin);
  }

  // Cuts every piece. `find(piece, matches)` appends what it finds in a piece, in order; with `invert`, what lies
  // between the matches are the delimiters.
  template <class Find>
  Status cut(SplitBehavior behavior, bool invert, const Find& find) {
    std::vector<Range> cut, matches;
    std::vector<Slice> slices;
    cut.reserve(ranges_.size());
    for (const Range piece : ranges_) {
      matches.clear();
      if (Status s = find(view(piece), matches); !s.ok()) return s;
      cover(piece, matches, invert, slices);
      put(slices, behavior, cut);
    }
    ranges_ = std::move(cut);
    return {};
  }

  // Cuts at every character for which `is` is true.
  template <class Is>
  Status cut_at(SplitBehavior behavior, const Is& is) {
    return cut(behavior, false, [&](std::string_view piece, std::vector<Range>& matches) -> Status {
      for (std::size_t at = 0; at < piece.size();) {
        const base::CodePoint c = base::first_code_point(piece.substr(at));
        if (is(c.value)) matches.push_back({at, at + c.bytes});
        at += c.bytes;
      }
      return {};
    });
  }

  // Writes every piece anew: `write(piece, is_start, text)` appends to the text.
  template <class Write>
  Status rewrite(const Write& write) {
    std::string text;
    text.reserve(text_.size() + text_.size() / 2);
    const bool starts = at_start_ && !ranges_.empty() && ranges_.front().begin == 0;
    for (Range& range : ranges_) {
      const std::size_t begin = text.size();
      write(view(range), at_start_ && range.begin == 0, text);
      if (text.size() > kMaxTextBytes)
        return base::invalid_problem("the text grows beyond {} bytes before it is tokenized", kMaxTextBytes);
      range = {begin, text.size()};
    }
    text_ = std::move(text);
    at_start_ = starts;
    std::erase_if(ranges_, [](Range range) { return range.begin == range.end; });
    return {};
  }

 private:
  struct Slice {
    Range range;
    bool is_delimiter;
  };

  // All of a piece as slices, delimiters and what is between them.
  static void cover(Range piece, const std::vector<Range>& matches, bool invert, std::vector<Slice>& slices) {
    slices.clear();
    std::size_t at = piece.begin;
    for (const Range match : matches) {
      const Range found{piece.begin + match.begin, piece.begin + match.end};
      if (at != found.begin) slices.push_back({{at, found.begin}, invert});
      slices.push_back({found, !invert});
      at = found.end;
    }
    if (at != piece.end) slices.push_back({{at, piece.end}, invert});
  }

  static void put(std::vector<Slice>& slices, SplitBehavior behavior, std::vector<Range>& to) {
    if (behavior == SplitBehavior::Removed)
      std::erase_if(slices, [](const Slice& slice) { return slice.is_delimiter; });
    const bool backwards = behavior == SplitBehavior::MergedWithNext;
    if (backwards) std::reverse(slices.begin(), slices.end());
    // Slices that join the one before them (after them, where they are walked backwards) move to it.
    std::size_t kept = 0;
    bool previous = false;
    for (const Slice& slice : slices) {
      const bool joins = behavior == SplitBehavior::Contiguous                        ? slice.is_delimiter == previous
                         : behavior == SplitBehavior::MergedWithPrevious || backwards ? slice.is_delimiter && !previous
                                                                                      : false;
      previous = slice.is_delimiter;
      if (joins && kept > 0) {
        Range& neighbour = slices[kept - 1].range;
        neighbour = {std::min(neighbour.begin, slice.range.begin), std::max(neighbour.end, slice.range.end)};
      } else {
        slices[kept++] = slice;
      }
    }
    slices.resize(kept);
    if (backwards) std::reverse(slices.begin(), slices.end());
    for (const Slice& slice : slices)
      if (slice.range.begin != slice.range.end) to.push_back(slice.range);
  }

  std::string text_;
  std::vector<Range> ranges_;
  bool at_start_;
};

}  // namespace kvant::model::tokenizer
