#include "io/json.h"

#include <string>
#include <unordered_set>
#include <vector>

#include "core/refuse.h"
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
  bool start_object(std::size_t /*elements*/) override { return open(Json::object()); }
  bool start_array(std::size_t /*elements*/) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    if (!levels_.back().keys.insert(value).second) return fail(fmt::format("has the key '{}' twice", printable(value)));
    levels_.back().key = value;
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/, const nlohmann::detail::exception& e) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error …", or
    // "[json.exception.out_of_range.406] number overflow parsing '1e400'"
    std::string_view text = e.what();
    for (const std::string_view end : {"] ", ": "})
      if (const std::size_t place = text.find(end); place != std::string_view::npos) text.remove_prefix(place + 2);
    return fail(fmt::format("is no JSON at byte {}: {}", position, printable(text)));
  }

 private:
  struct Level {
    Json* value;
    std::string key;
    std::unordered_set<std::string> keys;
  };
  static constexpr std::size_t kMaxLevels = 64;

  bool fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  template <class Value>
  Json* place(Value&& value) {
    if (levels_.empty()) {
      root_ = std::forward<Value>(value);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.value->is_array()) {
      level.value->push_back(std::forward<Value>(value));
      return &level.value->back();
    }
    // Straight into the vector behind it: operator[] would look through all keys, and the set has done that.
    auto& members = level.value->template get_ref<Json::object_t&>();
    members.Container::emplace_back(std::move(level.key), std::forward<Value>(value));
    return &members.Container::back().second;
  }
  template <class Value>
  bool put(Value&& value) {
    place(std::forward<Value>(value));
    return true;
  }
  bool open(Json empty) {
    if (levels_.size() == kMaxLevels) return fail(fmt::format("is nested deeper than {} levels", kMaxLevels));
    levels_.push_back({place(std::move(empty)), {}, {}});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Level> levels_;
  std::string problem_;
};

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view file_name) {
  // The parser would take it for the end.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos)
    return core::invalid_problem("{}: is no JSON at byte {}: a zero byte", printable(file_name), zero);
  Builder builder;
  if (Json::sax_parse(text, &builder)) return builder.take();
  return core::invalid_problem("{}: {}", printable(file_name), builder.problem());
}

}  // namespace kvant::io
