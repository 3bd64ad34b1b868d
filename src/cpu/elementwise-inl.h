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
#include "cpu/fetch.h"
#include "cpu/lanes/block.h"
#include "cpu/lanes/scalar.h"
#include "kvant/element.h"
#include "semantics/quantize.h"

namespace kvant::cpu {

using detail::ElementwiseJob;
using detail::ElementwiseKernel;
using detail::ElementwisePart;

// ---- Blocks ---------------------------------------------------------------------------------------------------

// Where a stretch of neighbouring elements begins in each buffer. dy is null where there is none.
template <class In, class Out>
struct Stretch {
  const In* x;
  const In* dy;
  Out* out;

  KVANT_INLINE Stretch operator+(std::int64_t n) const { return {x + n, dy == nullptr ? dy : dy + n, out + n}; }
};

// How a stretch is read and written.
struct Traffic {
  bool stream;               // store around the caches; the output is aligned for it
  std::int64_t fetch_ahead;  // bytes in front of x and dy to fetch, 0 for none
};

template <class T>
KVANT_INLINE void copy_elements(T* to, const T* from, std::int64_t n) {
  __builtin_memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
}

// Calls body(stretch, first element, stream) for each whole block of n elements.
template <class L, class In, class Out, class Body>
KVANT_INLINE void for_each_whole_block(const Stretch<In, Out>& s, std::int64_t n, Traffic traffic, const Body& body) {
  constexpr std::int64_t kBlock = 4 * L::kWidth;
  for (std::int64_t i = 0; i + kBlock <= n; i += kBlock) {
    if (traffic.fetch_ahead != 0) {
      fetch_block<kBlock>(s.x + i, traffic.fetch_ahead);
      if (s.dy != nullptr) fetch_block<kBlock>(s.dy + i, traffic.fetch_ahead);
    }
    body(s + i, i, traffic.stream);
  }
}

// The same, and for the rest on copies padded with zeros: the tail is the body.
template <class L, class In, class Out, class Body>
KVANT_INLINE void for_each_block(const Stretch<In, Out>& s, std::int64_t n, Traffic traffic, const Body& body) {
  constexpr std::int64_t kBlock = 4 * L::kWidth;
  for_each_whole_block<L>(s, n, traffic, body);
  const std::int64_t rest = n % kBlock;
  if (rest <= 0) return;
  const Stretch<In, Out> tail = s + (n - rest);
  In x[kBlock] = {};
  In dy[kBlock] = {};
  Out out[kBlock];
  copy_elements(x, tail.x, rest);
  if (tail.dy != nullptr) copy_elements(dy, tail.dy, rest);
  body(Stretch<In, Out>{x, dy, out}, n - rest, false);
  copy_elements(tail.out, out, rest);
}

// ---- Parameters -----------------------------------------------------------------------------------------------

// What holds for all parameters of a table; see semantics::Prepared.
struct Flags {
  bool corrected;
  bool clamps_input;
  bool contains_zero;
};

// Parameters prepared once for many elements: those of a batch of short runs (one by one they would cost groups of 32
// as much as the elements themselves), or of a tile of columns that several lines share. Small enough for L1.
template <class L>
class ParameterTable {
 public:
  using C = typename L::C;
  using F = typename L::F;
  using I = typename L::I;
  static constexpr std::int64_t kBlock = 4 * L::kWidth;
  static constexpr std::int64_t kCapacity = 1024;
  static_assert(kCapacity % kBlock == 0);

  // Fills the table with `count` parameters from index `first` on, each block of them spread as kOrder says.
  template <Order kOrder>
  KVANT_INLINE void fill(const ElementwiseJob& job, std::int64_t first, std::int64_t count) {
    const C* scales = reinterpret_cast<const C*>(job.scale) + first;
    const std::int32_t* zero_points = reinterpret_cast<const std::int32_t*>(job.zero_point);
    if (zero_points != nullptr) zero_points += first;
    flags = {true, true, true};
    std::int64_t i = 0;
    for (; i + kBlock <= count; i += kBlock)
      fill_block<kOrder>(job, scales + i, zero_points == nullptr ? nullptr : zero_points + i, i);
    const std::int64_t rest = count - i;
    if (rest <= 0) return;
    C scale_copies[kBlock];
    std::int32_t zero_point_copies[kBlock];
    for (std::int64_t j = 0; j < kBlock; ++j) {  // beyond the end repeats the first, so that it changes no flag
      const std::int64_t from = i + (j < rest ? j : 0);
      scale_copies[j] = load_unaligned(scales + from);
      zero_point_copies[j] = zero_points == nullptr ? 0 : load_unaligned(zero_points + from);
    }
    fill_block<kOrder>(job, scale_copies, zero_points == nullptr ? nullptr : zero_point_copies, i);
  }

