// The element-wise conveyor, compiled once for each instruction set: cut a part into runs, load a block, apply the
// formula, store it; a tail goes through the same body on padded copies. All arithmetic is in semantics/.
//
// To add an instruction set: a lanes header, and a translation unit that includes this file and calls
// make_elementwise_kernels<ItsIsa>().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/elementwise_kernel.h"
#include "cpu/lanes/block.h"
#include "kvant/element.h"
#include "semantics/quantize.h"

namespace kvant::cpu {

using detail::ElementwiseJob;
using detail::ElementwiseKernel;
using detail::ElementwisePart;

// ---- Blocks ---------------------------------------------------------------------------------------------------

// Where a stretch of neighbouring elements begins in every buffer. `scale` and `zero_point` advance with the
// elements and are read by varying bodies only.
template <class In, class Out, class C>
struct Stretch {
  const In* x;
  const In* dy;
  Out* out;
  const C* scale;
  const std::int32_t* zero_point;
};

template <class T>
KVANT_INLINE T* advance(T* p, std::int64_t n) {
  return p == nullptr ? p : p + n;
}

template <class T, class U>
KVANT_INLINE T* copy_elements(T* to, const U* from, std::int64_t n) {
  if (from != nullptr) __builtin_memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
  return from == nullptr ? nullptr : to;
}

// Arithmetic between the loads keeps the hardware from running far enough ahead of a stream out of memory: on Zen 3
// f32 to s8 moved 20 GB/s without this and 26 with it. 2 KiB was the best of 512 B to 4 KiB.
template <std::int64_t kBlock, class T>
KVANT_INLINE void prefetch_block(const T* p) {
  constexpr std::uintptr_t kAhead = 2048, kLine = 64;
  const std::uintptr_t ahead = reinterpret_cast<std::uintptr_t>(p) + kAhead;
  for (std::uintptr_t i = 0; i < kBlock * sizeof(T); i += kLine)
    __builtin_prefetch(reinterpret_cast<const void*>(ahead + i));
}

// Calls body(stretch, stream) for each whole block of n elements, and for the rest on copies padded with zeros.
template <class L, class In, class Out, class Body>
KVANT_INLINE void for_each_block(Stretch<In, Out, typename L::C> s, std::int64_t n, bool stream, const Body& body) {
  constexpr std::int64_t kBlock = 4 * L::kWidth;
  for (; n >= kBlock; n -= kBlock) {
    if (stream) {
      prefetch_block<kBlock>(s.x);
      if (s.dy != nullptr) prefetch_block<kBlock>(s.dy);
    }
    body(s, stream);
    s = {s.x + kBlock, advance(s.dy, kBlock), s.out + kBlock, advance(s.scale, kBlock), advance(s.zero_point, kBlock)};
  }
  if (n <= 0) return;
  In x[kBlock] = {};
  In dy[kBlock] = {};
  Out out[kBlock];
  typename L::C scale[kBlock] = {};
  std::int32_t zero_point[kBlock] = {};
  body(Stretch<In, Out, typename L::C>{copy_elements(x, s.x, n), copy_elements(dy, s.dy, n), out,
                                       copy_elements(scale, s.scale, n), copy_elements(zero_point, s.zero_point, n)},
       false);
  copy_elements(s.out, out, n);
}

// ---- Parameters -----------------------------------------------------------------------------------------------

KVANT_INLINE std::int32_t limit_zero_point(std::int32_t zp) {
  return zp < -semantics::kMaxZeroPoint  ? -semantics::kMaxZeroPoint
         : zp > semantics::kMaxZeroPoint ? semantics::kMaxZeroPoint
                                         : zp;
}

// One run's parameters.
template <class L>
struct Uniform {
  using C = typename L::C;
  C scale;
  C inverse;
  std::int32_t zero_point;
  std::int32_t lo;  // q_min - zp
  std::int32_t hi;
  bool reciprocal;

  KVANT_INLINE Uniform(const ElementwiseJob& job, C s, std::int32_t zp)
      : scale(s == s ? s : C(__builtin_nan(""))),  // plain payload, see NanPayload::upper_half
        inverse(C(1) / scale),
        zero_point(limit_zero_point(zp)),
        lo(job.q_min - zero_point),
        hi(job.q_max - zero_point),
        reciprocal(job.numerics == Numerics::reciprocal) {}

