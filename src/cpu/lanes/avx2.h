// AVX2 with FMA and F16C: eight f32 or four f64 at a time. Include only where the compiler targets them. Long because
// it is the whole vocabulary of lanes, once for each of the two types.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/inline.h"
#include "cpu/lanes/block.h"
#include "kvant/element.h"
#include "semantics/dynamic_range.h"
#include "semantics/float_grid.h"
#include "semantics/lanes.h"

// Vector types as template arguments drop attributes that matter only for variables in memory.
#pragma GCC diagnostic ignored "-Wignored-attributes"

namespace kvant::cpu {

KVANT_INLINE __m256i load_256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
KVANT_INLINE __m128i load_128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
KVANT_INLINE __m128i load_64(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
KVANT_INLINE __m128i load_32(const void* p) {
  std::int32_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return _mm_cvtsi32_si128(bits);
}

// `stream` bypasses the caches and wants an address that is a multiple of 32; the branch is the same for a whole
// run and costs nothing beside the arithmetic of a block.
KVANT_INLINE void store_256(void* p, __m256i v, bool stream) {
  if (stream)
    _mm256_stream_si256(static_cast<__m256i*>(p), v);
  else
    _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}
KVANT_INLINE void store_128(void* p, __m128i v, bool stream) {
  if (stream)
    _mm_stream_si128(static_cast<__m128i*>(p), v);
  else
    _mm_storeu_si128(static_cast<__m128i*>(p), v);
}
KVANT_INLINE __m256i join(__m128i lo, __m128i hi) { return _mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1); }

// What does not depend on the compute type.
struct Avx2Shared {
  // Codes of four and two bits, 32 bytes of them at once.
  template <int kBits>
  static constexpr int kPackBlock = 256 / kBits;
  template <int kBits>
  static KVANT_INLINE void pack_codes(const std::uint8_t* codes, std::uint8_t* packed, bool stream) {
    static_assert(kBits == 4 || kBits == 2);
    if constexpr (kBits == 4)
      pack_nibbles(codes, packed, stream);
    else
      pack_pairs(codes, packed, stream);
  }
  // Each pair of bytes (lo, hi) becomes lo + 16 * hi, which fits a byte.
  static KVANT_INLINE void pack_nibbles(const std::uint8_t* codes, std::uint8_t* packed, bool stream) {
    const __m256i nibble = _mm256_set1_epi8(0xF);
    const __m256i weights = _mm256_set1_epi16(0x1001);
    const __m256i lo = _mm256_maddubs_epi16(_mm256_and_si256(load_256(codes), nibble), weights);
    const __m256i hi = _mm256_maddubs_epi16(_mm256_and_si256(load_256(codes + 32), nibble), weights);
    store_256(packed, _mm256_permute4x64_epi64(_mm256_packus_epi16(lo, hi), 0xD8), stream);
  }
  // Four bytes become lo + 4 * next + 16 * (next + 4 * last).
  static KVANT_INLINE void pack_pairs(const std::uint8_t* codes, std::uint8_t* packed, bool stream) {
    const auto bytes_of = [codes](int i) KVANT_INLINE_LAMBDA {
      const __m256i lowest = _mm256_and_si256(load_256(codes + i), _mm256_set1_epi8(3));
      const __m256i nibbles = _mm256_maddubs_epi16(lowest, _mm256_set1_epi16(0x0401));
      return _mm256_madd_epi16(nibbles, _mm256_set1_epi32(0x00100001));
    };
    const __m256i lo = _mm256_packus_epi32(bytes_of(0), bytes_of(32));
    const __m256i hi = _mm256_packus_epi32(bytes_of(64), bytes_of(96));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    store_256(packed, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(lo, hi), order), stream);
  }
  template <int kBits, bool kSigned>
  static KVANT_INLINE void unpack_codes(const std::uint8_t* packed, std::uint8_t* codes) {
    static_assert(kBits == 4 || kBits == 2);
    if constexpr (kBits == 4) {
      unpack_nibbles<kSigned>(packed, codes);
      unpack_nibbles<kSigned>(packed + 16, codes + 32);
    } else {
      for (int i = 0; i < 4; ++i) unpack_pairs<kSigned>(packed + 8 * i, codes + 32 * i);
    }
  }
  template <bool kSigned>
  static KVANT_INLINE void unpack_pairs(const std::uint8_t* packed, std::uint8_t* codes) {
    const __m256i wide = _mm256_cvtepu8_epi32(load_64(packed));
    const __m256i two = _mm256_or_si256(wide, _mm256_slli_epi32(wide, 6));
    const __m256i four = _mm256_or_si256(two, _mm256_slli_epi32(two, 12));
    __m256i v = _mm256_and_si256(four, _mm256_set1_epi8(3));
    if constexpr (kSigned) {
      const __m256i sign = _mm256_set1_epi8(2);
      v = _mm256_sub_epi8(_mm256_xor_si256(v, sign), sign);
    }
    store_256(codes, v, false);
  }
  template <bool kSigned>
  static KVANT_INLINE void unpack_nibbles(const std::uint8_t* packed, std::uint8_t* codes) {
    const __m256i wide = _mm256_cvtepu8_epi16(load_128(packed));
    const __m256i both = _mm256_or_si256(wide, _mm256_slli_epi16(wide, 4));
    __m256i v = _mm256_and_si256(both, _mm256_set1_epi8(0xF));
    if constexpr (kSigned) {
      const __m256i sign = _mm256_set1_epi8(8);
      v = _mm256_sub_epi8(_mm256_xor_si256(v, sign), sign);
    }
    store_256(codes, v, false);
  }

  static KVANT_INLINE __m256i and_bits(__m256i a, __m256i b) { return _mm256_and_si256(a, b); }
  static KVANT_INLINE __m256i or_bits(__m256i a, __m256i b) { return _mm256_or_si256(a, b); }

  static constexpr std::size_t kStreamAlignment = 32;
  static KVANT_INLINE void finish_streaming() { _mm_sfence(); }
};

template <class In>
struct Avx2RangeBits;

struct Avx2F32 : Avx2Shared {
  using C = float;
  using F = __m256;
  using I = __m256i;
  using M = __m256;
  using B = __m256i;
  using Quad = semantics::Quad<F>;
  using QuadI = semantics::Quad<I>;

  static constexpr int kWidth = 8;
  static constexpr bool kHasFma = true;
  static constexpr bool kHasNarrowCodes = true;
  static constexpr bool kHasHalves = true;
  static constexpr bool kHasGridCodes = true;
  // Ranges of 16-bit elements, in place of a WideRange.
  static constexpr bool kHasRangeBits = true;
  template <class In>
  using RangeBits = Avx2RangeBits<In>;
  // A shift and a mask split 16 bf16 into even and odd ones, where widening neighbours takes two shuffles more.
  template <class In>
  static constexpr Order kUniformOrder = std::is_same_v<In, BFloat16> ? Order::even_odd : Order::natural;

