// The vocabulary that formulas are written in. A *lanes* type L names one instruction set's vectors for one
// compute type and the operations on them; the formulas in this folder use nothing else, so that the scalar
// reference, every SIMD width and CUDA evaluate the same text.
//
//   L::F, L::I, L::M   a vector of floating-point numbers, of as many int32, a mask
//   L::B               a vector of the bits of F, as unsigned integers of its width
//   L::kWidth          numbers in a vector
//   L::kHasFma         fma is an instruction, and there is fnma; without it a quotient is divided
//   set(c) set_int(i)  broadcast
//   add sub mul div    IEEE, rounded to nearest even
//   fma(a, b, c)       a * b + c, rounded once          fnma(a, b, c)   c - a * b, rounded once
//   min(a, b)          a < b ? a : b                    max(a, b)       a > b ? a : b
//                      (so b where either is NaN: a bound as the first argument lets NaN through)
//   round_even(a)      to the nearest integer, ties to even; NaN and infinities stay
//   to_int(a)          the same as an int32 for |a| <= 2^24, some int32 beyond, and for NaN one whose low 16 bits are
//   zero to_float(i)        rounded to nearest even; exact for |i| <= 2^24 add_int sub_int min_int max_int le(a, b) a
//   <= b, false where either is NaN both(m, n)         m && n                           masked(m, a)    m ? a : +0.0
//   select(m, a, b)    m ? a : b                        select_int      the same for int32
//   abs(a)             the magnitude, on the bits
//   all(m)             true in every lane
//   bits(a) from_bits(b) set_bits(c)    the bits of a number, a number of bits, broadcast
//   and_bits or_bits add_bits sub_bits  on bits; add and subtract wrap around
//   shift_bits_left(b, n) shift_bits_right(b, n)   by n bits, the same for all; zeros come in
//   to_int_bits(b)     the low 32 bits                  int_bits(i)     an int32 that is not negative as bits
//   and_int or_int     on int32
//   zero_if_nan(a)     a, or 0 where a is NaN           nan_if_nan(a)   a, or the default NaN where a is NaN
//
// The steps of a network, which run on the CPU only, also have
//   scale_exponent(a, i)   a * 2^i by an addition on the bits, for normal a and products; some number where the product
//                      is not normal; a where the low 12 bits of i are zero, so that NaN stays NaN with its to_int()
//   sqrt(a)            of f32; IEEE, rounded to nearest even
//   with_sign_of(a, b) of f32; the magnitude of a with the sign of b
//
// The names stay close to Highway's. Loads, stores and packing belong to the backends' conveyors, not here.
#pragma once

#include "base/inline.h"

namespace kvant::semantics {

// Four vectors that travel together: one block of a conveyor. Named members, because GCC 12 spills arrays of
// vectors to the stack.
template <class V>
struct Quad {
  V a, b, c, d;
};

// f applied to the first vectors of each quad, to the second, the third and the fourth.
template <class Function, class... V>
KVANT_INLINE auto map(const Function& f, const Quad<V>&... q) -> Quad<decltype(f(q.a...))> {
  return {f(q.a...), f(q.b...), f(q.c...), f(q.d...)};
}

}  // namespace kvant::semantics