  KVANT_INLINE semantics::Bounds<L> bounds() const {
    return {L::set(static_cast<C>(lo)), L::set(static_cast<C>(hi))};
  }
  KVANT_INLINE semantics::Bounds<L> input_bounds() const {
    return {L::set(static_cast<C>(lo) * scale), L::set(static_cast<C>(hi) * scale)};
  }
  KVANT_INLINE bool input_can_be_clamped() const {
    return semantics::has_corrected_quotient(scale) && lo >= -semantics::kMaxInputBound &&
           hi <= semantics::kMaxInputBound;
  }
  KVANT_INLINE semantics::Divide<L> divide() const { return {L::set(scale)}; }
  KVANT_INLINE semantics::Multiply<L> multiply() const { return {L::set(inverse)}; }
  KVANT_INLINE auto corrected_multiply() const {
    if constexpr (L::kHasFma)
      return semantics::CorrectedMultiply<L>{L::set(scale), L::set(inverse)};
    else
      return divide();
  }
};

// Calls f(quotient) with the exact or the reciprocal one. `kCorrected`: the scale allows CorrectedMultiply.
template <bool kCorrected, class L, class Function>
KVANT_INLINE void with_quotient(const Uniform<L>& u, const Function& f) {
  if (u.reciprocal)
    f(u.multiply());
  else if constexpr (kCorrected)
    f(u.corrected_multiply());
  else
    f(u.divide());
}

// Calls f(make_quotient), which turns a vector of scales into a quotient.
template <class L, class Function>
KVANT_INLINE void with_varying_quotient(const ElementwiseJob& job, const Function& f) {
  if (job.numerics == Numerics::reciprocal)
    f([](typename L::F scale)
          KVANT_INLINE_LAMBDA { return semantics::Multiply<L>{L::div(L::set(1), scale)}; });
  else
    f([](typename L::F scale) KVANT_INLINE_LAMBDA { return semantics::Divide<L>{scale}; });
}

// Calls f(load), where load(stretch) gives a block's zero points.
template <class L, class Function>
KVANT_INLINE void with_varying_zero_point(const ElementwiseJob& job, const Function& f) {
  if (job.zero_point != nullptr) {
    f([](const auto& s) KVANT_INLINE_LAMBDA {
      return map(
          [](typename L::I zp) KVANT_INLINE_LAMBDA {
            return L::max_int(L::set_int(-semantics::kMaxZeroPoint),
                              L::min_int(L::set_int(semantics::kMaxZeroPoint), zp));
          },
          L::load_int(s.zero_point));
    });
  } else {
    const typename L::I zp = L::set_int(job.common_zero_point);
    f([zp](const auto&) KVANT_INLINE_LAMBDA { return typename L::QuadI{zp, zp, zp, zp}; });
  }
}

template <class L>
KVANT_INLINE semantics::Bounds<L> varying_bounds(const ElementwiseJob& job, typename L::I zp) {
  return {L::to_float(L::sub_int(L::set_int(job.q_min), zp)), L::to_float(L::sub_int(L::set_int(job.q_max), zp))};
}

// ---- Operators ------------------------------------------------------------------------------------------------
// Each has uniform(), for a stretch that shares parameters, and varying(), for one where each element has its own.

template <class L, class InType, class OutType>
struct Quantize {
  using In = InType;
  using Out = OutType;
  using F = typename L::F;
  using I = typename L::I;
  using Span = Stretch<In, Out, typename L::C>;

  static KVANT_INLINE void uniform(const Uniform<L>& u, const Span& span, std::int64_t n, bool stream) {
    if constexpr (L::kHasNarrowCodes) {
      if (u.input_can_be_clamped() && u.lo <= 0 && u.hi >= 0) {
        constexpr Order kOrder = L::template kUniformOrder<In>;
        const auto bounds = u.input_bounds();
        const auto zp = L::set_int16(u.zero_point);
        with_quotient<true>(u, [&](const auto& quotient) KVANT_INLINE_LAMBDA {
          for_each_block<L>(span, n, stream, [&](const Span& s, bool st) KVANT_INLINE_LAMBDA {
            const auto q = map([&](F x) KVANT_INLINE_LAMBDA {
              return semantics::quantize_before_zero_point<L>(x, quotient, bounds);
            }, L::template load<kOrder>(s.x));
            L::template store_narrow<kOrder>(s.out, q, zp, st);
          });
        });
        return;
      }
    }
    const auto bounds = u.bounds();
    const I zp = L::set_int(u.zero_point);
    with_quotient<false>(u, [&](const auto& quotient) KVANT_INLINE_LAMBDA {
      for_each_block<L>(span, n, stream, [&](const Span& s, bool st) KVANT_INLINE_LAMBDA {
        const auto q = map([&](F x) KVANT_INLINE_LAMBDA {
          return semantics::quantize<L>(x, quotient, bounds, zp);
        }, L::template load<Order::natural>(s.x));
        L::store_codes(s.out, q, st);
      });
    });
  }