  static KVANT_INLINE F set(float c) { return _mm256_set1_ps(c); }
  static KVANT_INLINE I set_int(std::int32_t i) { return _mm256_set1_epi32(i); }
  static KVANT_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
  static KVANT_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static KVANT_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static KVANT_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
  static KVANT_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static KVANT_INLINE F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  static KVANT_INLINE F sqrt(F a) { return _mm256_sqrt_ps(a); }
  static KVANT_INLINE F min(F a, F b) { return _mm256_min_ps(a, b); }
  static KVANT_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }
  static KVANT_INLINE F round_even(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static KVANT_INLINE I to_int(F a) { return _mm256_cvtps_epi32(a); }
  static KVANT_INLINE F to_float(I i) { return _mm256_cvtepi32_ps(i); }
  static KVANT_INLINE I add_int(I a, I b) { return _mm256_add_epi32(a, b); }
  static KVANT_INLINE I sub_int(I a, I b) { return _mm256_sub_epi32(a, b); }
  static KVANT_INLINE I min_int(I a, I b) { return _mm256_min_epi32(a, b); }
  static KVANT_INLINE I max_int(I a, I b) { return _mm256_max_epi32(a, b); }
  static KVANT_INLINE I and_int(I a, I b) { return _mm256_and_si256(a, b); }
  static KVANT_INLINE I or_int(I a, I b) { return _mm256_or_si256(a, b); }
  static KVANT_INLINE B bits(F a) { return _mm256_castps_si256(a); }
  static KVANT_INLINE F from_bits(B b) { return _mm256_castsi256_ps(b); }
  static KVANT_INLINE B set_bits(std::uint32_t b) { return _mm256_set1_epi32(static_cast<int>(b)); }
  static KVANT_INLINE B add_bits(B a, B b) { return _mm256_add_epi32(a, b); }
  static KVANT_INLINE B sub_bits(B a, B b) { return _mm256_sub_epi32(a, b); }
  static KVANT_INLINE B shift_bits_left(B a, int n) { return _mm256_sll_epi32(a, _mm_cvtsi32_si128(n)); }
  static KVANT_INLINE B shift_bits_right(B a, int n) { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(n)); }
  static KVANT_INLINE I to_int_bits(B b) { return b; }
  static KVANT_INLINE B int_bits(I i) { return i; }
  static KVANT_INLINE M le(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
  static KVANT_INLINE M both(M a, M b) { return _mm256_and_ps(a, b); }
  static KVANT_INLINE bool all(M m) { return _mm256_movemask_ps(m) == 0xFF; }
  static KVANT_INLINE F masked(M m, F a) { return _mm256_and_ps(m, a); }
  static KVANT_INLINE F select(M m, F a, F b) { return _mm256_blendv_ps(b, a, m); }
  static KVANT_INLINE I select_int(M m, I a, I b) { return _mm256_blendv_epi8(b, a, _mm256_castps_si256(m)); }
  static KVANT_INLINE F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static KVANT_INLINE F with_sign_of(F a, F b) { return _mm256_or_ps(abs(a), _mm256_and_ps(_mm256_set1_ps(-0.0f), b)); }
  static KVANT_INLINE F scale_exponent(F a, I i) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(i, 23)));
  }
  static KVANT_INLINE F zero_if_nan(F a) { return _mm256_and_ps(a, _mm256_cmp_ps(a, a, _CMP_ORD_Q)); }
  static KVANT_INLINE F nan_if_nan(F a) {
    return _mm256_blendv_ps(a, set(__builtin_nanf("")), _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  }

  template <Order kOrder>
  static KVANT_INLINE Quad load(const float* p) {
    static_assert(kOrder == Order::natural);
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8), _mm256_loadu_ps(p + 16), _mm256_loadu_ps(p + 24)};
  }
  template <Order kOrder>
  static KVANT_INLINE Quad load(const Half* p) {
    static_assert(kOrder == Order::natural);
    return {_mm256_cvtph_ps(load_128(p)), _mm256_cvtph_ps(load_128(p + 8)), _mm256_cvtph_ps(load_128(p + 16)),
            _mm256_cvtph_ps(load_128(p + 24))};
  }
  template <Order kOrder>
  static KVANT_INLINE Quad load(const BFloat16* p) {
    if constexpr (kOrder == Order::natural) {
      return {widen(load_128(p)), widen(load_128(p + 8)), widen(load_128(p + 16)), widen(load_128(p + 24))};
    } else {
      const __m256i lo = load_256(p);
      const __m256i hi = load_256(p + 16);
      const __m256i odd = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
      return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)), _mm256_castsi256_ps(_mm256_and_si256(lo, odd)),
              _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16)), _mm256_castsi256_ps(_mm256_and_si256(hi, odd))};
    }
  }
  static KVANT_INLINE F broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  // Parameters in the order in which load<kOrder> spreads elements.
  template <Order kOrder>
  static KVANT_INLINE Quad load_parameters(const float* p) {
    const Quad q = load<Order::natural>(p);
    if constexpr (kOrder == Order::natural)
      return q;
    else
      return {evens(q.a, q.b), odds(q.a, q.b), evens(q.c, q.d), odds(q.c, q.d)};
  }
  template <Order kOrder>
  static KVANT_INLINE QuadI load_parameters(const std::int32_t* p) {
    const QuadI q = load_int(p);
    if constexpr (kOrder == Order::natural)
      return q;
    else
      return {_mm256_castps_si256(evens(_mm256_castsi256_ps(q.a), _mm256_castsi256_ps(q.b))),
              _mm256_castps_si256(odds(_mm256_castsi256_ps(q.a), _mm256_castsi256_ps(q.b))),
              _mm256_castps_si256(evens(_mm256_castsi256_ps(q.c), _mm256_castsi256_ps(q.d))),
              _mm256_castps_si256(odds(_mm256_castsi256_ps(q.c), _mm256_castsi256_ps(q.d)))};
  }
  static KVANT_INLINE F evens(F a, F b) { return sort_pairs(_mm256_shuffle_ps(a, b, 0x88)); }
  static KVANT_INLINE F odds(F a, F b) { return sort_pairs(_mm256_shuffle_ps(a, b, 0xDD)); }
  static KVANT_INLINE F sort_pairs(F v) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xD8)); }
  static KVANT_INLINE F widen(__m128i bf16) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bf16), 16));
  }

  static KVANT_INLINE QuadI load_int(const std::int32_t* p) {
    return {load_256(p), load_256(p + 8), load_256(p + 16), load_256(p + 24)};
  }
  static KVANT_INLINE QuadI load_int(const std::int8_t* p) {
    return {_mm256_cvtepi8_epi32(load_64(p)), _mm256_cvtepi8_epi32(load_64(p + 8)),
            _mm256_cvtepi8_epi32(load_64(p + 16)), _mm256_cvtepi8_epi32(load_64(p + 24))};
  }
  static KVANT_INLINE QuadI load_int(const std::uint8_t* p) {
    return {_mm256_cvtepu8_epi32(load_64(p)), _mm256_cvtepu8_epi32(load_64(p + 8)),
            _mm256_cvtepu8_epi32(load_64(p + 16)), _mm256_cvtepu8_epi32(load_64(p + 24))};
  }

  static KVANT_INLINE QuadI load_int(const std::int16_t* p) {
    return {_mm256_cvtepi16_epi32(load_128(p)), _mm256_cvtepi16_epi32(load_128(p + 8)),
            _mm256_cvtepi16_epi32(load_128(p + 16)), _mm256_cvtepi16_epi32(load_128(p + 24))};
  }
  static KVANT_INLINE QuadI load_int(const std::uint16_t* p) {
    return {_mm256_cvtepu16_epi32(load_128(p)), _mm256_cvtepu16_epi32(load_128(p + 8)),
            _mm256_cvtepu16_epi32(load_128(p + 16)), _mm256_cvtepu16_epi32(load_128(p + 24))};
  }

  template <Order kOrder>
  static KVANT_INLINE void store(float* p, const Quad& q, bool stream) {
    static_assert(kOrder == Order::natural);
    store_256(p, _mm256_castps_si256(q.a), stream);
    store_256(p + 8, _mm256_castps_si256(q.b), stream);
    store_256(p + 16, _mm256_castps_si256(q.c), stream);
    store_256(p + 24, _mm256_castps_si256(q.d), stream);
  }
  template <Order kOrder>
  static KVANT_INLINE void store(Half* p, const Quad& q, bool stream) {
    static_assert(kOrder == Order::natural);
    store_256(p, join(to_half(q.a), to_half(q.b)), stream);
    store_256(p + 16, join(to_half(q.c), to_half(q.d)), stream);
  }
  static KVANT_INLINE __m128i to_half(F x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  template <Order kOrder>
  static KVANT_INLINE void store(BFloat16* p, const Quad& q, bool stream) {
    const __m256i a = round_to_bf16(q.a), b = round_to_bf16(q.b);
    const __m256i c = round_to_bf16(q.c), d = round_to_bf16(q.d);
    if constexpr (kOrder == Order::natural) {
      store_256(p, join_neighbours(a, b), stream);
      store_256(p + 16, join_neighbours(c, d), stream);
    } else {
      store_256(p, _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xAA), stream);
      store_256(p + 16, _mm256_blend_epi16(_mm256_srli_epi32(c, 16), d, 0xAA), stream);
    }
  }
  // The rounded bf16 in the upper half of each element; semantics/half.h explains the bits. NaN needs no test: here it
  // comes from a bf16 or is the default one (semantics::prepare sees to the scales), so its lower half is zero and
  // nothing carries out of it.
  static KVANT_INLINE __m256i round_to_bf16(F x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7FFF)));
  }
  static KVANT_INLINE __m256i join_neighbours(__m256i a, __m256i b) {
    const __m256i joined = _mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));
    return _mm256_permute4x64_epi64(joined, 0xD8);
  }

  static KVANT_INLINE F get(const float* p) { return _mm256_loadu_ps(p); }
  static KVANT_INLINE F get(const Half* p) { return _mm256_cvtph_ps(load_128(p)); }
  static KVANT_INLINE F get(const BFloat16* p) { return widen(load_128(p)); }
  static KVANT_INLINE void put(float* p, F x) { _mm256_storeu_ps(p, x); }
  static KVANT_INLINE void put(Half* p, F x) { store_128(p, to_half(x), false); }
  static KVANT_INLINE void put(BFloat16* p, F x) {
    const __m256i bits = round_to_bf16(nan_if_nan(x));
    store_128(p, _mm256_castsi256_si128(join_neighbours(bits, bits)), false);
  }
  // The first numbers of a vector, where memory ends behind them; `fill` in place of the others.
  static KVANT_INLINE __m256i mask_of_first(int count) {
    return _mm256_cmpgt_epi32(set_int(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static KVANT_INLINE F get_first(const float* p, int count, float fill) {
    const __m256i mask = mask_of_first(count);
    return select(_mm256_castsi256_ps(mask), _mm256_maskload_ps(p, mask), set(fill));
  }
  static KVANT_INLINE void put_first(float* p, int count, F x) { _mm256_maskstore_ps(p, mask_of_first(count), x); }
  static KVANT_INLINE I get_int(const std::int32_t* p) { return load_256(p); }
  static KVANT_INLINE void put_int(std::int32_t* p, I x) { store_256(p, x, false); }

  // Codes that already lie inside the type, so that saturating packs only move them.
  static KVANT_INLINE __m256i pack_to(std::int8_t*, __m256i a, __m256i b) { return _mm256_packs_epi16(a, b); }
  static KVANT_INLINE __m256i pack_to(std::uint8_t*, __m256i a, __m256i b) { return _mm256_packus_epi16(a, b); }
  static KVANT_INLINE __m256i gather_quarters(__m256i v) {
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  template <class T>
  static KVANT_INLINE void store_codes(T* p, const QuadI& q, bool stream) {
    const __m256i v = pack_to(p, _mm256_packs_epi32(q.a, q.b), _mm256_packs_epi32(q.c, q.d));
    store_256(p, gather_quarters(v), stream);
  }
  static KVANT_INLINE void store_codes(std::int16_t* p, const QuadI& q, bool stream) {
    store_256(p, _mm256_permute4x64_epi64(_mm256_packs_epi32(q.a, q.b), 0xD8), stream);
    store_256(p + 16, _mm256_permute4x64_epi64(_mm256_packs_epi32(q.c, q.d), 0xD8), stream);
  }
  static KVANT_INLINE void store_codes(std::uint16_t* p, const QuadI& q, bool stream) {
    store_256(p, _mm256_permute4x64_epi64(_mm256_packus_epi32(q.a, q.b), 0xD8), stream);
    store_256(p + 16, _mm256_permute4x64_epi64(_mm256_packus_epi32(q.c, q.d), 0xD8), stream);
  }

  // Two vectors of int32 in 16 bits, for elements that load<kOrder> spread. A NaN's 0x80000000 becomes -32768 when
  // packed and 0 when interleaved.
  template <Order kOrder>
  static KVANT_INLINE __m256i to_16_bits(__m256i a, __m256i b) {
    if constexpr (kOrder == Order::even_odd)
      return _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xAA);
    else
      return _mm256_packs_epi32(a, b);
  }
  // Stores q + zero_point, saturated into T, for q and zero points in 16 bits. kNan: q may have come from NaN, which
  // counts as 0.
  template <Order kOrder, bool kNan, class T>
  static KVANT_INLINE void store_narrow(T* p, const QuadI& q, const QuadI& zero_point, bool stream) {
    const auto add_zero_point = [](__m256i v, __m256i zp) KVANT_INLINE_LAMBDA {
      if constexpr (kNan && kOrder == Order::natural)
        v = _mm256_andnot_si256(_mm256_cmpeq_epi16(v, _mm256_set1_epi16(-32768)), v);
      return _mm256_adds_epi16(v, zp);
    };
    const __m256i ab = add_zero_point(to_16_bits<kOrder>(q.a, q.b), to_16_bits<kOrder>(zero_point.a, zero_point.b));
    const __m256i cd = add_zero_point(to_16_bits<kOrder>(q.c, q.d), to_16_bits<kOrder>(zero_point.c, zero_point.d));
    const __m256i v = pack_to(p, ab, cd);
    if constexpr (kOrder == Order::even_odd)
      store_256(p, _mm256_permute4x64_epi64(v, 0xD8), stream);
    else
      store_256(p, gather_quarters(v), stream);
  }

  // Integers of 0 to 255, for elements that load<kOrder> spread.
  template <Order kOrder>
  static KVANT_INLINE void store_bytes(std::uint8_t* p, const QuadI& q, bool stream) {
    const __m256i v = _mm256_packus_epi16(to_16_bits<kOrder>(q.a, q.b), to_16_bits<kOrder>(q.c, q.d));
    if constexpr (kOrder == Order::even_odd)
      store_256(p, _mm256_permute4x64_epi64(v, 0xD8), stream);
    else
      store_256(p, gather_quarters(v), stream);
  }

  // ---- Codes of floating-point grids ----

  // A constant that stays in a register, or in memory where registers run out. GCC 12 makes others anew for every
  // block, from integer registers, by three instructions each. (f32 to e2m1 in groups of 32 took 22.7 cycles for 32
  // elements so, and takes 20.2 with these.)
  static KVANT_INLINE __m256i kept(__m256i v) {
    __asm__("" : "+x"(v));
    return v;
  }
  static KVANT_INLINE F kept(F v) { return from_bits(kept(bits(v))); }

  // What numbers of type In take to become codes of a grid, a block at a time: the same for all of a job.
  template <class In>
  struct GridCoder {
    static constexpr bool kPairs = sizeof(In) == 2;  // magnitudes are those of two numbers in 32 bits
    static constexpr bool kIsHalf = std::is_same_v<In, Half>;
    semantics::GridSum<Avx2F32> sum;
    __m256i magnitude, infinity;
    __m256i weights, offset, to_code;
    __m256i sign, sign_16, index_mask;
    __m128i sign_shift;

    KVANT_INLINE explicit GridCoder(const semantics::FloatGrid& grid) : sum(grid.f32) {
      const int beyond = grid.f32.fraction_shift - 16;
      sum.min_normal = kept(sum.min_normal);
      sum.factor = kept(sum.factor);
      sum.exponent_mask = kept(sum.exponent_mask);
      magnitude = kept(set_bits(kPairs ? 0x7FFF7FFF : 0x7FFFFFFF));
      infinity = kept(set_bits(kIsHalf ? 0x7C007C00 : kPairs ? 0x7F807F80 : 0x7F800000));
      weights = kept(set_int(1 << 16 | 1 << beyond));
      offset = kept(_mm256_set1_epi16(static_cast<short>(grid.f32.code_offset << beyond)));
      to_code = kept(_mm256_set1_epi16(static_cast<short>(1 << (16 - beyond))));
      sign = kept(_mm256_set1_epi8(-128));
      sign_16 = kept(_mm256_set1_epi16(-32768));
      index_mask = kept(_mm256_set1_epi16(static_cast<short>(0xFF7F)));
      sign_shift = _mm_cvtsi32_si128(8 - grid.bits);
    }

    // A block of magnitudes, spread as load<kUniformOrder> does.
    KVANT_INLINE Quad magnitudes(const In* p) const {
      if constexpr (kPairs) {
        const __m256i zero = _mm256_setzero_si256();
        const __m256i lo = _mm256_and_si256(load_256(p), magnitude), hi = _mm256_and_si256(load_256(p + 16), magnitude);
        if constexpr (kIsHalf)
          return {_mm256_cvtph_ps(_mm256_castsi256_si128(lo)), _mm256_cvtph_ps(_mm256_extracti128_si256(lo, 1)),
                  _mm256_cvtph_ps(_mm256_castsi256_si128(hi)), _mm256_cvtph_ps(_mm256_extracti128_si256(hi, 1))};
        return {from_bits(_mm256_slli_epi32(lo, 16)), from_bits(_mm256_blend_epi16(zero, lo, 0xAA)),
                from_bits(_mm256_slli_epi32(hi, 16)), from_bits(_mm256_blend_epi16(zero, hi, 0xAA))};
      } else {
        return map([&](F v) KVANT_INLINE_LAMBDA { return from_bits(_mm256_and_si256(bits(v), magnitude)); },
                   load<Order::natural>(p));
      }
    }

    // A number as magnitudes are compared with it.
    static KVANT_INLINE __m256i limit(F number) {
      if constexpr (!kPairs) return bits(number);
      if constexpr (kIsHalf) {
        const __m128i below = _mm256_cvtps_ph(number, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
        return join(below, below);
      }
      const __m256i upper = _mm256_srli_epi32(bits(number), 16);
      return _mm256_or_si256(upper, _mm256_slli_epi32(upper, 16));
    }
    // All of a block are at most that. NaN is not: bits of magnitudes are in the order of the numbers, and it comes
    // last.
    KVANT_INLINE bool within(const In* p, __m256i limit) const {
      __m256i beyond;
      if constexpr (kPairs) {
        const __m256i lo = _mm256_and_si256(load_256(p), magnitude), hi = _mm256_and_si256(load_256(p + 16), magnitude);
        beyond = _mm256_cmpgt_epi16(_mm256_max_epu16(lo, hi), limit);
      } else {
        const Quad v = magnitudes(p);
        const __m256i ab = _mm256_max_epi32(bits(v.a), bits(v.b)), cd = _mm256_max_epi32(bits(v.c), bits(v.d));
        beyond = _mm256_cmpgt_epi32(_mm256_max_epi32(ab, cd), limit);
      }
      return _mm256_testz_si256(beyond, beyond) != 0;
    }
    KVANT_INLINE bool none_is_nan(const In* p) const {
      if constexpr (kPairs) return within(p, infinity);
      const Quad v = magnitudes(p);
      const F ab = _mm256_cmp_ps(v.a, v.b, _CMP_UNORD_Q), cd = _mm256_cmp_ps(v.c, v.d, _CMP_UNORD_Q);
      return _mm256_movemask_ps(_mm256_or_ps(ab, cd)) == 0;
    }

    // ---- bf16 with one scale ----
    //
    // Among eight neighbouring mantissas of bf16 the code changes once at most: they are 1/16 of a power of two in x,
    // so 1/8 of one in the quotient at most, and codes are no closer. So the code is (b + entry) >> (7 - M), where b
    // are the bits of the number, M are the mantissa bits of the grid, and the upper four bits of the mantissa find the
    // entry. That serves all exponents: neither the quotient nor the grid rounds differently, as long as codes are
    // those of normal numbers. (bf16 to e4m3 takes 5.5 cycles for 32 elements in place of 14.1.)
    static constexpr bool kHasSteps = kPairs && !kIsHalf;
    struct Steps {
      __m256i table;  // bytes
      __m256i first;  // the least b with a normal quotient, with a sign
      __m256i range;  // from there to the last that needs no clamp
    };
    // By the quotients of all mantissas.
    template <class Quotient>
    static KVANT_INLINE Steps steps(const Quotient& quotient, F scale, F last, const semantics::FloatGrid& grid) {
      const auto& n = grid.f32;
      const semantics::GridSum<Avx2F32> sum_of(n);
      const __m256i least = bits(mul(scale, set(n.min_normal)));
      const __m256i first = add_int(_mm256_srli_epi32(least, 16), set_int(1));
      // Numbers of one exponent, twice the least one or a bit less.
      const __m256i exponent = add_int(_mm256_srli_epi32(least, 23), set_int(1));
      // Of eight stretches of eight mantissas each. The code goes up after `same` of eight, and so must b + entry.
      const auto entries = [&](int stretch) KVANT_INLINE_LAMBDA {
        const __m256i mantissa =
            _mm256_slli_epi32(add_int(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), set_int(stretch)), 3);
        const __m256i b = add_int(_mm256_slli_epi32(exponent, 7), mantissa);
        const auto code = [&](int i) KVANT_INLINE_LAMBDA {
          const F x = from_bits(_mm256_slli_epi32(add_int(b, set_int(i)), 16));
          return semantics::GridSum<Avx2F32>::code(sum_of(quotient(x)), n);
        };
        const __m256i of_first = code(0);
        __m256i same = set_int(8);
        for (int i = 1; i < 8; ++i) same = sub_int(same, sub_int(code(i), of_first));
        const __m256i next = shift_bits_left(add_int(of_first, set_int(1)), n.fraction_shift - 16);
        return add_int(sub_int(next, add_int(b, same)), first);
      };
      const __m256i in_16_bits = _mm256_permute4x64_epi64(_mm256_packs_epi32(entries(0), entries(8)), 0xD8);
      const auto in_both_halves = [](__m256i v)
                                      KVANT_INLINE_LAMBDA { return _mm256_or_si256(v, _mm256_slli_epi32(v, 16)); };
      return {_mm256_permute4x64_epi64(_mm256_packus_epi16(in_16_bits, in_16_bits), 0x88),
              in_both_halves(add_int(first, set_int(0x8000))),
              in_both_halves(sub_int(_mm256_srli_epi32(bits(last), 16), first))};
    }
    // The codes of a block; false if not all of it is between first and last or, kZeros, zero.
    template <bool kZeros>
    KVANT_INLINE bool store_by_steps(std::uint8_t* p, const In* x, const Steps& steps, bool stream) const {
      // With a sign everywhere, indices of upper bytes have their top bit, for which a shuffle gives 0.
      const __m256i a = _mm256_or_si256(load_256(x), sign_16), b = _mm256_or_si256(load_256(x + 16), sign_16);
      const auto unless_zero = [&](__m256i v, __m256i result) KVANT_INLINE_LAMBDA {
        return kZeros ? _mm256_andnot_si256(_mm256_cmpeq_epi16(v, sign_16), result) : result;
      };
      const __m256i from_a = unless_zero(a, _mm256_sub_epi16(a, steps.first));
      const __m256i from_b = unless_zero(b, _mm256_sub_epi16(b, steps.first));
      const __m256i beyond = _mm256_subs_epu16(_mm256_max_epu16(from_a, from_b), steps.range);
      if (__builtin_expect(_mm256_testz_si256(beyond, beyond) == 0, 0)) return false;
      const auto codes = [&](__m256i v, __m256i from) KVANT_INLINE_LAMBDA {
        const __m256i index = _mm256_and_si256(_mm256_srai_epi16(v, 3), index_mask);
        const __m256i shifted = _mm256_add_epi16(from, _mm256_shuffle_epi8(steps.table, index));
        return unless_zero(v, _mm256_mulhi_epu16(shifted, to_code));
      };
      const __m256i packed = _mm256_packus_epi16(codes(a, from_a), codes(b, from_b));
      const __m256i signs = _mm256_packs_epi16(load_256(x), load_256(x + 16));
      store_256(p, _mm256_permute4x64_epi64(with_signs(packed, signs), 0xD8), stream);
      return true;
    }

    KVANT_INLINE __m256i with_signs(__m256i code, __m256i signed_bytes) const {
      return _mm256_or_si256(code, _mm256_srl_epi16(_mm256_and_si256(signed_bytes, sign), sign_shift));
    }

    // The codes of magnitudes from their sums, with the signs of the numbers at x.
    //
    // The two terms of a code are the halves of a sum, the upper one fraction_shift - 16 bits too far left: one
    // multiplication of 16 bits, which adds neighbours, puts them together. Subtracting and shifting wait until two
    // vectors are one.
    KVANT_INLINE void store(std::uint8_t* p, const Quad& sums, const In* x, bool stream) const {
      const auto codes = [&](F a, F b) KVANT_INLINE_LAMBDA {
        const __m256i shifted =
            _mm256_packs_epi32(_mm256_madd_epi16(bits(a), weights), _mm256_madd_epi16(bits(b), weights));
        return _mm256_mulhi_epu16(_mm256_sub_epi16(shifted, offset), to_code);
      };
      const __m256i packed = _mm256_packus_epi16(codes(sums.a, sums.b), codes(sums.c, sums.d));
      // Signs of 32 bits are packed as the sums were; from 16 bits they come in the order of the bytes.
      if constexpr (std::is_same_v<In, float>) {
        const __m256i signs = _mm256_packs_epi16(_mm256_packs_epi32(load_256(x), load_256(x + 8)),
                                                 _mm256_packs_epi32(load_256(x + 16), load_256(x + 24)));
        store_256(p, gather_quarters(with_signs(packed, signs)), stream);
      } else {
        const __m256i signs = _mm256_packs_epi16(load_256(x), load_256(x + 16));
        if constexpr (!kIsHalf) {
          const __m256i neighbours = _mm256_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15, 0, 4, 1, 5,
                                                      2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
          const __m256i v = with_signs(_mm256_shuffle_epi8(packed, neighbours), signs);
          store_256(p, _mm256_permute4x64_epi64(v, 0xD8), stream);
        } else {
          store_256(p, with_signs(gather_quarters(packed), _mm256_permute4x64_epi64(signs, 0xD8)), stream);
        }
      }
    }
  };

  // The bf16 of a scale times the numbers of codes, in tables for shuffles of bytes. The lower four bits of a code find
  // a number in them, the upper four add to its exponent and sign, which is to say to its upper byte. Subnormal numbers
  // are among the first 16 magnitudes, which therefore have numbers of their own.
  struct GridProducts {
    __m256i low, high;              // bytes of the numbers of magnitudes 16 to 31, with 16 taken off
    __m256i first_low, first_high;  // what makes those of magnitudes 0 to 15 of them, by exclusive or
    __m256i upper;                  // what the upper four bits add
  };
  template <class Product, class Grid>
  static KVANT_INLINE GridProducts grid_products(const Product& product, const Grid& grid) {
    const __m256i code = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    // The lower bytes of 16 numbers in the lower half, the upper ones in the upper half.
    const auto bytes_from = [&](int first) KVANT_INLINE_LAMBDA {
      const __m256i numbers = join_neighbours(round_to_bf16(product(add_int(code, set_int(first)))),
                                              round_to_bf16(product(add_int(code, set_int(first + 8)))));
      const __m256i low = _mm256_and_si256(numbers, _mm256_set1_epi16(0xFF));
      return _mm256_permute4x64_epi64(_mm256_packus_epi16(low, _mm256_srli_epi16(numbers, 8)), 0xD8);
    };
    // A step of the upper bits is 2^(4-M) exponents, and the upper byte of a bf16 counts them in twos.
    const int step = 1 << (3 - mantissa_bits(grid));
    const __m256i above =
        _mm256_sub_epi8(bytes_from(16), join(_mm_setzero_si128(), _mm_set1_epi8(static_cast<char>(step))));
    const __m256i first = _mm256_xor_si256(bytes_from(0), above);
    const __m256i nibble =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    const auto of_nibble = [&](int mask, int factor) KVANT_INLINE_LAMBDA {
      return _mm256_mullo_epi16(_mm256_and_si256(nibble, _mm256_set1_epi8(static_cast<char>(mask >> 4))),
                                _mm256_set1_epi16(static_cast<short>(factor)));
    };
    return {_mm256_permute4x64_epi64(above, 0x44), _mm256_permute4x64_epi64(above, 0xEE),
            _mm256_permute4x64_epi64(first, 0x44), _mm256_permute4x64_epi64(first, 0xEE),
            _mm256_or_si256(of_nibble(grid.magnitude_mask, step), of_nibble(grid.sign_code, 1 << (12 - grid.bits)))};
  }
  template <class Grid>
  static KVANT_INLINE int mantissa_bits(const Grid& grid) {
    return 10 - grid.half_shift;
  }
  // 32 codes by these; none is infinite.
  template <class Grid>
  static KVANT_INLINE void store_grid_products(BFloat16* out, const std::uint8_t* p, const GridProducts& products,
                                               const Grid& grid, bool stream) {
    const int last = grid.last_code() < 15 ? 15 : grid.last_code();
    // In the order in which unpacking halves of vectors makes neighbours of them.
    const __m256i code = _mm256_permute4x64_epi64(load_256(p), 0xD8);
    // Signs of less than eight bits are found with the magnitude.
    const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi8(static_cast<char>(grid.magnitude_mask | 15)));
    // From 16 on this has the top bit, for which a shuffle gives 0.
    const __m256i among_first = _mm256_add_epi8(magnitude, _mm256_set1_epi8(0x70));
    const __m256i upper =
        _mm256_shuffle_epi8(products.upper, _mm256_and_si256(_mm256_srli_epi16(code, 4), _mm256_set1_epi8(15)));
    const __m256i low = _mm256_xor_si256(_mm256_shuffle_epi8(products.low, magnitude),
                                         _mm256_shuffle_epi8(products.first_low, among_first));
    const __m256i high = _mm256_xor_si256(_mm256_shuffle_epi8(products.high, magnitude),
                                          _mm256_shuffle_epi8(products.first_high, among_first));
    const __m256i nan = _mm256_cmpgt_epi8(magnitude, _mm256_set1_epi8(static_cast<char>(last)));
    const __m256i low_bytes = _mm256_blendv_epi8(low, _mm256_set1_epi8(static_cast<char>(0xC0)), nan);
    const __m256i high_bytes = _mm256_blendv_epi8(_mm256_add_epi8(high, upper), _mm256_set1_epi8(0x7F), nan);
    store_256(out, _mm256_unpacklo_epi8(low_bytes, high_bytes), stream);
    store_256(out + 16, _mm256_unpackhi_epi8(low_bytes, high_bytes), stream);
  }

  // 32 codes of a floating-point grid: none is infinite or NaN.
  template <class Grid>
  static KVANT_INLINE bool bytes_are_finite(const std::uint8_t* p, const Grid& grid) {
    const __m256i magnitude = _mm256_and_si256(load_256(p), _mm256_set1_epi8(static_cast<char>(grid.magnitude_mask)));
    const __m256i beyond = _mm256_cmpgt_epi8(magnitude, _mm256_set1_epi8(static_cast<char>(grid.max_code)));
    return _mm256_testz_si256(beyond, beyond) != 0;
  }
  // Their numbers over grid.half_factor.
  template <class Grid>
  static KVANT_INLINE Quad load_as_halves(const std::uint8_t* p, const Grid& grid) {
    const __m128i half_shift = _mm_cvtsi32_si128(grid.half_shift), sign_shift = _mm_cvtsi32_si128(16 - grid.bits);
    const __m256i magnitude_mask = _mm256_set1_epi16(static_cast<short>(grid.magnitude_mask));
    const __m256i sign_mask = _mm256_set1_epi16(static_cast<short>(grid.sign_code));
    const auto halves = [&](const std::uint8_t* from) KVANT_INLINE_LAMBDA {
      const __m256i wide = _mm256_cvtepu8_epi16(load_128(from));
      return _mm256_or_si256(_mm256_sll_epi16(_mm256_and_si256(wide, magnitude_mask), half_shift),
                             _mm256_sll_epi16(_mm256_and_si256(wide, sign_mask), sign_shift));
    };
    const __m256i lo = halves(p), hi = halves(p + 16);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(lo)), _mm256_cvtph_ps(_mm256_extracti128_si256(lo, 1)),
            _mm256_cvtph_ps(_mm256_castsi256_si128(hi)), _mm256_cvtph_ps(_mm256_extracti128_si256(hi, 1))};
  }

  // Of a vector without NaN.
  static KVANT_INLINE float least(F a) {
    __m128 m = _mm_min_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_min_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_min_ss(m, _mm_movehdup_ps(m)));
  }
  static KVANT_INLINE float greatest(F a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
  }

  // Number i and number i + 4 are added, then i and i + 2, then the last two.
  static KVANT_INLINE float total(F a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }

  // Eight vectors of ranges become one: number i is the range of all numbers in vector i.
  static KVANT_INLINE semantics::Range<Avx2F32> transpose_fold(const semantics::Range<Avx2F32>* r) {
    const auto halves = [](const auto& a, const auto& b) KVANT_INLINE_LAMBDA {
      return fold_halves(_mm256_unpacklo_ps(a.lo, b.lo), _mm256_unpackhi_ps(a.lo, b.lo), _mm256_unpacklo_ps(a.hi, b.hi),
                         _mm256_unpackhi_ps(a.hi, b.hi));
    };
    const auto quarters = [](const auto& a, const auto& b) KVANT_INLINE_LAMBDA {
      return fold_halves(unpack_pairs_lo(a.lo, b.lo), unpack_pairs_hi(a.lo, b.lo), unpack_pairs_lo(a.hi, b.hi),
                         unpack_pairs_hi(a.hi, b.hi));
    };
    const auto first = quarters(halves(r[0], r[1]), halves(r[2], r[3]));
    const auto second = quarters(halves(r[4], r[5]), halves(r[6], r[7]));
    return fold_halves(
        _mm256_permute2f128_ps(first.lo, second.lo, 0x20), _mm256_permute2f128_ps(first.lo, second.lo, 0x31),
        _mm256_permute2f128_ps(first.hi, second.hi, 0x20), _mm256_permute2f128_ps(first.hi, second.hi, 0x31));
  }
  static KVANT_INLINE semantics::Range<Avx2F32> fold_halves(F lo_a, F lo_b, F hi_a, F hi_b) {
    return {min(lo_a, lo_b), max(hi_a, hi_b)};
  }
  // Number j of vector i becomes number i of vector j.
  static KVANT_INLINE void transpose(F (&v)[8]) {
    const F a = _mm256_unpacklo_ps(v[0], v[1]), b = _mm256_unpackhi_ps(v[0], v[1]);
    const F c = _mm256_unpacklo_ps(v[2], v[3]), d = _mm256_unpackhi_ps(v[2], v[3]);
    const F e = _mm256_unpacklo_ps(v[4], v[5]), f = _mm256_unpackhi_ps(v[4], v[5]);
    const F g = _mm256_unpacklo_ps(v[6], v[7]), h = _mm256_unpackhi_ps(v[6], v[7]);
    const auto join_halves = [&v](int i, F upper, F lower) KVANT_INLINE_LAMBDA {
      v[i] = _mm256_permute2f128_ps(upper, lower, 0x20);
      v[i + 4] = _mm256_permute2f128_ps(upper, lower, 0x31);
    };
    join_halves(0, unpack_pairs_lo(a, c), unpack_pairs_lo(e, g));
    join_halves(1, unpack_pairs_hi(a, c), unpack_pairs_hi(e, g));
    join_halves(2, unpack_pairs_lo(b, d), unpack_pairs_lo(f, h));
    join_halves(3, unpack_pairs_hi(b, d), unpack_pairs_hi(f, h));
  }
  static KVANT_INLINE F unpack_pairs_lo(F a, F b) {
    return _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
  }
  static KVANT_INLINE F unpack_pairs_hi(F a, F b) {
    return _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
  }
};

