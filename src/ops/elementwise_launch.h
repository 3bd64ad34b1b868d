// Running an element-wise job on a stream's threads.
#pragma once

#include <cstdint>

#include "core/elementwise_kernel.h"
#include "cpu/float_environment.h"
#include "kvant/stream.h"
#include "ops/partition.h"

namespace kvant::ops {

inline Status launch(const Stream& stream, const detail::ElementwiseKernel& kernel, const detail::ElementwiseJob& job,
                     std::int64_t elements) {
  struct Launch {
    const detail::ElementwiseKernel* kernel;
    const detail::ElementwiseJob* job;
    Partition partition;

    static void run_part(const void* context, std::int64_t index) {
      const Launch& l = *static_cast<const Launch*>(context);
      const cpu::DefaultFloatEnvironment environment;
      l.kernel->run(*l.job, l.partition.part(*l.job->runs, index));
      if (l.job->stream) l.kernel->finish_streaming();
    }
  };
  const Launch l{&kernel, &job, partition(*job.runs, elements, stream.threads())};
  return stream.parallel_for(l.partition.parts, Task(&Launch::run_part, &l));
}

}  // namespace kvant::ops