  static KVANT_INLINE void varying(const ElementwiseJob& job, const Span& span, std::int64_t n, bool stream) {
    with_varying_quotient<L>(job, [&](const auto& make_quotient) KVANT_INLINE_LAMBDA {
      with_varying_zero_point<L>(job, [&](const auto& load_zero_point) KVANT_INLINE_LAMBDA {
        for_each_block<L>(span, n, stream, [&](const Span& s, bool st) KVANT_INLINE_LAMBDA {
          const auto q = map([&](F x, F scale, I zp) KVANT_INLINE_LAMBDA {
            return semantics::quantize<L>(x, make_quotient(scale), varying_bounds<L>(job, zp), zp);
          }, L::template load<Order::natural>(s.x), L::template load<Order::natural>(s.scale), load_zero_point(s));
          L::store_codes(s.out, q, st);
        });
      });
    });
  }
};

template <class L, class InType, class OutType>
struct Dequantize {
  using In = InType;
  using Out = OutType;
  using F = typename L::F;
  using I = typename L::I;
  using Span = Stretch<In, Out, typename L::C>;

  static KVANT_INLINE void uniform(const Uniform<L>& u, const Span& span, std::int64_t n, bool stream) {
    const F scale = L::set(u.scale);
    const I zp = L::set_int(u.zero_point);
    for_each_block<L>(span, n, stream, [&](const Span& s, bool st) KVANT_INLINE_LAMBDA {
      const auto x = map([&](I q) KVANT_INLINE_LAMBDA { return semantics::dequantize<L>(q, scale, zp); },
                         L::load_int(s.x));
      L::template store<Order::natural, NanPayload::upper_half>(s.out, x, st);
    });
  }

  static KVANT_INLINE void varying(const ElementwiseJob& job, const Span& span, std::int64_t n, bool stream) {
    with_varying_zero_point<L>(job, [&](const auto& load_zero_point) KVANT_INLINE_LAMBDA {
      for_each_block<L>(span, n, stream, [&](const Span& s, bool st) KVANT_INLINE_LAMBDA {
        const auto x = map([&](I q, F scale, I zp)
                               KVANT_INLINE_LAMBDA { return semantics::dequantize<L>(q, scale, zp); },
                           L::load_int(s.x), L::template load<Order::natural>(s.scale), load_zero_point(s));
        L::template store<Order::natural>(s.out, x, st);
      });
    });
  }
};

template <class L, class T>
struct FakeQuantize {
  using In = T;
  using Out = T;
  using F = typename L::F;
  using I = typename L::I;
  using Span = Stretch<In, Out, typename L::C>;

  static KVANT_INLINE void uniform(const Uniform<L>& u, const Span& span, std::int64_t n, bool stream) {
    constexpr Order kOrder = L::template kUniformOrder<T>;
    const F scale = L::set(u.scale);
    if constexpr (L::kHasFma && std::is_same_v<typename L::C, float>) {
      if (u.input_can_be_clamped()) {
        const auto bounds = u.input_bounds();
        with_quotient<true>(u, [&](const auto& quotient) KVANT_INLINE_LAMBDA {
          for_each_block<L>(span, n, stream, [&](const Span& s, bool st) KVANT_INLINE_LAMBDA {
            const auto y = map([&](F x) KVANT_INLINE_LAMBDA {
              return semantics::fake_quantize_clamped_input<L>(x, scale, quotient, bounds);
            }, L::template load<kOrder>(s.x));
            L::template store<kOrder, NanPayload::upper_half>(s.out, y, st);
          });
        });
        return;
      }
    }
    const auto bounds = u.bounds();
    with_quotient<false>(u, [&](const auto& quotient) KVANT_INLINE_LAMBDA {
      for_each_block<L>(span, n, stream, [&](const Span& s, bool st) KVANT_INLINE_LAMBDA {
        const auto y = map([&](F x) KVANT_INLINE_LAMBDA {
          return semantics::fake_quantize<L>(x, scale, quotient, bounds);
        }, L::template load<kOrder>(s.x));
        L::template store<kOrder, NanPayload::upper_half>(s.out, y, st);
      });
    });
  }

