#include "bench/limit.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#else
#include <cstring>
#endif

namespace kvant::bench {
namespace {

#if defined(__AVX2__)
using Vector = __m256i;
inline Vector load(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void store(std::byte* p, Vector v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
inline void stream_to(std::byte* p, Vector v) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), v); }
inline void fence() { _mm_sfence(); }
// The compiler must believe that a loaded value is used.
inline void use(Vector v) { __asm__ volatile("" ::"x"(v)); }
#else
struct Vector {
  std::byte bytes[32];
};
inline Vector load(const std::byte* p) {
  Vector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(std::byte* p, Vector v) { std::memcpy(p, &v, sizeof v); }
inline void stream_to(std::byte* p, Vector v) { store(p, v); }
inline void fence() {}
inline void use(const Vector& v) { __asm__ volatile("" ::"m"(v)); }
#endif

constexpr std::int64_t kVector = 32;

// A half byte for each of 64 elements is one vector, so the counts in Traffic are vectors for each unit.
template <int kReads, int kWrites, bool kSecond, bool kStream>
void move_units(const std::byte* first, const std::byte* second, std::byte* out, std::int64_t begin, std::int64_t end) {
  for (std::int64_t unit = begin; unit < end; ++unit) {
    Vector last{};
    for (int i = 0; i < kReads; ++i) {
      last = load(first + (unit * kReads + i) * kVector);
      use(last);
      if constexpr (kSecond) use(load(second + (unit * kReads + i) * kVector));
    }
    for (int i = 0; i < kWrites; ++i) {
      std::byte* p = out + (unit * kWrites + i) * kVector;
      if constexpr (kStream)
        stream_to(p, last);
      else
        store(p, last);
    }
  }
  if constexpr (kStream) fence();
}

using Mover = void (*)(const std::byte*, const std::byte*, std::byte*, std::int64_t, std::int64_t);

template <int kReads, int kWrites>
Mover choose(bool second, bool stream) {
  if (second) return stream ? &move_units<kReads, kWrites, true, true> : &move_units<kReads, kWrites, true, false>;
  return stream ? &move_units<kReads, kWrites, false, true> : &move_units<kReads, kWrites, false, false>;
}

template <int kReads>
Mover choose(int writes, bool second, bool stream) {
  switch (writes) {
    case 0: return choose<kReads, 0>(second, stream);
    case 1: return choose<kReads, 1>(second, stream);
    case 2: return choose<kReads, 2>(second, stream);
    case 4: return choose<kReads, 4>(second, stream);
    case 8: return choose<kReads, 8>(second, stream);
    case 16: return choose<kReads, 16>(second, stream);
    default: std::abort();
  }
}

Mover choose(int reads, int writes, bool second, bool stream) {
  switch (reads) {
    case 1: return choose<1>(writes, second, stream);
    case 2: return choose<2>(writes, second, stream);
    case 4: return choose<4>(writes, second, stream);
    case 8: return choose<8>(writes, second, stream);
    case 16: return choose<16>(writes, second, stream);
    default: std::abort();
  }
}

}  // namespace

void move(const Stream& stream, const Traffic& t, Stores stores) {
  struct Context {
    Traffic traffic;
    Mover mover;
    std::int64_t units;
    std::int64_t units_per_part;
  };
  const std::int64_t units = t.elements / 64;
  const std::int64_t parts = stream.threads() == 1 ? 1 : std::min<std::int64_t>(units, stream.threads() * 8);
  const Context context{
      t, choose(t.read_half_bytes, t.write_half_bytes, t.second != nullptr, stores == Stores::non_temporal), units,
      (units + parts - 1) / parts};
  const Task task(
      [](const void* p, std::int64_t part) {
        const Context& c = *static_cast<const Context*>(p);
        const std::int64_t begin = std::min(c.units, part * c.units_per_part);
        c.mover(static_cast<const std::byte*>(c.traffic.first), static_cast<const std::byte*>(c.traffic.second),
                static_cast<std::byte*>(c.traffic.out), begin, std::min(c.units, begin + c.units_per_part));
      },
      &context);
  if (const Status status = stream.parallel_for(parts, task); !status.ok()) {
    std::fprintf(stderr, "kvant_bench: %s\n", std::string(status.message()).c_str());
    std::exit(1);
  }
}

}  // namespace kvant::bench
