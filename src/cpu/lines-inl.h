// Lines of a part: cut into runs, tiles of columns or blocks, with the parameters that each needs. Compiled once for
// each instruction set.
//
// What walks elements is not inlined into what unpacks codes: packed codes pass through a buffer of bytes, so that the
// kernels for s4 and s8 share all code but the packing. A call costs a few ns for a line or 4096 staged elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/runs.h"
#include "cpu/blocks-inl.h"
#include "cpu/elementwise_kernel.h"
#include "cpu/packed_codes-inl.h"
#include "cpu/parameters-inl.h"
#include "kvant/element.h"

namespace kvant::cpu {

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

// The same for a line with a packed operand, which is entered at whole bytes only; 0 if that does not come out.
template <class L, class InElement, class OutElement>
KVANT_INLINE std::int64_t packed_elements_until_streamable(const std::byte* p) {
  const std::int64_t bytes = elements_until_streamable<L>(p, L::kStreamAlignment);
  if constexpr (kIsPacked<OutElement>) return kPerByte<OutElement> * bytes;
  const std::int64_t elements = bytes / static_cast<std::int64_t>(sizeof(OutElement));
  const bool whole =
      elements * static_cast<std::int64_t>(sizeof(OutElement)) == bytes && elements % kPerByte<InElement> == 0;
  return whole ? elements : 0;
}

// Elements [offset, offset + n) of a line as a walker sees them.
template <class Span>
struct LinePiece {
  Span span;
  std::int64_t offset;
  std::int64_t n;
  bool stream;
};

// Calls f(piece) for elements [offset, offset + n) of a line. Packed codes pass through a buffer of bytes that stays in
// L1, so that groups may begin in the middle of a byte; f then sees several pieces, and the buffer in the place of the
// packed operand. A packed line is entered at whole bytes only.
template <class L, class Op, class InElement, class OutElement, class Function>
KVANT_INLINE void for_each_piece(const ElementwiseWork& job, std::int64_t line, std::int64_t offset, std::int64_t n,
                                 const Function& f) {
  using In = typename Op::In;
  using Out = typename Op::Out;
  using Span = typename Op::Span;
  using Piece = LinePiece<Span>;
  const std::byte* x = job.x + line * job.x_stride + byte_offset<InElement>(offset);
  const std::byte* dy = job.dy == nullptr ? nullptr : job.dy + line * job.dy_stride + byte_offset<InElement>(offset);
  std::byte* out = job.out + line * job.out_stride + byte_offset<OutElement>(offset);
  if constexpr (!kIsPacked<InElement> && !kIsPacked<OutElement>) {
    f(Piece{Span{reinterpret_cast<const In*>(x), reinterpret_cast<const In*>(dy), reinterpret_cast<Out*>(out)}, offset,
            n, job.stream});
  } else {
    using Code = std::conditional_t<kIsPacked<InElement>, InElement, OutElement>;
    constexpr std::int64_t kStaged = 4096, kLongRun = 1024;
    alignas(64) std::uint8_t staged[kStaged + kPackBlock<L, Code>];
    // A first piece that ends where the output can be streamed to, so that all others begin there; not for short runs,
    // which pieces should not cut.
    const bool align = job.stream && job.runs.run >= kLongRun;
    std::int64_t piece = align ? packed_elements_until_streamable<L, InElement, OutElement>(out) : 0;
    if (piece == 0) piece = kStaged;
    for (std::int64_t done = 0, count = 0; done < n; done += count, piece = kStaged) {
      count = n - done < piece ? n - done : piece;
      if constexpr (kIsPacked<OutElement>) {
        f(Piece{Span{reinterpret_cast<const In*>(x) + done, nullptr, reinterpret_cast<Out*>(staged)}, offset + done,
                count, false});
        std::uint8_t* packed = reinterpret_cast<std::uint8_t*>(out) + done / kPerByte<Code>;
        pack_codes<L, Code>(staged, packed, count, job.stream && can_stream<L>(packed));
      } else {
        unpack_codes<L, Code>(reinterpret_cast<const std::uint8_t*>(x) + done / kPerByte<Code>, staged, count);
        f(Piece{Span{reinterpret_cast<const In*>(staged), nullptr, reinterpret_cast<Out*>(out) + done}, offset + done,
                count, job.stream});
      }
    }
  }
}

// What a body makes of a job before its first block. Most take it as it is, but a copy, which the bytes that are stored
// cannot be part of: what is read from it stays in registers.
template <class Body>
KVANT_INLINE auto work_of(const ElementwiseWork& job) {
  if constexpr (requires { Body::of_work(job); })
    return Body::of_work(job);
  else
    return job;
}

// The same of the parameters of a run.
template <class Body, class Work, class Parameters>
KVANT_INLINE auto parameters_of_run(const Work& job, const Parameters& p) {
  if constexpr (requires { Body::of_run(job, p); })
    return Body::of_run(job, p);
  else
    return p;
}

// A piece in runs; `first` is the line's first parameter.
template <class L, class Op>
KVANT_NOINLINE void walk_runs(const ElementwiseWork& job, std::int64_t first, const LinePiece<typename Op::Span>& piece,
                              std::int64_t fetch_ahead, ParameterTable<L>& table) {
  using Span = typename Op::Span;
  constexpr std::int64_t kBlock = 4 * L::kWidth;
  constexpr std::int64_t kShortRun = 512;  // shorter ones are prepared in batches
  Span s = piece.span;
  std::int64_t n = piece.n;
  const bool stream = piece.stream;
  const std::int64_t run = job.runs.run;
  std::int64_t parameter = first;
  std::int64_t left = run;  // in the run that contains the next element
  if (piece.offset != 0) {
    parameter += piece.offset / run;
    left -= piece.offset % run;
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
    Op::template with_body<true>(job, table.flags, [&](auto body) KVANT_INLINE_LAMBDA {
      using Body = decltype(body);
      const auto own = work_of<Body>(job);
      // Whole runs of whole blocks, as groups of 32 or 128 are, need no tail.
      if (count == run && run % kBlock == 0 && n >= batch * run) {
        for (std::int64_t i = 0; i < batch; ++i) {
          const auto p = parameters_of_run<Body>(own, RunParameters<L>(table, i));
          for_each_whole_block<L>(s, run, {stream && can_stream<L>(s.out), fetch_ahead},
                                  [&](const Span& block, std::int64_t, bool st)
                                      KVANT_INLINE_LAMBDA { Body::block(own, p, block, st); });
          s = s + run;
        }
        n -= batch * run;
        left = 0;
        return;
      }
      std::int64_t i = 0;
      // Two whole runs of half a block, as groups of 16 are, make a block. Not for bodies that are for long runs only.
      constexpr bool kTakesPairs = requires { Body::block(own, std::declval<PairParameters<L>>(), s, false); };
      if constexpr (kTakesPairs) {
        if (count == run && run == kBlock / 2 && n >= batch * run) {
          for (; i + 2 <= batch; i += 2) {
            for_each_whole_block<L>(s, kBlock, {stream && can_stream<L>(s.out), fetch_ahead},
                                    [&](const Span& block, std::int64_t, bool st) KVANT_INLINE_LAMBDA {
                                      Body::block(own, PairParameters<L>{table, i}, block, st);
                                    });
            s = s + kBlock;
          }
          n -= i * run;
          if (i == batch) {
            left = 0;
            return;
          }
        }
      }
      for (; i < batch; ++i) {
        const auto p = parameters_of_run<Body>(own, RunParameters<L>(table, i));
        for_each_block<L>(s, count, {stream && can_stream<L>(s.out), fetch_ahead},
                          [&](const Span& block, std::int64_t, bool st)
                              KVANT_INLINE_LAMBDA { Body::block(own, p, block, st); });
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

// A piece whose elements have parameters of their own, those of the table from column `column` on.
template <class L, class Op, class Body>
KVANT_NOINLINE void walk_columns(const ElementwiseWork& job, const LinePiece<typename Op::Span>& piece,
                                 std::int64_t column, std::int64_t fetch_ahead, const ParameterTable<L>& table) {
  using Span = typename Op::Span;
  const auto own = work_of<Body>(job);
  for_each_block<L>(piece.span, piece.n, {piece.stream && can_stream<L>(piece.span.out), fetch_ahead},
                    [&](const Span& block, std::int64_t i, bool st) KVANT_INLINE_LAMBDA {
                      Body::block(own, ColumnParameters<L>{table, column + i}, block, st);
                    });
}

// Lines whose elements have parameters of their own, for 16-bit floats: the arithmetic binds, so lines with the same
// parameters share what was prepared for a tile of columns. A group of lines stays small enough that what the hardware
// fetches beyond a tile is still in the cache when its turn comes.
template <class L, class Op, class InElement, class OutElement>
KVANT_INLINE void run_lines_in_tiles(const ElementwiseWork& job, const ElementwisePart& part) {
  constexpr std::int64_t kNearBytes = 1 << 20, kFewLines = 8;
  const std::int64_t line_bytes = job.runs.length * static_cast<std::int64_t>(sizeof(typename Op::In));
  const std::int64_t near = kNearBytes / line_bytes < kFewLines ? kFewLines : kNearBytes / line_bytes;
  const bool fetch = job.fetch_ahead != 0 && !kIsPacked<InElement>;
  const std::int64_t fetch_ahead = fetch ? job.x_stride : 0;  // the next line of the tile
  ParameterTable<L> table;
  std::int64_t shared = 0;
  for (std::int64_t line = part.first_line; line < part.end_line; line += shared) {
    const std::int64_t first = core::first_parameter(job.runs, line);
    shared = core::lines_sharing_parameters(job.runs, line);
    if (shared > part.end_line - line) shared = part.end_line - line;
    if (shared > near) shared = near;
    for (std::int64_t done = 0; done < part.count; done += table.kCapacity) {
      const std::int64_t rest = part.count - done;
      const std::int64_t columns = rest < table.kCapacity ? rest : table.kCapacity;
      const std::int64_t offset = part.offset + done;
      // The body depends on the flags of the table, and the order of the table on the body.
      table.template fill_by_call<Order::natural>(job, first + offset, columns);
      Op::template with_body<true>(job, table.flags, [&](auto body) KVANT_INLINE_LAMBDA {
        using Body = decltype(body);
        if constexpr (Body::kParameterOrder != Order::natural)
          table.template fill_by_call<Body::kParameterOrder>(job, first + offset, columns);
        for (std::int64_t shared_line = line; shared_line < line + shared; ++shared_line)
          for_each_piece<L, Op, InElement, OutElement>(
              job, shared_line, offset, columns, [&](const LinePiece<typename Op::Span>& piece) KVANT_INLINE_LAMBDA {
                walk_columns<L, Op, Body>(job, piece, piece.offset - offset, fetch_ahead, table);
              });
      });
    }
  }
}

// A piece whose elements have parameters of their own, worked out on the way; `first` is the line's first parameter.
template <class L, class Op>
KVANT_NOINLINE void walk_directly(const ElementwiseWork& job, std::int64_t first,
                                  const LinePiece<typename Op::Span>& piece, std::int64_t fetch_ahead,
                                  ParameterTable<L>& table) {
  using Span = typename Op::Span;
  constexpr std::int64_t kBlock = 4 * L::kWidth;
  constexpr Flags kNothingKnown{false, false, false};
  const Span& s = piece.span;
  const auto* scales = reinterpret_cast<const typename L::C*>(job.scale.data) + first + piece.offset;
  const std::int32_t* zero_points = reinterpret_cast<const std::int32_t*>(job.zero_point.data);
  if (zero_points != nullptr) zero_points += first + piece.offset;
  const std::int64_t direct = job.scale.plain() ? piece.n - piece.n % kBlock : 0;
  Op::template with_body<false>(job, kNothingKnown, [&](auto body) KVANT_INLINE_LAMBDA {
    for_each_whole_block<L>(
        s, direct, {piece.stream && can_stream<L>(s.out), fetch_ahead},
        [&](const Span& block, std::int64_t column, bool st) KVANT_INLINE_LAMBDA {
          const DirectParameters<L> p{job, scales + column, zero_points == nullptr ? nullptr : zero_points + column};
          decltype(body)::block(job, p, block, st);
        });
  });
  for (std::int64_t done = direct, count = 0; done < piece.n; done += count) {
    count = piece.n - done < table.kCapacity ? piece.n - done : table.kCapacity;
    table.template fill_by_call<Order::natural>(job, first + piece.offset + done, count);
    Op::template with_body<false>(job, kNothingKnown, [&](auto body) KVANT_INLINE_LAMBDA {
      walk_columns<L, Op, decltype(body)>(job, {s + done, piece.offset + done, count, false}, 0, 0, table);
    });
  }
}

// Lines one after the other: walk(first parameter of the line, piece, fetch_ahead, table).
//
// So also for lines whose elements have parameters of their own in f32 and f64, where memory binds, because tiles broke
// its stream (f32 to s8 took 19 ms where this takes 16).
template <class L, class Op, class InElement, class OutElement, class Walk>
KVANT_INLINE void run_line_by_line(const ElementwiseWork& job, const ElementwisePart& part, const Walk& walk) {
  const std::int64_t fetch_ahead = kIsPacked<InElement> ? 0 : job.fetch_ahead;
  ParameterTable<L> table;
  for (std::int64_t line = part.first_line; line < part.end_line; ++line) {
    const std::int64_t first = core::first_parameter(job.runs, line);
    for_each_piece<L, Op, InElement, OutElement>(job, line, part.offset, part.count,
                                                 [&](const LinePiece<typename Op::Span>& piece)
                                                     KVANT_INLINE_LAMBDA { walk(first, piece, fetch_ahead, table); });
  }
}

}  // namespace kvant::cpu
