// Refusals: a status code and a formatted sentence.
#pragma once

#include <utility>

#include "base/text.h"
#include "kvant/status.h"

namespace kvant::base {

template <class... Args>
Status refuse(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, formatted(format, fmt::make_format_args(args...)));
}

template <class... Args>
Status invalid_problem(fmt::format_string<Args...> format, Args&&... args) {
  return refuse(StatusCode::InvalidProblem, format, std::forward<Args>(args)...);
}

template <class... Args>
Status unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return refuse(StatusCode::Unsupported, format, std::forward<Args>(args)...);
}

}  // namespace kvant::base