// Least and greatest of 16-bit floats, from three integer maxima and minima of their bits: among numbers of one sign
// the order of the bits is the order of the magnitudes. Nothing is widened, and NaN, which floating-point comparisons
// lose, shows. (For f32 the integers took 6 cycles for 32 elements, where a WideRange takes 4.)
//
//   greatest  = the greatest as signed bits, or where all are negative the least as unsigned bits
//   least     = the greatest as unsigned bits if that is negative, or the least as unsigned bits
template <class In>
struct Avx2SignedExtremes {
  static constexpr short kInfinityBits = std::is_same_v<In, Half> ? 0x7C00 : 0x7F80;
  __m256i top;     // greatest as signed bits
  __m256i far;     // greatest as unsigned bits
  __m256i bottom;  // least as unsigned bits

  static KVANT_INLINE Avx2SignedExtremes empty() {
    return {_mm256_set1_epi16(-32768), _mm256_setzero_si256(), _mm256_set1_epi16(-1)};
  }
  KVANT_INLINE void add(__m256i x) {
    top = _mm256_max_epi16(top, x);
    far = _mm256_max_epu16(far, x);
    bottom = _mm256_min_epu16(bottom, x);
  }
  KVANT_INLINE Avx2SignedExtremes with(const Avx2SignedExtremes& e) const {
    return {_mm256_max_epi16(top, e.top), _mm256_max_epu16(far, e.far), _mm256_min_epu16(bottom, e.bottom)};
  }
  KVANT_INLINE __m256i least() const {
    return without_nan(_mm256_blendv_epi8(bottom, far, _mm256_srai_epi16(far, 15)));
  }
  KVANT_INLINE __m256i greatest() const {
    return without_nan(_mm256_blendv_epi8(top, bottom, _mm256_srai_epi16(top, 15)));
  }

