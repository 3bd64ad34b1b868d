// What an element-wise kernel of the CPU is given: a job, how the CPU has decided to run it, and a part of it.
#pragma once

#include <cstdint>

#include "core/elementwise_kernel.h"

namespace kvant::cpu {

// `scale.data` is never null here.
struct ElementwiseWork : detail::ElementwiseJob {
  bool bounded = false;          // quantize: x is finite, and no code leaves the range by more than saturation mends
  bool stream = false;           // the output is too large for the caches: write around them
  std::int64_t fetch_ahead = 0;  // bytes after x and dy to fetch, 0 for none
};

// Elements [offset, offset + count) of lines [first_line, end_line).
struct ElementwisePart {
  std::int64_t first_line;
  std::int64_t end_line;
  std::int64_t offset;
  std::int64_t count;
};

struct ElementwiseKernel : detail::ElementwiseKernel {
  void (*run)(const ElementwiseWork& work, const ElementwisePart& part);
  // Makes streamed output visible to other threads; called once after some parts of work with `stream`. (A fence after
  // every row would keep the core waiting for its stores.)
  void (*finish_streaming)();
};

inline const ElementwiseKernel& of_cpu(const detail::ElementwiseKernel& kernel) {
  return static_cast<const ElementwiseKernel&>(kernel);
}

// detail::ElementwiseKernel::launch of all kernels of the CPU.
Status launch_elementwise(const detail::ElementwiseKernel& kernel, const Stream& stream,
                          const detail::ElementwiseJob& job, const base::Who& who);

// The same for work whose settings are decided.
Status launch_work(const ElementwiseKernel& kernel, const Stream& stream, const ElementwiseWork& work);

}  // namespace kvant::cpu