  // Entry 0 alone, for a long run: without vectors, whose latency a small problem would feel.
  KVANT_INLINE void fill_one(const ElementwiseJob& job, std::int64_t parameter) {
    const C* scales = reinterpret_cast<const C*>(job.scale);
    const std::int32_t* zero_points = reinterpret_cast<const std::int32_t*>(job.zero_point);
    const auto p = semantics::prepare<ScalarLanes<C>>(
        load_unaligned(scales + parameter),
        zero_points == nullptr ? job.common_zero_point : load_unaligned(zero_points + parameter), job.q_min, job.q_max);
    scale[0] = p.scale, inverse[0] = p.inverse, zero_point[0] = p.zero_point;
    lo[0] = p.bounds.lo, hi[0] = p.bounds.hi;
    input_lo[0] = p.input_bounds.lo, input_hi[0] = p.input_bounds.hi;
    flags = {p.corrected, p.clamps_input, p.contains_zero};
  }

  // One vector more than the capacity puts neighbouring arrays into different banks of L1.
  static constexpr std::int64_t kRow = kCapacity + L::kWidth;
  alignas(64) C scale[kRow], inverse[kRow];
  C lo[kRow], hi[kRow];              // bounds of the quotient
  C input_lo[kRow], input_hi[kRow];  // bounds of x
  std::int32_t zero_point[kRow];
  Flags flags;

 private:
  template <Order kOrder>
  KVANT_INLINE void fill_block(const ElementwiseJob& job, const C* scales, const std::int32_t* zero_points,
                               std::int64_t at) {
    const I common = L::set_int(job.common_zero_point);
    const auto zp = zero_points == nullptr ? typename L::QuadI{common, common, common, common}
                                           : L::template load_parameters<kOrder>(zero_points);
    const auto scale_quad = L::template load_parameters<kOrder>(scales);
    // One vector after the other: four prepared at once would not fit the registers.
    put(job, scale_quad.a, zp.a, at);
    put(job, scale_quad.b, zp.b, at + L::kWidth);
    put(job, scale_quad.c, zp.c, at + 2 * L::kWidth);
    put(job, scale_quad.d, zp.d, at + 3 * L::kWidth);
  }

  KVANT_INLINE void put(const ElementwiseJob& job, F raw_scale, I raw_zero_point, std::int64_t at) {
    const auto p = semantics::prepare<L>(raw_scale, raw_zero_point, job.q_min, job.q_max);
    L::put(scale + at, p.scale);
    L::put(inverse + at, p.inverse);
    L::put(lo + at, p.bounds.lo);
    L::put(hi + at, p.bounds.hi);
    L::put(input_lo + at, p.input_bounds.lo);
    L::put(input_hi + at, p.input_bounds.hi);
    L::put_int(zero_point + at, p.zero_point);
    flags = {flags.corrected && L::all(p.corrected), flags.clamps_input && L::all(p.clamps_input),
             flags.contains_zero && L::all(p.contains_zero)};
  }
};

// A block's parameters, in two shapes that bodies cannot tell apart: one set for all elements of a run, …
template <class L>
struct RunParameters {
  using F = typename L::F;
  using Quad = typename L::Quad;
  F scale_, inverse_, lo_, hi_, input_lo_, input_hi_;
  typename L::I zero_point_;

  KVANT_INLINE RunParameters(const ParameterTable<L>& t, std::int64_t i)
      : scale_(L::broadcast(t.scale + i)),
        inverse_(L::broadcast(t.inverse + i)),
        lo_(L::broadcast(t.lo + i)),
        hi_(L::broadcast(t.hi + i)),
        input_lo_(L::broadcast(t.input_lo + i)),
        input_hi_(L::broadcast(t.input_hi + i)),
        zero_point_(L::set_int(t.zero_point[i])) {}

  static KVANT_INLINE Quad four(F v) { return {v, v, v, v}; }
  KVANT_INLINE Quad scale() const { return four(scale_); }
  KVANT_INLINE Quad inverse() const { return four(inverse_); }
  KVANT_INLINE Quad lo() const { return four(lo_); }
  KVANT_INLINE Quad hi() const { return four(hi_); }
  KVANT_INLINE Quad input_lo() const { return four(input_lo_); }
  KVANT_INLINE Quad input_hi() const { return four(input_hi_); }
  KVANT_INLINE typename L::QuadI zero_point() const { return {zero_point_, zero_point_, zero_point_, zero_point_}; }
};

// … or one for each column.
template <class L>
struct ColumnParameters {
  using Quad = typename L::Quad;
  const ParameterTable<L>& table;
  std::int64_t column;

