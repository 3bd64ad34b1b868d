// Whether a sanitizer watches: then what only repeats the same accesses with other numbers is left to the plain build.
#pragma once

namespace kvant::tests {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace kvant::tests
