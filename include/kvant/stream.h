// Stream: where work runs. Cheap to copy; copies share their threads.
//
//   Stream::cpu()          all cores the process may use
//   Stream::cpu(4)         four threads, the calling one included
//   Stream::cpu(executor)  the host program's own thread pool, through a parallel-for callback
//   Stream::cuda(stream)   a cudaStream_t; null: the default one
//
// On a CUDA stream, run() enqueues kernels and returns. Tensors and the workspace are in device memory, at addresses
// that are multiples of their element's size; parameters given as one number stay on the host. The stream belongs to
// its device, or to the current one if it is null (CUDA's legacy default stream), and that device must be current
// whenever a plan runs. Results have the bits of the CPU, except for the payloads of NaN. Plans refuse what they refuse
// on the CPU, except what is only in device memory: a single scale that is given as a tensor is not checked. Without a
// device status() is DeviceUnavailable with CUDA's own reason; in a build without CUDA it is Unsupported.
//
// A stream made with bad arguments is not usable: status() says why, and every select() and run() with it returns that
// status. Small problems run on the calling thread, whatever the stream.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kvant/export.h"
#include "kvant/sku.h"
#include "kvant/status.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace kvant {

namespace detail {
struct DeviceStream;
}

// A piece of work in numbered parts. Parts may run at the same time and in any order.
class Task {
 public:
  using Function = void (*)(const void* context, std::int64_t part);
  Task(Function function, const void* context) : function_(function), context_(context) {}
  void operator()(std::int64_t part) const { function_(context_, part); }

 private:
  Function function_;
  const void* context_;
};

// The host's thread pool. `parallel_for(parts, task)` calls task(0) … task(parts - 1) once each, on any
// threads, and returns when all have returned. A part that was not run, or an exception that leaves
// parallel_for, makes run() return Internal.
struct Executor {
  int threads = 1;  // how many parts are worth running at once
  std::function<void(std::int64_t parts, const Task& task)> parallel_for;
};

class KVANT_API Stream {
 public:
  static Stream cpu();
  static Stream cpu(int threads);
  static Stream cpu(Executor executor);
  static Stream cuda(CUstream_st* stream);

  BackendKind backend() const;
  int threads() const;  // 1 for a CUDA stream
  const Status& status() const;

  // Runs the parts of `task` on this stream's threads and waits for them. Operators use it; so may callers. An
  // exception that leaves the task becomes Internal. CPU streams only.
  Status parallel_for(std::int64_t parts, const Task& task) const;

  const detail::DeviceStream& device() const;  // for CUDA plans

 private:
  class Impl;
  explicit Stream(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace kvant