  KVANT_INLINE Quad load(const typename L::C* p) const { return L::template load<Order::natural>(p + column); }
  KVANT_INLINE Quad scale() const { return load(table.scale); }
  KVANT_INLINE Quad inverse() const { return load(table.inverse); }
  KVANT_INLINE Quad lo() const { return load(table.lo); }
  KVANT_INLINE Quad hi() const { return load(table.hi); }
  KVANT_INLINE Quad input_lo() const { return load(table.input_lo); }
  KVANT_INLINE Quad input_hi() const { return load(table.input_hi); }
  KVANT_INLINE typename L::QuadI zero_point() const { return L::load_int(table.zero_point + column); }
};

// The same worked out on the way, for bodies that ask for little.
template <class L>
struct DirectParameters {
  using Quad = typename L::Quad;
  using QuadI = typename L::QuadI;
  using F = typename L::F;
  using I = typename L::I;
  const ElementwiseJob& job;
  const typename L::C* scales;
  const std::int32_t* zero_points;

  KVANT_INLINE Quad scale() const { return L::template load<Order::natural>(scales); }
  KVANT_INLINE Quad inverse() const {
    return map([](F s) KVANT_INLINE_LAMBDA { return L::div(L::set(1), s); }, scale());
  }
  KVANT_INLINE QuadI zero_point() const {
    if (zero_points == nullptr) {
      const I zp = L::set_int(job.common_zero_point);
      return {zp, zp, zp, zp};
    }
    return map([](I zp) KVANT_INLINE_LAMBDA { return semantics::limit_zero_point<L>(zp); }, L::load_int(zero_points));
  }
  KVANT_INLINE Quad lo() const { return bound(job.q_min); }
  KVANT_INLINE Quad hi() const { return bound(job.q_max); }
  KVANT_INLINE Quad input_lo() const { return times_scale(lo()); }
  KVANT_INLINE Quad input_hi() const { return times_scale(hi()); }
  KVANT_INLINE Quad times_scale(const Quad& bounds) const {
    return map([](F b, F s) KVANT_INLINE_LAMBDA { return L::mul(b, s); }, bounds, scale());
  }
  KVANT_INLINE Quad bound(std::int32_t q) const {
    const I end = L::set_int(q);
    return map([&](I zp) KVANT_INLINE_LAMBDA { return L::to_float(L::sub_int(end, zp)); }, zero_point());
  }
};

// Quotients as types, made from a scale and its inverse.
struct DivideByScale {
  template <class L>
  static KVANT_INLINE semantics::Divide<L> of(typename L::F scale, typename L::F) {
    return {scale};
  }
};
struct MultiplyByInverse {
  template <class L>
  static KVANT_INLINE semantics::Multiply<L> of(typename L::F, typename L::F inverse) {
    return {inverse};
  }
};
struct MultiplyAndCorrect {
  template <class L>
  static KVANT_INLINE semantics::CorrectedMultiply<L> of(typename L::F scale, typename L::F inverse) {
    return {scale, inverse};
  }
};

// ---- Operators ------------------------------------------------------------------------------------------------
// Each is one or more bodies, Body::block(job, parameters, stretch, stream) for one block, and with_body(), which calls
// f(Body{}) with the one that the numerics mode and the flags of the parameters allow.

template <class L, class InType, class OutType>
struct Quantize {
  using In = InType;
  using Out = OutType;
  using Span = Stretch<In, Out>;
  using F = typename L::F;
  using I = typename L::I;
  static constexpr Order kOrder = L::template kUniformOrder<In>;

  // For parameters with clamps_input. kBounded: x is known to be finite and inside the input bounds.
  template <class Quotient, bool kBounded>
  struct Narrow {
    static constexpr Order kParameterOrder = kOrder;
    template <class Parameters>
    static KVANT_INLINE void block(const ElementwiseJob&, const Parameters& p, const Span& s, bool stream) {
      const auto x = L::template load<kOrder>(s.x);
      if constexpr (kBounded) {
        const auto q = map([](F v, F scale, F inverse)
                               KVANT_INLINE_LAMBDA { return L::to_int(Quotient::template of<L>(scale, inverse)(v)); },
                           x, p.scale(), p.inverse());
        L::template store_narrow<kOrder, false>(s.out, q, p.zero_point(), stream);
      } else {
        const auto q = map(
            [](F v, F scale, F inverse, F lo, F hi) KVANT_INLINE_LAMBDA {
              return semantics::rounded_quotient_of_clamped_input<L>(v, Quotient::template of<L>(scale, inverse),
                                                                     {lo, hi});
            },
            x, p.scale(), p.inverse(), p.input_lo(), p.input_hi());
        L::template store_narrow<kOrder, true>(s.out, q, p.zero_point(), stream);
      }
    }
  };

