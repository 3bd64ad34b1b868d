// KVANT_API marks what the shared library exports; everything else stays hidden.
#pragma once

#if defined(__FAST_MATH__)
#error "kvant promises IEEE bits: build it and its callers without -ffast-math"
#endif

#if defined(__GNUC__)
#define KVANT_API __attribute__((visibility("default")))
#else
#define KVANT_API
#endif