 private:
  // NaN counts as the infinity of its sign, so that it shows like one.
  static KVANT_INLINE __m256i without_nan(__m256i v) {
    const __m256i magnitude = _mm256_set1_epi16(0x7FFF);
    return _mm256_or_si256(_mm256_andnot_si256(magnitude, v),
                           _mm256_min_epu16(_mm256_and_si256(v, magnitude), _mm256_set1_epi16(kInfinityBits)));
  }
};

// The range of a block of 32 elements, place by place.
template <class In>
struct Avx2RangeBits {
  using Range = semantics::Range<Avx2F32>;
  using Extremes = Avx2SignedExtremes<In>;
  static constexpr bool kSeesNan = true;
  static constexpr std::int64_t kBlock = 32;
  Extremes a, b;

  static KVANT_INLINE Avx2RangeBits empty() { return {Extremes::empty(), Extremes::empty()}; }
  static KVANT_INLINE Avx2RangeBits first(const In* p) {
    const __m256i x = load_256(p), y = load_256(p + 16);
    return {{x, x, x}, {y, y, y}};
  }
  KVANT_INLINE void add(const In* p) {
    a.add(load_256(p));
    b.add(load_256(p + 16));
  }
  template <class Function>
  KVANT_INLINE void for_each_place(const Function& f) const {
    f(low(a), 0);
    f(high(a), 8);
    f(low(b), 16);
    f(high(b), 24);
  }
  KVANT_INLINE Range folded() const {
    const Extremes all = a.with(b);
    return low(all).with(high(all));
  }