  template <class Quotient>
  struct General {
    static constexpr Order kParameterOrder = Order::natural;
    template <class Parameters>
    static KVANT_INLINE void block(const ElementwiseJob& job, const Parameters& p, const Span& s, bool stream) {
      const I q_min = L::set_int(job.q_min), q_max = L::set_int(job.q_max);
      const auto q = map(
          [&](F x, F scale, F inverse, I zp) KVANT_INLINE_LAMBDA {
            return semantics::quantize<L>(x, Quotient::template of<L>(scale, inverse), zp, q_min, q_max);
          },
          L::template load<Order::natural>(s.x), p.scale(), p.inverse(), p.zero_point());
      L::store_codes(s.out, q, stream);
    }
  };

  template <class Function>
  static KVANT_INLINE void with_body(const ElementwiseJob& job, Flags flags, const Function& f) {
    const bool reciprocal = job.numerics == Numerics::reciprocal;
    if constexpr (L::kHasNarrowCodes) {
      // NaN becomes the zero point, and saturation clamps that where the range of codes is the type's.
      const bool saturates = job.q_min == code_range(kind_of<Out>).min && job.q_max == code_range(kind_of<Out>).max;
      if (flags.clamps_input && job.bounded)
        return reciprocal ? f(Narrow<MultiplyByInverse, true>{}) : f(Narrow<MultiplyAndCorrect, true>{});
      if (flags.clamps_input && (flags.contains_zero || saturates))
        return reciprocal ? f(Narrow<MultiplyByInverse, false>{}) : f(Narrow<MultiplyAndCorrect, false>{});
    }
    return reciprocal ? f(General<MultiplyByInverse>{}) : f(General<DivideByScale>{});
  }
};

template <class L, class InType, class OutType>
struct Dequantize {
  using In = InType;
  using Out = OutType;
  using Span = Stretch<In, Out>;
  using F = typename L::F;
  using I = typename L::I;

  struct Body {
    static constexpr Order kParameterOrder = Order::natural;
    template <class Parameters>
    static KVANT_INLINE void block(const ElementwiseJob&, const Parameters& p, const Span& s, bool stream) {
      const auto x = map([](I q, F scale, I zp) KVANT_INLINE_LAMBDA { return semantics::dequantize<L>(q, scale, zp); },
                         L::load_int(s.x), p.scale(), p.zero_point());
      L::template store<Order::natural>(s.out, x, stream);
    }
  };

  template <class Function>
  static KVANT_INLINE void with_body(const ElementwiseJob&, Flags, const Function& f) {
    f(Body{});
  }
};

template <class L, class T>
struct FakeQuantize {
  using In = T;
  using Out = T;
  using Span = Stretch<In, Out>;
  using F = typename L::F;
  static constexpr Order kOrder = L::template kUniformOrder<T>;

  struct QuadBounds {
    typename L::Quad lo, hi;
  };

  template <class Quotient, bool kClampsInput>
  struct Body {
    static constexpr Order kParameterOrder = kOrder;
    template <class Parameters>
    static KVANT_INLINE QuadBounds quotient_or_input_bounds(const Parameters& p) {
      if constexpr (kClampsInput)
        return {p.input_lo(), p.input_hi()};
      else
        return {p.lo(), p.hi()};
    }
    template <class Parameters>
    static KVANT_INLINE void block(const ElementwiseJob&, const Parameters& p, const Span& s, bool stream) {
      const auto bounds = quotient_or_input_bounds(p);
      const auto y = map(
          [](F x, F scale, F inverse, F lo, F hi) KVANT_INLINE_LAMBDA {
            const auto quotient = Quotient::template of<L>(scale, inverse);
            if constexpr (kClampsInput)
              return semantics::fake_quantize_clamped_input<L>(x, scale, quotient, {lo, hi});
            else
              return semantics::fake_quantize<L>(x, scale, quotient, {lo, hi});
          },
          L::template load<kOrder>(s.x), p.scale(), p.inverse(), bounds.lo, bounds.hi);
      L::template store<kOrder>(s.out, y, stream);
    }
  };

  template <class Function>
  static KVANT_INLINE void with_body(const ElementwiseJob& job, Flags flags, const Function& f) {
    if (job.numerics == Numerics::reciprocal) return f(Body<MultiplyByInverse, false>{});
    if constexpr (L::kHasFma) {
      if (flags.clamps_input) return f(Body<MultiplyAndCorrect, true>{});
    }
    return f(Body<DivideByScale, false>{});
  }
};

// The two backward passes with a mask; kScaled divides the gradient by the scale.
template <class L, class T, bool kScaled>
struct MaskedBackward {
  using In = T;
  using Out = T;
  using Span = Stretch<In, Out>;
  using F = typename L::F;
  static constexpr Order kOrder = L::template kUniformOrder<T>;