  static KVANT_INLINE void varying(const ElementwiseJob& job, const Span& span, std::int64_t n, bool stream) {
    with_varying_quotient<L>(job, [&](const auto& make_quotient) KVANT_INLINE_LAMBDA {
      with_varying_zero_point<L>(job, [&](const auto& load_zero_point) KVANT_INLINE_LAMBDA {
        for_each_block<L>(span, n, stream, [&](const Span& s, bool st) KVANT_INLINE_LAMBDA {
          const auto y = map([&](F x, F scale, I zp) KVANT_INLINE_LAMBDA {
            return semantics::fake_quantize<L>(x, scale, make_quotient(scale), varying_bounds<L>(job, zp));
          }, L::template load<Order::natural>(s.x), L::template load<Order::natural>(s.scale), load_zero_point(s));
          L::template store<Order::natural>(s.out, y, st);
        });
      });
    });
  }
};

// The two backward passes with a mask; kScaled divides the gradient by the scale.
template <class L, class T, bool kScaled>
struct MaskedBackward {
  using In = T;
  using Out = T;
  using F = typename L::F;
  using I = typename L::I;
  using Span = Stretch<In, Out, typename L::C>;

  template <class QuotientOfX, class QuotientOfDy>
  static KVANT_INLINE F apply(F x, F dy, const QuotientOfX& of_x, const QuotientOfDy& of_dy,
                              const semantics::Bounds<L>& bounds) {
    if constexpr (kScaled)
      return semantics::quantize_backward<L>(x, dy, of_x, of_dy, bounds);
    else
      return semantics::fake_quantize_backward<L>(x, dy, of_x, bounds);
  }

  template <class QuotientOfX, class QuotientOfDy>
  static KVANT_INLINE void uniform_loop(const Uniform<L>& u, const Span& span, std::int64_t n, bool stream,
                                        const QuotientOfX& of_x, const QuotientOfDy& of_dy) {
    constexpr Order kOrder = L::template kUniformOrder<T>;
    const auto bounds = u.bounds();
    for_each_block<L>(span, n, stream, [&](const Span& s, bool st) KVANT_INLINE_LAMBDA {
      const auto dx = map([&](F x, F dy) KVANT_INLINE_LAMBDA { return apply(x, dy, of_x, of_dy, bounds); },
                          L::template load<kOrder>(s.x), L::template load<kOrder>(s.dy));
      L::template store<kOrder, NanPayload::upper_half>(s.out, dx, st);
    });
  }

  static KVANT_INLINE void uniform(const Uniform<L>& u, const Span& span, std::int64_t n, bool stream) {
    if (u.reciprocal)
      uniform_loop(u, span, n, stream, u.multiply(), u.multiply());
    else if (semantics::has_corrected_quotient(u.scale))
      uniform_loop(u, span, n, stream, u.corrected_multiply(), u.divide());
    else
      uniform_loop(u, span, n, stream, u.divide(), u.divide());
  }

  static KVANT_INLINE void varying(const ElementwiseJob& job, const Span& span, std::int64_t n, bool stream) {
    with_varying_quotient<L>(job, [&](const auto& make_quotient) KVANT_INLINE_LAMBDA {
      with_varying_zero_point<L>(job, [&](const auto& load_zero_point) KVANT_INLINE_LAMBDA {
        for_each_block<L>(span, n, stream, [&](const Span& s, bool st) KVANT_INLINE_LAMBDA {
          const auto dx = map([&](F x, F dy, F scale, I zp) KVANT_INLINE_LAMBDA {
            const auto quotient = make_quotient(scale);
            return apply(x, dy, quotient, quotient, varying_bounds<L>(job, zp));
          }, L::template load<Order::natural>(s.x), L::template load<Order::natural>(s.dy),
             L::template load<Order::natural>(s.scale), load_zero_point(s));
          L::template store<Order::natural>(s.out, dx, st);
        });
      });
    });
  }
};

template <class L, class T>
struct DequantizeBackward {
  using In = T;
  using Out = T;
  using F = typename L::F;
  using Span = Stretch<In, Out, typename L::C>;

