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
  // Codes of four bits. Each pair of bytes (lo, hi) becomes lo + 16 * hi, which fits a byte.
  template <int kBits>
  static constexpr int kPackBlock = 64;
  template <int kBits>
  static KVANT_INLINE void pack_codes(const std::uint8_t* codes, std::uint8_t* packed, bool stream) {
    static_assert(kBits == 4);
    const __m256i nibble = _mm256_set1_epi8(0xF);
    const __m256i weights = _mm256_set1_epi16(0x1001);
    const __m256i lo = _mm256_maddubs_epi16(_mm256_and_si256(load_256(codes), nibble), weights);
    const __m256i hi = _mm256_maddubs_epi16(_mm256_and_si256(load_256(codes + 32), nibble), weights);
    store_256(packed, _mm256_permute4x64_epi64(_mm256_packus_epi16(lo, hi), 0xD8), stream);
  }
  template <int kBits, bool kSigned>
  static KVANT_INLINE void unpack_codes(const std::uint8_t* packed, std::uint8_t* codes) {
    static_assert(kBits == 4);
    unpack_half<kSigned>(packed, codes);
    unpack_half<kSigned>(packed + 16, codes + 32);
  }
  template <bool kSigned>
  static KVANT_INLINE void unpack_half(const std::uint8_t* packed, std::uint8_t* codes) {
    const __m256i wide = _mm256_cvtepu8_epi16(load_128(packed));
    const __m256i both = _mm256_or_si256(wide, _mm256_slli_epi16(wide, 4));
    __m256i v = _mm256_and_si256(both, _mm256_set1_epi8(0xF));
    if constexpr (kSigned) {
      const __m256i sign = _mm256_set1_epi8(8);
      v = _mm256_sub_epi8(_mm256_xor_si256(v, sign), sign);
    }
    store_256(codes, v, false);
  }

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
  using Quad = semantics::Quad<F>;
  using QuadI = semantics::Quad<I>;

  static constexpr int kWidth = 8;
  static constexpr bool kHasFma = true;
  static constexpr bool kHasNarrowCodes = true;
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
  using Quad = semantics::Quad<F>;
  using QuadI = semantics::Quad<I>;

  static constexpr int kWidth = 4;
  static constexpr bool kHasFma = true;
  static constexpr bool kHasNarrowCodes = false;
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
  static KVANT_INLINE M le(F a, F b) { return _mm256_cmp_pd(a, b, _CMP_LE_OQ); }
  static KVANT_INLINE M both(M a, M b) { return _mm256_and_pd(a, b); }
  static KVANT_INLINE bool all(M m) { return _mm256_movemask_pd(m) == 0xF; }
  static KVANT_INLINE F masked(M m, F a) { return _mm256_and_pd(m, a); }
  static KVANT_INLINE F select(M m, F a, F b) { return _mm256_blendv_pd(b, a, m); }
  static KVANT_INLINE I select_int(M m, I a, I b) {
    const __m256 halves = _mm256_castpd_ps(m);
    const __m128 mask = _mm_shuffle_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1), 0x88);
    return _mm_blendv_epi8(b, a, _mm_castps_si128(mask));
  }
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
