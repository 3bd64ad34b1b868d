#include "io/json.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/refuse.h"
#include "io/file.h"

namespace kvant::io {
namespace {

// Builds the document while it checks what nlohmann's own builder lets pass.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Json take() { return std::move(root_); }
  const std::string& problem() const { return problem_; }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return fail("holds binary data"); }
  bool start_object(std::size_t /*elements*/) override { return open(true); }
  bool start_array(std::size_t /*elements*/) override { return open(false); }
  bool end_object() override { return close_object(); }
  bool end_array() override { return close(Json(std::move(levels_.back().elements))); }
  bool key(string_t& value) override {
    levels_.back().key = std::move(value);
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/, const nlohmann::detail::exception& e) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error …", or without a place:
    // "[json.exception.out_of_range.406] number overflow parsing '1e999'"
    std::string_view text = e.what();
    for (const std::string_view end_of_front : {"] ", ": "})
      if (const std::size_t at = text.find(end_of_front); at != std::string_view::npos)
        text.remove_prefix(at + end_of_front.size());
    return fail(fmt::format("is not JSON at byte {}: {}", position, printable(text)));
  }

 private:
  // What is open is kept beside the document and moved into it when it closes: the members of an ordered_json have
  // constant keys, so that a vector of them grows by copying all that is below them.
  struct Level {
    bool is_object;
    std::string key;
    std::vector<std::pair<std::string, Json>> members;
    std::vector<Json> elements;
  };
  static constexpr std::size_t kMaxLevels = 64;

  bool fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  template <class Value>
  bool put(Value&& value) {
    // 100 MB of "[],[],…" would become gigabytes.
    if (++values_ > kMaxJsonValues) return fail(fmt::format("has more than {} values", kMaxJsonValues));
    store(std::forward<Value>(value));
    return true;
  }
  template <class Value>
  void store(Value&& value) {
    if (levels_.empty()) {
      root_ = std::forward<Value>(value);
    } else if (Level& level = levels_.back(); level.is_object) {
      level.members.emplace_back(std::move(level.key), std::forward<Value>(value));
    } else {
      level.elements.emplace_back(std::forward<Value>(value));
    }
  }
  bool open(bool is_object) {
    if (levels_.size() == kMaxLevels) return fail(fmt::format("is nested deeper than {} levels", kMaxLevels));
    if (++values_ > kMaxJsonValues) return fail(fmt::format("has more than {} values", kMaxJsonValues));
    levels_.push_back({is_object, {}, {}, {}});
    return true;
  }
  bool close_object() {
    auto& members = levels_.back().members;
    // Sorted rather than hashed: nobody can choose keys that make it slow.
    std::vector<std::string_view> keys(members.size());
    std::transform(members.begin(), members.end(), keys.begin(),
                   [](const auto& m) -> std::string_view { return m.first; });
    std::sort(keys.begin(), keys.end());
    if (const auto twice = std::adjacent_find(keys.begin(), keys.end()); twice != keys.end())
      return fail(fmt::format("has the key '{}' twice", printable(*twice)));
    // Straight into the vector that it is made of: operator[] would look through all keys.
    Json::object_t object;
    object.reserve(members.size());
    for (auto& [key, value] : members) object.Container::emplace_back(std::move(key), std::move(value));
    return close(Json(std::move(object)));
  }
  bool close(Json whole) {
    levels_.pop_back();
    store(std::move(whole));
    return true;
  }

  Json root_;
  std::vector<Level> levels_;
  std::size_t values_ = 0;
  std::string problem_;
};

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view file_name) {
  // The parser would take it for the end.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos)
    return base::invalid_problem("{}: is not JSON at byte {}: a zero byte", printable(file_name), zero);
  Builder builder;
  if (Json::sax_parse(text, &builder)) return builder.take();
  return base::invalid_problem("{}: {}", printable(file_name), builder.problem());
}

Json json_number(double value) {
  if (std::isfinite(value)) return value;
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

Json json_name(const std::string& name) {
  try {
    Json value = name;
    (void)value.dump();
    return value;
  } catch (const nlohmann::json::exception&) {
    return printable(name);
  }
}

}  // namespace kvant::io