  static KVANT_INLINE void uniform(const Uniform<L>& u, const Span& span, std::int64_t n, bool stream) {
    constexpr Order kOrder = L::template kUniformOrder<T>;
    const F scale = L::set(u.scale);
    for_each_block<L>(span, n, stream, [&](const Span& s, bool st) KVANT_INLINE_LAMBDA {
      const auto dq = map([&](F dy) KVANT_INLINE_LAMBDA { return semantics::dequantize_backward<L>(dy, scale); },
                          L::template load<kOrder>(s.x));
      L::template store<kOrder, NanPayload::upper_half>(s.out, dq, st);
    });
  }

  static KVANT_INLINE void varying(const ElementwiseJob&, const Span& span, std::int64_t n, bool stream) {
    for_each_block<L>(span, n, stream, [&](const Span& s, bool st) KVANT_INLINE_LAMBDA {
      const auto dq = map([&](F dy, F scale)
                              KVANT_INLINE_LAMBDA { return semantics::dequantize_backward<L>(dy, scale); },
                          L::template load<Order::natural>(s.x), L::template load<Order::natural>(s.scale));
      L::template store<Order::natural>(s.out, dq, st);
    });
  }
};

// ---- Lines ----------------------------------------------------------------------------------------------------

template <class L, class T>
KVANT_INLINE bool can_stream(const T* p) {
  return reinterpret_cast<std::uintptr_t>(p) % L::kStreamAlignment == 0;
}

// Elements until `p` can be streamed to, at most n; 0 if it never can or already does.
template <class L, class T>
KVANT_INLINE std::int64_t elements_until_streamable(const T* p, std::int64_t n) {
  const std::size_t beyond = reinterpret_cast<std::uintptr_t>(p) % L::kStreamAlignment;
  const std::size_t missing = beyond == 0 ? 0 : L::kStreamAlignment - beyond;
  if (missing % sizeof(T) != 0) return 0;
  const std::int64_t count = static_cast<std::int64_t>(missing / sizeof(T));
  return count < n ? count : n;
}

// Elements [offset, offset + n) of a line whose first parameter has index `first`; x, dy and out point at the
// element of index `offset`. Element types are plain here: packed codes have been staged as bytes.
template <class L, class Op>
KVANT_INLINE void run_unpacked(const ElementwiseJob& job, std::int64_t first, std::int64_t offset, std::int64_t n,
                               const typename Op::In* x, const typename Op::In* dy, typename Op::Out* out,
                               bool stream) {
  using C = typename L::C;
  const C* scale = reinterpret_cast<const C*>(job.scale);
  const std::int32_t* zero_point = reinterpret_cast<const std::int32_t*>(job.zero_point);
  const std::int64_t run = job.runs->run;
  if (run == 1) {
    scale += first + offset;
    zero_point = advance(zero_point, first + offset);
    if (stream) {  // a head in plain stores, so that the rest is aligned
      const std::int64_t head = elements_until_streamable<L>(out, n);
      if (head != 0) {
        Op::varying(job, {x, dy, out, scale, zero_point}, head, false);
        x += head, dy = advance(dy, head), out += head, scale += head, zero_point = advance(zero_point, head), n -= head;
      }
    }
    Op::varying(job, {x, dy, out, scale, zero_point}, n, stream && can_stream<L>(out));
    return;
  }
  std::int64_t parameter = first;
  std::int64_t left = run;  // in the run that contains `offset`
  if (offset != 0) {
    parameter += offset / run;
    left -= offset % run;
  }
  while (n > 0) {
    std::int64_t count = left < n ? left : n;
    // A long run gets its head in plain stores; a short one streams only if it happens to be aligned.
    constexpr std::int64_t kWorthAligning = 1024;
    const bool aligned = can_stream<L>(out);
    if (stream && !aligned && count >= kWorthAligning) {
      const std::int64_t head = elements_until_streamable<L>(out, count);
      if (head != 0) count = head;
    }
    const Uniform<L> u(job, load_unaligned(scale + parameter),
                       zero_point == nullptr ? job.common_zero_point : load_unaligned(zero_point + parameter));
    Op::uniform(u, {x, dy, out, nullptr, nullptr}, count, stream && aligned);
    x += count, dy = advance(dy, count), out += count, n -= count, left -= count;
    if (left == 0) left = run, ++parameter;
  }
}

// Packed codes pass through a buffer of bytes that stays in L1, so that groups may begin in the middle of a byte.
inline constexpr std::int64_t kStagedElements = 1024;

template <class L, class Body>
KVANT_INLINE void for_each_nibble_block(std::uint8_t* codes, std::int64_t n, const Body& body) {
  std::int64_t i = 0;
  for (; i + L::kNibbleBlock <= n; i += L::kNibbleBlock) body(codes + i, i / 2, L::kNibbleBlock);
  if (i < n) body(codes + i, i / 2, n - i);
}

template <class L>
KVANT_INLINE void pack_nibbles(std::uint8_t* codes, std::uint8_t* packed, std::int64_t n, bool stream) {
  if (n % 2 != 0) codes[n] = 0;  // the high nibble behind an odd last element
  for_each_nibble_block<L>(codes, n, [&](std::uint8_t* from, std::int64_t byte, std::int64_t count)
                                         KVANT_INLINE_LAMBDA {
    if (count == L::kNibbleBlock) {
      L::pack_nibbles(from, packed + byte, stream);
    } else {
      std::uint8_t block[L::kNibbleBlock / 2];
      L::pack_nibbles(from, block, false);
      __builtin_memcpy(packed + byte, block, static_cast<std::size_t>((count + 1) / 2));
    }
  });
}

template <class L, bool kSigned>
KVANT_INLINE void unpack_nibbles(const std::uint8_t* packed, std::uint8_t* codes, std::int64_t n) {
  for_each_nibble_block<L>(codes, n, [&](std::uint8_t* to, std::int64_t byte, std::int64_t count)
                                         KVANT_INLINE_LAMBDA {
    if (count == L::kNibbleBlock) {
      L::template unpack_nibbles<kSigned>(packed + byte, to);
    } else {
      std::uint8_t block[L::kNibbleBlock / 2] = {};
      __builtin_memcpy(block, packed + byte, static_cast<std::size_t>((count + 1) / 2));
      L::template unpack_nibbles<kSigned>(block, to);
    }
  });
}

template <class T>
inline constexpr bool kIsPacked = std::is_same_v<T, Int4> || std::is_same_v<T, UInt4>;

// The type that codes are computed in: bytes for packed ones.
template <class T>
using Unpacked = std::conditional_t<std::is_same_v<T, Int4>, std::int8_t,
                                    std::conditional_t<std::is_same_v<T, UInt4>, std::uint8_t, T>>;

template <class T>
KVANT_INLINE std::int64_t byte_offset(std::int64_t element) {
  if constexpr (kIsPacked<T>)
    return element / 2;
  else
    return element * static_cast<std::int64_t>(sizeof(T));
}

// Op reads InElement and writes OutElement in memory; at most one of them is packed. A part of a packed line begins
// at an even element.
template <class L, class Op, class InElement, class OutElement>
void run_part(const ElementwiseJob& job, const ElementwisePart& part) {
  using In = typename Op::In;
  using Out = typename Op::Out;
  for (std::int64_t line = part.first_line; line < part.end_line; ++line) {
    const std::int64_t first = core::first_parameter(*job.runs, line);
    const std::byte* x = job.x + line * job.x_stride + byte_offset<InElement>(part.offset);
    const std::byte* dy = job.dy == nullptr
                              ? nullptr
                              : job.dy + line * job.dy_stride + byte_offset<InElement>(part.offset);
    std::byte* out = job.out + line * job.out_stride + byte_offset<OutElement>(part.offset);
    if constexpr (!kIsPacked<InElement> && !kIsPacked<OutElement>) {
      run_unpacked<L, Op>(job, first, part.offset, part.count, reinterpret_cast<const In*>(x),
                          reinterpret_cast<const In*>(dy), reinterpret_cast<Out*>(out), job.stream);
    } else {
      alignas(64) std::uint8_t staged[kStagedElements + 64];
      for (std::int64_t done = 0; done < part.count; done += kStagedElements) {
        const std::int64_t rest = part.count - done;
        const std::int64_t n = rest < kStagedElements ? rest : kStagedElements;
        const std::int64_t offset = part.offset + done;
        if constexpr (kIsPacked<OutElement>) {
          run_unpacked<L, Op>(job, first, offset, n, reinterpret_cast<const In*>(x) + done, nullptr,
                              reinterpret_cast<Out*>(staged), false);
          std::uint8_t* packed = reinterpret_cast<std::uint8_t*>(out) + done / 2;
          pack_nibbles<L>(staged, packed, n, job.stream && can_stream<L>(packed));
        } else {
          unpack_nibbles<L, std::is_same_v<InElement, Int4>>(reinterpret_cast<const std::uint8_t*>(x) + done / 2,
                                                             staged, n);
          run_unpacked<L, Op>(job, first, offset, n, reinterpret_cast<const In*>(staged), nullptr,
                              reinterpret_cast<Out*>(out) + done, job.stream);
        }
      }
    }
  }
  if (job.stream) L::finish_streaming();
}

// ---- The table ------------------------------------------------------------------------------------------------

template <class... T>
struct Types {};
using FloatTypes = Types<float, double, Half, BFloat16>;
using CodeTypes = Types<std::int8_t, std::uint8_t, Int4, UInt4>;

template <class F>
constexpr KernelSku elementwise_sku(QuantizeKind op, ElementKind element, ElementKind aux_element, ArchSku arch) {
  KernelSku sku;
  sku.op = op;
  sku.element = element;
  sku.aux_element = aux_element;
  sku.arch = arch;
  sku.precision_guarantee = {
      .math_precision = std::is_same_v<compute_t<F>, double> ? MathPrecision::f64 : MathPrecision::f32,
      .accumulator = AccumulatorKind::none,
      .bit_stable_on_same_hardware = true,
      .bit_stable_across_hardware = true,
      .deterministic = true};
  return sku;
}

template <class Isa, class F, class Code>
constexpr std::array<ElementwiseKernel, 2> kernels_with_code(ArchSku arch) {
  using L = typename Isa::template Lanes<compute_t<F>>;
  using Byte = Unpacked<Code>;
  return {{{elementwise_sku<F>(QuantizeKind::quantize, kind_of<F>, kind_of<Code>, arch),
            &run_part<L, Quantize<L, F, Byte>, F, Code>},
           {elementwise_sku<F>(QuantizeKind::dequantize, kind_of<Code>, kind_of<F>, arch),
            &run_part<L, Dequantize<L, Byte, F>, Code, F>}}};
}

template <class Isa, class F>
constexpr std::array<ElementwiseKernel, 4> kernels_without_code(ArchSku arch) {
  using L = typename Isa::template Lanes<compute_t<F>>;
  const auto sku = [arch](QuantizeKind op) { return elementwise_sku<F>(op, kind_of<F>, kind_of<F>, arch); };
  return {{{sku(QuantizeKind::fake_quantize), &run_part<L, FakeQuantize<L, F>, F, F>},
           {sku(QuantizeKind::quantize_backward), &run_part<L, MaskedBackward<L, F, true>, F, F>},
           {sku(QuantizeKind::fake_quantize_backward), &run_part<L, MaskedBackward<L, F, false>, F, F>},
           {sku(QuantizeKind::dequantize_backward), &run_part<L, DequantizeBackward<L, F>, F, F>}}};
}

// Every kernel of one instruction set: floating-point types × code types, and floating-point types alone.
template <class Isa, class... F, class... Code>
constexpr auto make_elementwise_kernels(ArchSku arch, Types<F...>, Types<Code...>) {
  constexpr std::size_t kCount = sizeof...(F) * (2 * sizeof...(Code) + 4);
  std::array<ElementwiseKernel, kCount> all{};
  std::size_t n = 0;
  const auto append = [&](const auto& kernels) {
    for (const ElementwiseKernel& kernel : kernels) all[n++] = kernel;
  };
  const auto append_for = [&]<class One>(Types<One>) {
    (append(kernels_with_code<Isa, One, Code>(arch)), ...);
    append(kernels_without_code<Isa, One>(arch));
  };
  (append_for(Types<F>{}), ...);
  return all;
}

template <class Isa>
constexpr auto make_elementwise_kernels(ArchSku arch) {
  return make_elementwise_kernels<Isa>(arch, FloatTypes{}, CodeTypes{});
}

}  // namespace kvant::cpu
