#include "model/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/refuse.h"
#include "io/file.h"
#include "model/tokenizer/oniguruma_syntax.h"

namespace kvant::model::tokenizer {
namespace {

constexpr std::size_t kMaxPatternBytes = 1 << 16;
// A run of a million spaces may be walked back once for each of a few alternatives; what doubles with every letter ends
// here.
constexpr std::uint64_t kSteps = 1'000'000, kStepsPerByte = 16;
constexpr std::uint32_t kMaxHeapKibibytes = 256 << 10;
constexpr std::size_t kLeastStack = 32 << 10, kMostStack = 8 << 20;

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

std::string error_text(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// What a match writes to; each thread has its own, so that a pattern can serve many.
struct MatchSpace {
  Owned<pcre2_match_context> context{pcre2_match_context_create(nullptr)};
  Owned<pcre2_match_data> data{pcre2_match_data_create(1, nullptr)};
  Owned<pcre2_jit_stack> stack{pcre2_jit_stack_create(kLeastStack, kMostStack, nullptr)};

  MatchSpace() {
    if (!context || !data) return;
    pcre2_set_heap_limit(context.get(), kMaxHeapKibibytes);
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

std::size_t bytes_of_character(std::string_view text, std::size_t at) {
  return at < text.size() ? base::first_code_point(text.substr(at)).bytes : 1;
}

}  // namespace

struct Regex::Compiled {
  Owned<pcre2_code> code;
  bool has_jit = false;
  std::string shown;  // as it stands in the file, for refusals
  std::string place;
};

Result<Regex> Regex::compile(std::string_view pattern, std::string_view place) {
  const std::string shown = io::printable(pattern);
  if (pattern.size() > kMaxPatternBytes)
    return base::invalid_problem("{}: the pattern '{}' has {} bytes, the most are {}", place, shown, pattern.size(),
                                 kMaxPatternBytes);
  const auto translated = pcre2_pattern(pattern);
  if (!translated.ok())
    return base::unsupported("{}: the pattern '{}' {}", place, shown, translated.status().message());
  return compile_pcre2(*translated, shown, place);
}

Result<Regex> Regex::compile_literal(std::string_view text, std::string_view place) {
  std::string escaped;
  for (const char c : text) {
    // A backslash before any ASCII sign makes it the sign itself.
    if (static_cast<unsigned char>(c) < 0x80 && std::string_view("\\^$.[]|()?*+{}-#").find(c) != std::string_view::npos)
      escaped += '\\';
    escaped += c;
  }
  return compile_pcre2(escaped, io::printable(text), place);
}

Result<Regex> Regex::compile_pcre2(std::string_view pcre2, std::string_view shown, std::string_view place) {
  const Owned<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
  if (!context) return base::refuse(StatusCode::Internal, "{}: no memory for a pattern", place);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  // '^' and '$' are the ends of lines in Oniguruma.
  constexpr std::uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_shared<Compiled>();
  compiled->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre2.data()), pcre2.size(), kOptions, &error,
                                     &offset, context.get()));
  if (!compiled->code)
    return base::unsupported("{}: the pattern '{}' is not supported: {}", place, shown, error_text(error));
  // Without it, where the system forbids code made at run time, matches are slower and the same.
  compiled->has_jit = pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE) == 0;
  compiled->shown = shown;
  compiled->place = place;
  return Regex(std::move(compiled));
}

Status Regex::find_all(std::string_view text, std::vector<Range>& found) const {
  thread_local const MatchSpace space;
  if (!space.context || !space.data)
    return base::refuse(StatusCode::Internal, "{}: no memory for a match", compiled_->place);
  pcre2_set_match_limit(space.context.get(), static_cast<std::uint32_t>(std::min<std::uint64_t>(
                                                 kSteps + kStepsPerByte * text.size(), UINT32_MAX)));
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  auto* const match = compiled_->has_jit ? pcre2_jit_match : pcre2_match;
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(space.data.get());
  std::size_t at = 0;
  std::size_t last_end = text.size() + 1;  // none yet
  while (at <= text.size()) {
    const int result = match(compiled_->code.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, space.data.get(),
                             space.context.get());
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0)
      return base::invalid_problem("{}: the pattern '{}' gave up in a text of {} bytes at byte {}: {}",
                                   compiled_->place, compiled_->shown, text.size(), at, error_text(result));
    const Range range{ends[0], ends[1]};
    // \K may begin a match before the one before it ended.
    if (range.begin > range.end || range.begin < at)
      return base::invalid_problem("{}: the pattern '{}' matched backwards at byte {}", compiled_->place,
                                   compiled_->shown, at);
    if (range.begin == range.end && range.end == last_end) {
      at += bytes_of_character(text, at);
      continue;
    }
    found.push_back(range);
    at = last_end = range.end;
  }
  return {};
}

}  // namespace kvant::model::tokenizer