 private:
  static KVANT_INLINE Range low(const Extremes& e) {
    return {widen(_mm256_castsi256_si128(e.least())), widen(_mm256_castsi256_si128(e.greatest()))};
  }
  static KVANT_INLINE Range high(const Extremes& e) {
    return {widen(_mm256_extracti128_si256(e.least(), 1)), widen(_mm256_extracti128_si256(e.greatest(), 1))};
  }
  static KVANT_INLINE __m256 widen(__m128i v) {
    if constexpr (std::is_same_v<In, Half>)
      return _mm256_cvtph_ps(v);
    else
      return Avx2F32::widen(v);
  }
};

struct Avx2F64 : Avx2Shared {
  using C = double;
  using F = __m256d;
  using I = __m128i;
  using M = __m256d;
  using B = __m256i;
  using Quad = semantics::Quad<F>;
  using QuadI = semantics::Quad<I>;

  static constexpr int kWidth = 4;
  static constexpr bool kHasFma = true;
  static constexpr bool kHasNarrowCodes = false;
  static constexpr bool kHasHalves = false;
  struct GridProducts {};
  template <class In>
  struct GridCoder {};
  static constexpr bool kHasGridCodes = false;
  static constexpr bool kHasRangeBits = false;
  template <class In>
  static constexpr Order kUniformOrder = Order::natural;

