// Reading refusals: what a status must be and what its sentence must contain.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "kvant/status.h"

namespace kvant::tests {

// The essential words of a sentence, and its numbers.
using Parts = std::initializer_list<std::string_view>;

inline testing::AssertionResult refused(const Status& status, StatusCode code, Parts parts) {
  if (status.ok()) return testing::AssertionFailure() << "accepted";
  if (status.code() != code)
    return testing::AssertionFailure() << name(status.code()) << " instead of " << name(code) << ": "
                                       << status.message();
  for (const std::string_view part : parts)
    if (status.message().find(part) == std::string_view::npos)
      return testing::AssertionFailure() << "\"" << status.message() << "\" does not contain \"" << part << "\"";
  return testing::AssertionSuccess();
}
inline testing::AssertionResult refused(const Status& status, StatusCode code, std::string_view part) {
  return refused(status, code, Parts{part});
}
// The sentence to the letter.
inline testing::AssertionResult refused_with(const Status& status, StatusCode code, std::string_view sentence) {
  if (status.code() == code && status.message() == sentence) return testing::AssertionSuccess();
  return testing::AssertionFailure() << name(status.code()) << ": \"" << status.message() << "\" instead of "
                                     << name(code) << ": \"" << sentence << "\"";
}
inline testing::AssertionResult invalid(const Status& status, Parts parts) {
  return refused(status, StatusCode::InvalidProblem, parts);
}
inline testing::AssertionResult invalid(const Status& status, std::string_view part) {
  return refused(status, StatusCode::InvalidProblem, part);
}
inline testing::AssertionResult unsupported(const Status& status, Parts parts) {
  return refused(status, StatusCode::Unsupported, parts);
}
inline testing::AssertionResult unsupported(const Status& status, std::string_view part) {
  return refused(status, StatusCode::Unsupported, part);
}
inline testing::AssertionResult accepted(const Status& status) {
  return status.ok() ? testing::AssertionSuccess() : testing::AssertionFailure() << "refused: " << status.message();
}

// Sets an environment variable, or removes it, for as long as it lives.
class ScopedVariable {
 public:
  ScopedVariable(const char* variable, const char* value) : name_(variable) {
    if (const char* old = std::getenv(variable)) old_ = old;
    put(value);
  }
  ~ScopedVariable() { put(old_ ? old_->c_str() : nullptr); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  void put(const char* value) const {
    if (value == nullptr)
      unsetenv(name_);
    else
      setenv(name_, value, 1);
  }
  const char* name_;
  std::optional<std::string> old_;
};

}  // namespace kvant::tests
