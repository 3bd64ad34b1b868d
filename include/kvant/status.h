// Status and Result: how kvant reports errors. Nothing throws across the API. Every refusal has a code and a message
// that names the numbers that were wrong, for example
//   "quantize_per_group: group_size 0 must be positive".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

#include "kvant/export.h"

namespace kvant {

enum class StatusCode : std::uint8_t {
  Ok,
  InvalidProblem,     // a size, range, shape, pointer or parameter that no kernel could accept
  Unsupported,        // a valid problem for which this build or machine has no kernel
  MisalignedOperand,  // a buffer whose address the chosen kernel cannot use
  WorkspaceTooSmall,  // fewer bytes than workspace_size()
  DeviceUnavailable,  // the backend exists, but its device does not respond
  Internal,           // a fault inside kvant or in a callback it was given
};

// "InvalidProblem" and so on.
KVANT_API std::string_view name(StatusCode code);

// Success, or a code with a message. Success is a null pointer, so that run() returns it at no cost.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message)
      : refusal_(std::make_shared<const Refusal>(Refusal{code, std::move(message)})) {}

  bool ok() const { return refusal_ == nullptr; }
  StatusCode code() const { return refusal_ ? refusal_->code : StatusCode::Ok; }
  // Empty for success.
  std::string_view message() const { return refusal_ ? std::string_view(refusal_->message) : std::string_view(); }

 private:
  struct Refusal {
    StatusCode code;
    std::string message;
  };
  std::shared_ptr<const Refusal> refusal_;
};

// A value, or the Status that says why there is none. value(), operator* and operator-> require ok().
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : expected_(std::move(value)) {}                              // NOLINT: implicit by design
  Result(Status status) : expected_(tl::make_unexpected(std::move(status))) {}  // NOLINT

  bool ok() const { return expected_.has_value(); }
  explicit operator bool() const { return ok(); }

  // The refusal; success if there is a value.
  Status status() const { return ok() ? Status() : expected_.error(); }

  T& value() & { return *expected_; }
  const T& value() const& { return *expected_; }
  T&& value() && { return *std::move(expected_); }
  T& operator*() & { return *expected_; }
  const T& operator*() const& { return *expected_; }
  T* operator->() { return &*expected_; }
  const T* operator->() const { return &*expected_; }

 private:
  tl::expected<T, Status> expected_;
};

}  // namespace kvant