  static KVANT_INLINE F set(double c) { return _mm256_set1_pd(c); }
  static KVANT_INLINE I set_int(std::int32_t i) { return _mm_set1_epi32(i); }
  static KVANT_INLINE F add(F a, F b) { return _mm256_add_pd(a, b); }
  static KVANT_INLINE F sub(F a, F b) { return _mm256_sub_pd(a, b); }
  static KVANT_INLINE F mul(F a, F b) { return _mm256_mul_pd(a, b); }
  static KVANT_INLINE F div(F a, F b) { return _mm256_div_pd(a, b); }
  static KVANT_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_pd(a, b, c); }
  static KVANT_INLINE F fnma(F a, F b, F c) { return _mm256_fnmadd_pd(a, b, c); }
  static KVANT_INLINE F min(F a, F b) { return _mm256_min_pd(a, b); }
  static KVANT_INLINE F max(F a, F b) { return _mm256_max_pd(a, b); }
  static KVANT_INLINE F round_even(F a) { return _mm256_round_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static KVANT_INLINE I to_int(F a) { return _mm256_cvtpd_epi32(a); }
  static KVANT_INLINE F to_float(I i) { return _mm256_cvtepi32_pd(i); }
  static KVANT_INLINE I add_int(I a, I b) { return _mm_add_epi32(a, b); }
  static KVANT_INLINE I sub_int(I a, I b) { return _mm_sub_epi32(a, b); }
  static KVANT_INLINE I min_int(I a, I b) { return _mm_min_epi32(a, b); }
  static KVANT_INLINE I max_int(I a, I b) { return _mm_max_epi32(a, b); }
  static KVANT_INLINE I and_int(I a, I b) { return _mm_and_si128(a, b); }
  static KVANT_INLINE I or_int(I a, I b) { return _mm_or_si128(a, b); }
  static KVANT_INLINE B bits(F a) { return _mm256_castpd_si256(a); }
  static KVANT_INLINE F from_bits(B b) { return _mm256_castsi256_pd(b); }
  static KVANT_INLINE B set_bits(std::uint64_t b) { return _mm256_set1_epi64x(static_cast<long long>(b)); }
  static KVANT_INLINE B add_bits(B a, B b) { return _mm256_add_epi64(a, b); }
  static KVANT_INLINE B sub_bits(B a, B b) { return _mm256_sub_epi64(a, b); }
  static KVANT_INLINE B shift_bits_left(B a, int n) { return _mm256_sll_epi64(a, _mm_cvtsi32_si128(n)); }
  static KVANT_INLINE B shift_bits_right(B a, int n) { return _mm256_srl_epi64(a, _mm_cvtsi32_si128(n)); }
  static KVANT_INLINE I to_int_bits(B b) { return low_halves(_mm256_castsi256_ps(b)); }
  static KVANT_INLINE B int_bits(I i) { return _mm256_cvtepu32_epi64(i); }
  // The low 32 bits of each number.
  static KVANT_INLINE I low_halves(__m256 v) {
    return _mm_castps_si128(_mm_shuffle_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1), 0x88));
  }
  static KVANT_INLINE M le(F a, F b) { return _mm256_cmp_pd(a, b, _CMP_LE_OQ); }
  static KVANT_INLINE M both(M a, M b) { return _mm256_and_pd(a, b); }
  static KVANT_INLINE bool all(M m) { return _mm256_movemask_pd(m) == 0xF; }
  static KVANT_INLINE F masked(M m, F a) { return _mm256_and_pd(m, a); }
  static KVANT_INLINE F select(M m, F a, F b) { return _mm256_blendv_pd(b, a, m); }
  static KVANT_INLINE I select_int(M m, I a, I b) { return _mm_blendv_epi8(b, a, low_halves(_mm256_castpd_ps(m))); }
  static KVANT_INLINE F abs(F a) { return _mm256_andnot_pd(_mm256_set1_pd(-0.0), a); }
  static KVANT_INLINE F scale_exponent(F a, I i) {
    const __m256i shifted = _mm256_slli_epi64(_mm256_cvtepi32_epi64(i), 52);
    return _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(a), shifted));
  }
  static KVANT_INLINE F zero_if_nan(F a) { return _mm256_and_pd(a, _mm256_cmp_pd(a, a, _CMP_ORD_Q)); }
  static KVANT_INLINE F nan_if_nan(F a) {
    return _mm256_blendv_pd(a, set(__builtin_nan("")), _mm256_cmp_pd(a, a, _CMP_UNORD_Q));
  }

  template <Order kOrder>
  static KVANT_INLINE Quad load(const double* p) {
    static_assert(kOrder == Order::natural);
    return {_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4), _mm256_loadu_pd(p + 8), _mm256_loadu_pd(p + 12)};
  }
  static KVANT_INLINE F broadcast(const double* p) { return _mm256_broadcast_sd(p); }
  template <Order kOrder>
  static KVANT_INLINE Quad load_parameters(const double* p) {
    return load<kOrder>(p);
  }
  template <Order kOrder>
  static KVANT_INLINE QuadI load_parameters(const std::int32_t* p) {
    static_assert(kOrder == Order::natural);
    return load_int(p);
  }
  static KVANT_INLINE QuadI load_int(const std::int32_t* p) {
    return {load_128(p), load_128(p + 4), load_128(p + 8), load_128(p + 12)};
  }
  static KVANT_INLINE QuadI load_int(const std::int8_t* p) {
    return {_mm_cvtepi8_epi32(load_32(p)), _mm_cvtepi8_epi32(load_32(p + 4)), _mm_cvtepi8_epi32(load_32(p + 8)),
            _mm_cvtepi8_epi32(load_32(p + 12))};
  }
  static KVANT_INLINE QuadI load_int(const std::uint8_t* p) {
    return {_mm_cvtepu8_epi32(load_32(p)), _mm_cvtepu8_epi32(load_32(p + 4)), _mm_cvtepu8_epi32(load_32(p + 8)),
            _mm_cvtepu8_epi32(load_32(p + 12))};
  }
  static KVANT_INLINE QuadI load_int(const std::int16_t* p) {
    return {_mm_cvtepi16_epi32(load_64(p)), _mm_cvtepi16_epi32(load_64(p + 4)), _mm_cvtepi16_epi32(load_64(p + 8)),
            _mm_cvtepi16_epi32(load_64(p + 12))};
  }
  static KVANT_INLINE QuadI load_int(const std::uint16_t* p) {
    return {_mm_cvtepu16_epi32(load_64(p)), _mm_cvtepu16_epi32(load_64(p + 4)), _mm_cvtepu16_epi32(load_64(p + 8)),
            _mm_cvtepu16_epi32(load_64(p + 12))};
  }
  template <Order kOrder>
  static KVANT_INLINE void store(double* p, const Quad& q, bool stream) {
    static_assert(kOrder == Order::natural);
    store_256(p, _mm256_castpd_si256(q.a), stream);
    store_256(p + 4, _mm256_castpd_si256(q.b), stream);
    store_256(p + 8, _mm256_castpd_si256(q.c), stream);
    store_256(p + 12, _mm256_castpd_si256(q.d), stream);
  }
  static KVANT_INLINE F get(const double* p) { return _mm256_loadu_pd(p); }
  static KVANT_INLINE F get(const float* p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
  static KVANT_INLINE void put(double* p, F x) { _mm256_storeu_pd(p, x); }
  // f(i) and f(i + kWidth) as one vector of f32, rounded.
  template <class Function>
  static KVANT_INLINE __m256 narrow(const Function& f, std::size_t i) {
    return _mm256_set_m128(_mm256_cvtpd_ps(f(i + kWidth)), _mm256_cvtpd_ps(f(i)));
  }
  // As those of f32.
  static KVANT_INLINE __m128i mask_of_first(int count) {
    return _mm_cmpgt_epi32(set_int(count), _mm_setr_epi32(0, 1, 2, 3));
  }
  static KVANT_INLINE F get_first(const double* p, int count, double fill) {
    const __m256i mask = _mm256_cvtepi32_epi64(mask_of_first(count));
    return select(_mm256_castsi256_pd(mask), _mm256_maskload_pd(p, mask), set(fill));
  }
  static KVANT_INLINE F get_first(const float* p, int count, double fill) {
    const __m128i mask = mask_of_first(count);
    const F all = _mm256_cvtps_pd(_mm_maskload_ps(p, mask));
    return select(_mm256_castsi256_pd(_mm256_cvtepi32_epi64(mask)), all, set(fill));
  }
  static KVANT_INLINE void put_first(double* p, int count, F x) {
    _mm256_maskstore_pd(p, _mm256_cvtepi32_epi64(mask_of_first(count)), x);
  }
  static KVANT_INLINE I get_int(const std::int32_t* p) { return load_128(p); }
  static KVANT_INLINE void put_int(std::int32_t* p, I x) { store_128(p, x, false); }
  static KVANT_INLINE __m128i pack_to(std::int8_t*, __m128i a, __m128i b) { return _mm_packs_epi16(a, b); }
  static KVANT_INLINE __m128i pack_to(std::uint8_t*, __m128i a, __m128i b) { return _mm_packus_epi16(a, b); }
  template <class T>
  static KVANT_INLINE void store_codes(T* p, const QuadI& q, bool stream) {
    store_128(p, pack_to(p, _mm_packs_epi32(q.a, q.b), _mm_packs_epi32(q.c, q.d)), stream);
  }
  static KVANT_INLINE void store_codes(std::int16_t* p, const QuadI& q, bool stream) {
    store_256(p, join(_mm_packs_epi32(q.a, q.b), _mm_packs_epi32(q.c, q.d)), stream);
  }
  static KVANT_INLINE void store_codes(std::uint16_t* p, const QuadI& q, bool stream) {
    store_256(p, join(_mm_packus_epi32(q.a, q.b), _mm_packus_epi32(q.c, q.d)), stream);
  }

  template <Order>
  static KVANT_INLINE void store_bytes(std::uint8_t* p, const QuadI& q, bool stream) {
    store_codes(p, q, stream);
  }
  static KVANT_INLINE double least(F a) {
    const __m128d m = _mm_min_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_min_sd(m, _mm_unpackhi_pd(m, m)));
  }
  static KVANT_INLINE double greatest(F a) {
    const __m128d m = _mm_max_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_max_sd(m, _mm_unpackhi_pd(m, m)));
  }
  static KVANT_INLINE double total(F a) {
    const __m128d s = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
  }
  static KVANT_INLINE semantics::Range<Avx2F64> transpose_fold(const semantics::Range<Avx2F64>* r) {
    const auto halves = [](const auto& a, const auto& b) KVANT_INLINE_LAMBDA {
      return semantics::Range<Avx2F64>{min(_mm256_unpacklo_pd(a.lo, b.lo), _mm256_unpackhi_pd(a.lo, b.lo)),
                                       max(_mm256_unpacklo_pd(a.hi, b.hi), _mm256_unpackhi_pd(a.hi, b.hi))};
    };
    const auto first = halves(r[0], r[1]), second = halves(r[2], r[3]);
    return {min(_mm256_permute2f128_pd(first.lo, second.lo, 0x20), _mm256_permute2f128_pd(first.lo, second.lo, 0x31)),
            max(_mm256_permute2f128_pd(first.hi, second.hi, 0x20), _mm256_permute2f128_pd(first.hi, second.hi, 0x31))};
  }
};

}  // namespace kvant::cpu