  template <class QuotientOfX, class QuotientOfDy>
  struct Body {
    static constexpr Order kParameterOrder = kOrder;
    template <class Parameters>
    static KVANT_INLINE void block(const ElementwiseJob&, const Parameters& p, const Span& s, bool stream) {
      const auto dx = map(
          [](F x, F dy, F scale, F inverse, F lo, F hi) KVANT_INLINE_LAMBDA {
            const auto of_x = QuotientOfX::template of<L>(scale, inverse);
            if constexpr (kScaled)
              return semantics::quantize_backward<L>(x, dy, of_x, QuotientOfDy::template of<L>(scale, inverse),
                                                     {lo, hi});
            else
              return semantics::fake_quantize_backward<L>(x, dy, of_x, {lo, hi});
          },
          L::template load<kOrder>(s.x), L::template load<kOrder>(s.dy), p.scale(), p.inverse(), p.lo(), p.hi());
      L::template store<kOrder>(s.out, dx, stream);
    }
  };

  template <class Function>
  static KVANT_INLINE void with_body(const ElementwiseJob& job, Flags flags, const Function& f) {
    if (job.numerics == Numerics::reciprocal) return f(Body<MultiplyByInverse, MultiplyByInverse>{});
    if constexpr (L::kHasFma) {
      if (flags.corrected) return f(Body<MultiplyAndCorrect, DivideByScale>{});
    }
    return f(Body<DivideByScale, DivideByScale>{});
  }
};

template <class L, class T>
struct DequantizeBackward {
  using In = T;
  using Out = T;
  using Span = Stretch<In, Out>;
  using F = typename L::F;

  struct Body {
    static constexpr Order kParameterOrder = L::template kUniformOrder<T>;
    template <class Parameters>
    static KVANT_INLINE void block(const ElementwiseJob&, const Parameters& p, const Span& s, bool stream) {
      const auto dq =
          map([](F dy, F scale) KVANT_INLINE_LAMBDA { return semantics::dequantize_backward<L>(dy, scale); },
              L::template load<kParameterOrder>(s.x), p.scale());
      L::template store<kParameterOrder>(s.out, dq, stream);
    }
  };

