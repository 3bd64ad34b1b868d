// The kernel of the element-wise family. Threads of a block stand in a rectangle, x along a line's chunks and y along
// lines, and stride over the rest of both, so that neither long lines nor many short ones leave threads idle.
#pragma once

#include "core/elementwise_kernel.h"
#include "core/runs.h"
#include "cuda/chunk.h"
#include "cuda/operators.h"
#include "cuda/parameters.h"

namespace kvant::cuda {

// The parameters of one index.
template <class L>
struct ParameterReader {
  const detail::Scales* scale;
  const detail::ZeroPoints* zero_point;
  Settings settings;

  KVANT_DEVICE semantics::Prepared<L> operator()(std::int64_t index) const {
    return semantics::prepare<L>(scale_at<typename L::C>(*scale, index), zero_point_at(*zero_point, index),
                                 settings.q_min, settings.q_max);
  }

  // Those of `count` neighbours from `index` on that have one each.
  template <int N>
  KVANT_DEVICE void load_own(std::int64_t index, int count, typename L::C (&s)[N], int (&zp)[N]) const {
    KVANT_UNROLL
    for (int i = 0; i < N; ++i) {
      s[i] = scale->template value<typename L::C>();
      zp[i] = zero_point->value;
    }
    if (scale->data != nullptr && scale->plain()) {
      load_chunk<typename L::C, N>(scale->data, index, count, s);
    } else if (scale->data != nullptr) {
      KVANT_UNROLL
      for (int i = 0; i < N; ++i)
        if (i < count) s[i] = stored_scale_at<typename L::C>(*scale, index + i);
    }
    if (zero_point->data != nullptr) load_chunk<std::int32_t, N>(zero_point->data, index, count, zp);
  }
};

template <class Op>
KVANT_KERNEL void KVANT_BLOCK(256, 2) elementwise_kernel(const detail::ElementwiseJob job) {
  using In = typename Op::In;
  using Out = typename Op::Out;
  using F = typename Op::F;
  using L = typename Op::L;
  using C = compute_t<F>;
  constexpr int N = kChunk<In, Out>;
  constexpr int kUnit = kPerByte < In >> kPerByte<Out> ? kPerByte<In> : kPerByte<Out>;
  using Lines = Cut<F, N>;

  const detail::Runs& runs = job.runs;
  const Settings settings{job.q_min, job.q_max, job.numerics == Numerics::reciprocal, job.grid};
  const ParameterReader<L> parameters{&job.scale, &job.zero_point, settings};
  const device::Index2 thread = device::thread_index(), block = device::block_index(), size = device::block_size(),
                       grid = device::grid_size();
  const std::int64_t line_step = static_cast<std::int64_t>(grid.y) * size.y;
  const std::int64_t chunk_step = static_cast<std::int64_t>(grid.x) * size.x;

  std::int64_t prepared_index = -1;
  semantics::Prepared<L> prepared = {};
  for (std::int64_t line = static_cast<std::int64_t>(block.y) * size.y + thread.y; line < runs.lines;
       line += line_step) {
    const std::byte* x_line = job.x + line * job.x_stride;
    const std::byte* dy_line = job.dy + line * job.dy_stride;
    std::byte* out_line = job.out + line * job.out_stride;
    const std::int64_t base = core::first_parameter(runs, line);
    const std::byte* wider = kIsFloat<In> ? x_line : out_line;
    const Lines cut = Lines::template make<kUnit>(wider, 0, runs.length);
    const std::int64_t chunks = cut.chunks();
    for (std::int64_t chunk = static_cast<std::int64_t>(block.x) * size.x + thread.x; chunk < chunks;
         chunk += chunk_step) {
      const std::int64_t first = cut.first(chunk);
      const int count = cut.count(chunk);
      number_t<In> x[N];
      number_t<F> dy[N] = {};
      number_t<Out> out[N];
      load_chunk<In, N>(x_line, first, count, x);
      if constexpr (Op::kReadsDy) load_chunk<F, N>(dy_line, first, count, dy);

      const bool one_run = runs.run >= runs.length;
      const std::int64_t run = one_run ? 0 : first / runs.run;
      const std::int64_t left = (run + 1) * runs.run - first;  // elements of this run from here on
      if (one_run || left >= count) {
        if (base + run != prepared_index) {
          prepared_index = base + run;
          prepared = parameters(prepared_index);
        }
        apply<Op, N>(prepared, settings, x, dy, out);
      } else if (runs.run == 1) {
        constexpr int kPart = N < 16 ? N : 16;  // more would not fit the registers
        KVANT_UNROLL
        for (int part = 0; part < N; part += kPart) {
          C scale[kPart];
          int zero_point[kPart];
          const int left_here = count - part;
          parameters.load_own(base + first + part, left_here < kPart ? left_here : kPart, scale, zero_point);
          KVANT_UNROLL
          for (int i = 0; i < kPart; ++i)
            out[part + i] = apply_one<Op>(semantics::prepare<L>(scale[i], zero_point[i], job.q_min, job.q_max),
                                          settings, x[part + i], dy[part + i]);
        }
      } else {
        std::int64_t index = base + run, next = left;
        KVANT_UNROLL
        for (int i = 0; i < N; ++i) {
          if (i < count) {
            if (i == next) {
              ++index;
              next += runs.run;
            }
            out[i] = apply_one<Op>(parameters(index), settings, x[i], dy[i]);
          }
        }
      }
      store_chunk<Out, N>(out_line, first, count, out);
    }
  }
}

}  // namespace kvant::cuda