  template <class Function>
  static KVANT_INLINE void with_body(const ElementwiseJob&, Flags, const Function& f) {
    f(Body{});
  }
};

// ---- Packed codes ---------------------------------------------------------------------------------------------

template <class T>
inline constexpr bool kIsPacked = std::is_same_v<T, Int4> || std::is_same_v<T, UInt4>;

// The type that codes are computed in: bytes for packed ones.
template <class T>
using Unpacked = std::conditional_t<std::is_same_v<T, Int4>, std::int8_t,
                                    std::conditional_t<std::is_same_v<T, UInt4>, std::uint8_t, T>>;

template <class L, class Body>
KVANT_INLINE void for_each_nibble_block(std::int64_t n, const Body& body) {
  std::int64_t i = 0;
  for (; i + L::kNibbleBlock <= n; i += L::kNibbleBlock) body(i, L::kNibbleBlock);
  if (i < n) body(i, n - i);
}

template <class L>
KVANT_INLINE void pack_nibbles(std::uint8_t* codes, std::uint8_t* packed, std::int64_t n, bool stream) {
  if (n % 2 != 0) codes[n] = 0;  // the high nibble behind an odd last element
  for_each_nibble_block<L>(n, [&](std::int64_t i, std::int64_t count) KVANT_INLINE_LAMBDA {
    if (count == L::kNibbleBlock) {
      L::pack_nibbles(codes + i, packed + i / 2, stream);
    } else {
      std::uint8_t block[L::kNibbleBlock / 2];
      L::pack_nibbles(codes + i, block, false);
      copy_elements(packed + i / 2, block, (count + 1) / 2);
    }
  });
}

template <class L, bool kSigned>
KVANT_INLINE void unpack_nibbles(const std::uint8_t* packed, std::uint8_t* codes, std::int64_t n) {
  for_each_nibble_block<L>(n, [&](std::int64_t i, std::int64_t count) KVANT_INLINE_LAMBDA {
    if (count == L::kNibbleBlock) {
      L::template unpack_nibbles<kSigned>(packed + i / 2, codes + i);
    } else {
      std::uint8_t block[L::kNibbleBlock / 2] = {};
      copy_elements(block, packed + i / 2, (count + 1) / 2);
      L::template unpack_nibbles<kSigned>(block, codes + i);
    }
  });
}

// ---- Lines ----------------------------------------------------------------------------------------------------

template <class T>
KVANT_INLINE std::int64_t byte_offset(std::int64_t element) {
  if constexpr (kIsPacked<T>)
    return element / 2;
  else
    return element * static_cast<std::int64_t>(sizeof(T));
}

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

// The same for a line with a packed operand, which is entered at even elements only; 0 if that does not come out.
template <class L, class OutElement>
KVANT_INLINE std::int64_t packed_elements_until_streamable(const std::byte* p) {
  const std::int64_t bytes = elements_until_streamable<L>(p, L::kStreamAlignment);
  if constexpr (kIsPacked<OutElement>) return 2 * bytes;
  const std::int64_t elements = bytes / static_cast<std::int64_t>(sizeof(OutElement));
  const bool whole = elements * static_cast<std::int64_t>(sizeof(OutElement)) == bytes && elements % 2 == 0;
  return whole ? elements : 0;
}

// Calls f(stretch, offset, n, stream) for elements [offset, offset + n) of a line. Packed codes pass through a buffer
// of bytes that stays in L1, so that groups may begin in the middle of a byte; f then sees pieces, and the buffer in
// the place of the packed operand. A packed line is entered at even elements only.
template <class L, class Op, class InElement, class OutElement, class Function>
KVANT_INLINE void with_unpacked_line(const ElementwiseJob& job, std::int64_t line, std::int64_t offset, std::int64_t n,
                                     const Function& f) {
  using In = typename Op::In;
  using Out = typename Op::Out;
  using Span = typename Op::Span;
  const std::byte* x = job.x + line * job.x_stride + byte_offset<InElement>(offset);
  const std::byte* dy = job.dy == nullptr ? nullptr : job.dy + line * job.dy_stride + byte_offset<InElement>(offset);
  std::byte* out = job.out + line * job.out_stride + byte_offset<OutElement>(offset);
  if constexpr (!kIsPacked<InElement> && !kIsPacked<OutElement>) {
    f(Span{reinterpret_cast<const In*>(x), reinterpret_cast<const In*>(dy), reinterpret_cast<Out*>(out)}, offset, n,
      job.stream);
  } else {
    constexpr std::int64_t kStaged = 1024;
    alignas(64) std::uint8_t staged[kStaged + L::kNibbleBlock];
    // A first piece that ends where the output can be streamed to, so that all others begin there; not for short runs,
    // which pieces should not cut.
    const bool align = job.stream && job.runs->run >= kStaged;
    std::int64_t piece = align ? packed_elements_until_streamable<L, OutElement>(out) : 0;
    if (piece == 0) piece = kStaged;
    for (std::int64_t done = 0, count = 0; done < n; done += count, piece = kStaged) {
      count = n - done < piece ? n - done : piece;
      if constexpr (kIsPacked<OutElement>) {
        f(Span{reinterpret_cast<const In*>(x) + done, nullptr, reinterpret_cast<Out*>(staged)}, offset + done, count,
          false);
        std::uint8_t* packed = reinterpret_cast<std::uint8_t*>(out) + done / 2;
        pack_nibbles<L>(staged, packed, count, job.stream && can_stream<L>(packed));
      } else {
        unpack_nibbles<L, std::is_same_v<InElement, Int4>>(reinterpret_cast<const std::uint8_t*>(x) + done / 2, staged,
                                                           count);
        f(Span{reinterpret_cast<const In*>(staged), nullptr, reinterpret_cast<Out*>(out) + done}, offset + done, count,
          job.stream);
      }
    }
  }
}

// Elements [offset, offset + n) of a line in runs; `first` is the line's first parameter.
template <class L, class Op>
KVANT_INLINE void walk_runs(const ElementwiseJob& job, std::int64_t first, typename Op::Span s, std::int64_t offset,
                            std::int64_t n, bool stream, std::int64_t fetch_ahead, ParameterTable<L>& table) {
  using Span = typename Op::Span;
  constexpr std::int64_t kBlock = 4 * L::kWidth;
  constexpr std::int64_t kShortRun = 512;  // shorter ones are prepared in batches
  const std::int64_t run = job.runs->run;
  std::int64_t parameter = first;
  std::int64_t left = run;  // in the run that contains the next element
  if (offset != 0) {
    parameter += offset / run;
    left -= offset % run;
  }
  while (n > 0) {
    std::int64_t count = left < n ? left : n;
    std::int64_t batch = 1;
    if (run < kShortRun && n > count) {
      const std::int64_t runs = 1 + (n - count + run - 1) / run;
      batch = runs < kBlock ? runs : kBlock;
    } else if (stream && !can_stream<L>(s.out)) {  // a head in plain stores, so that the rest is aligned
      const std::int64_t head = elements_until_streamable<L>(s.out, count);
      if (head != 0) count = head;
    }
    if (batch == 1)
      table.fill_one(job, parameter);
    else
      table.template fill<Order::natural>(job, parameter, batch);
    parameter += batch - 1;
    Op::with_body(job, table.flags, [&](auto body) KVANT_INLINE_LAMBDA {
      using Body = decltype(body);
      // Whole runs of whole blocks, as groups of 32 or 128 are, need no tail.
      if (count == run && run % kBlock == 0 && n >= batch * run) {
        for (std::int64_t i = 0; i < batch; ++i) {
          const RunParameters<L> p(table, i);
          for_each_whole_block<L>(s, run, {stream && can_stream<L>(s.out), fetch_ahead},
                                  [&](const Span& block, std::int64_t, bool st)
                                      KVANT_INLINE_LAMBDA { Body::block(job, p, block, st); });
          s = s + run;
        }
        n -= batch * run;
        left = 0;
        return;
      }
      for (std::int64_t i = 0; i < batch; ++i) {
        const RunParameters<L> p(table, i);
        for_each_block<L>(s, count, {stream && can_stream<L>(s.out), fetch_ahead},
                          [&](const Span& block, std::int64_t, bool st)
                              KVANT_INLINE_LAMBDA { Body::block(job, p, block, st); });
        s = s + count;
        n -= count;
        left -= count;
        if (i + 1 < batch) {
          left = run;
          count = left < n ? left : n;
        }
      }
    });
    if (left == 0) left = run, ++parameter;
  }
}

template <class L, class Op, class InElement, class OutElement>
KVANT_INLINE void run_lines_in_runs(const ElementwiseJob& job, const ElementwisePart& part) {
  const std::int64_t fetch_ahead = kIsPacked<InElement> ? 0 : job.fetch_ahead;
  ParameterTable<L> table;
  for (std::int64_t line = part.first_line; line < part.end_line; ++line) {
    const std::int64_t first = core::first_parameter(*job.runs, line);
    with_unpacked_line<L, Op, InElement, OutElement>(
        job, line, part.offset, part.count,
        [&](const typename Op::Span& s, std::int64_t offset, std::int64_t n, bool stream)
            KVANT_INLINE_LAMBDA { walk_runs<L, Op>(job, first, s, offset, n, stream, fetch_ahead, table); });
  }
}

// Lines whose elements have parameters of their own, for 16-bit floats: the arithmetic binds, so lines with the same
// parameters share what was prepared for a tile of columns. A group of lines stays small enough that what the hardware
// fetches beyond a tile is still in the cache when its turn comes.
template <class L, class Op, class InElement, class OutElement>
KVANT_INLINE void run_lines_in_tiles(const ElementwiseJob& job, const ElementwisePart& part) {
  using Span = typename Op::Span;
  constexpr std::int64_t kNearBytes = 1 << 20, kFewLines = 8;
  const std::int64_t line_bytes = job.runs->length * static_cast<std::int64_t>(sizeof(typename Op::In));
  const std::int64_t near = kNearBytes / line_bytes < kFewLines ? kFewLines : kNearBytes / line_bytes;
  const bool fetch = job.fetch_ahead != 0 && !kIsPacked<InElement>;
  const std::int64_t fetch_ahead = fetch ? job.x_stride : 0;  // the next line of the tile
  ParameterTable<L> table;
  std::int64_t shared = 0;
  for (std::int64_t line = part.first_line; line < part.end_line; line += shared) {
    const std::int64_t first = core::first_parameter(*job.runs, line);
    shared = core::lines_sharing_parameters(*job.runs, line);
    if (shared > part.end_line - line) shared = part.end_line - line;
    if (shared > near) shared = near;
    for (std::int64_t done = 0; done < part.count; done += table.kCapacity) {
      const std::int64_t rest = part.count - done;
      const std::int64_t columns = rest < table.kCapacity ? rest : table.kCapacity;
      const std::int64_t offset = part.offset + done;
      // The body depends on the flags of the table, and the order of the table on the body.
      table.template fill<Order::natural>(job, first + offset, columns);
      Op::with_body(job, table.flags, [&](auto body) KVANT_INLINE_LAMBDA {
        using Body = decltype(body);
        if constexpr (Body::kParameterOrder != Order::natural)
          table.template fill<Body::kParameterOrder>(job, first + offset, columns);
        for (std::int64_t shared_line = line; shared_line < line + shared; ++shared_line)
          with_unpacked_line<L, Op, InElement, OutElement>(
              job, shared_line, offset, columns,
              [&](const Span& s, std::int64_t at, std::int64_t n, bool stream) KVANT_INLINE_LAMBDA {
                for_each_block<L>(s, n, {stream && can_stream<L>(s.out), fetch_ahead},
                                  [&](const Span& block, std::int64_t i, bool st) KVANT_INLINE_LAMBDA {
                                    Body::block(job, ColumnParameters<L>{table, at - offset + i}, block, st);
                                  });
              });
      });
    }
  }
}

// The same for f32 and f64, where memory binds: lines one after the other, because tiles broke its stream (f32 to s8
// took 19 ms where this takes 16), and parameters worked out on the way.
template <class L, class Op, class InElement, class OutElement>
KVANT_INLINE void run_lines_directly(const ElementwiseJob& job, const ElementwisePart& part) {
  using Span = typename Op::Span;
  constexpr std::int64_t kBlock = 4 * L::kWidth;
  const std::int64_t fetch_ahead = kIsPacked<InElement> ? 0 : job.fetch_ahead;
  ParameterTable<L> table;
  for (std::int64_t line = part.first_line; line < part.end_line; ++line) {
    const std::int64_t first = core::first_parameter(*job.runs, line);
    with_unpacked_line<L, Op, InElement, OutElement>(
        job, line, part.offset, part.count,
        [&](const Span& s, std::int64_t offset, std::int64_t n, bool stream) KVANT_INLINE_LAMBDA {
          const auto* scales = reinterpret_cast<const typename L::C*>(job.scale) + first + offset;
          const std::int32_t* zero_points = reinterpret_cast<const std::int32_t*>(job.zero_point);
          if (zero_points != nullptr) zero_points += first + offset;
          constexpr Flags kNothingKnown{false, false, false};
          Op::with_body(job, kNothingKnown, [&](auto body) KVANT_INLINE_LAMBDA {
            for_each_whole_block<L>(s, n, {stream && can_stream<L>(s.out), fetch_ahead},
                                    [&](const Span& block, std::int64_t column, bool st) KVANT_INLINE_LAMBDA {
                                      const DirectParameters<L> p{
                                          job, scales + column,
                                          zero_points == nullptr ? nullptr : zero_points + column};
                                      decltype(body)::block(job, p, block, st);
                                    });
          });
          const std::int64_t rest = n % kBlock;
          if (rest <= 0) return;
          table.template fill<Order::natural>(job, first + offset + n - rest, rest);
          Op::with_body(job, kNothingKnown, [&](auto body) KVANT_INLINE_LAMBDA {
            for_each_block<L>(s + (n - rest), rest, {false, 0},
                              [&](const Span& block, std::int64_t, bool st) KVANT_INLINE_LAMBDA {
                                decltype(body)::block(job, ColumnParameters<L>{table, 0}, block, st);
                              });
          });
        });
  }
}

// Op reads InElement and writes OutElement in memory; at most one of them is packed.
template <class L>
void finish_streaming() {
  L::finish_streaming();
}

template <class L, class Op, class InElement, class OutElement>
void run_part(const ElementwiseJob& job, const ElementwisePart& part) {
  constexpr bool kSixteenBit = sizeof(typename Op::In) == 2 || sizeof(typename Op::Out) == 2;
  if (job.runs->run != 1)
    run_lines_in_runs<L, Op, InElement, OutElement>(job, part);
  else if constexpr (kSixteenBit)
    run_lines_in_tiles<L, Op, InElement, OutElement>(job, part);
  else
    run_lines_directly<L, Op, InElement, OutElement>(job, part);
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
  sku.precision_guarantee = detail::bit_stable_guarantee<compute_t<F>>();
  return sku;
}

template <class Isa, class F, class Code>
constexpr std::array<ElementwiseKernel, 2> kernels_with_code(ArchSku arch) {
  using L = typename Isa::template Lanes<compute_t<F>>;
  using Byte = Unpacked<Code>;
  return {{{elementwise_sku<F>(QuantizeKind::quantize, kind_of<F>, kind_of<Code>, arch),
            &run_part<L, Quantize<L, F, Byte>, F, Code>, &finish_streaming<L>},
           {elementwise_sku<F>(QuantizeKind::dequantize, kind_of<Code>, kind_of<F>, arch),
            &run_part<L, Dequantize<L, Byte, F>, Code, F>, &finish_streaming<L>}}};
}

template <class Isa, class F>
constexpr std::array<ElementwiseKernel, 4> kernels_without_code(ArchSku arch) {
  using L = typename Isa::template Lanes<compute_t<F>>;
  const auto sku = [arch](QuantizeKind op) { return elementwise_sku<F>(op, kind_of<F>, kind_of<F>, arch); };
  return {
      {{sku(QuantizeKind::fake_quantize), &run_part<L, FakeQuantize<L, F>, F, F>, &finish_streaming<L>},
       {sku(QuantizeKind::quantize_backward), &run_part<L, MaskedBackward<L, F, true>, F, F>, &finish_streaming<L>},
       {sku(QuantizeKind::fake_quantize_backward), &run_part<L, MaskedBackward<L, F, false>, F, F>,
        &finish_streaming<L>},
       {sku(QuantizeKind::dequantize_backward), &run_part<L, DequantizeBackward<L, F>, F, F>, &finish_streaming<L>}}};
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
