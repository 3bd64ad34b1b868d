// Stream: where work runs. Cheap to copy; copies share the threads behind it.
//
//   Stream::cpu()          all cores the process may use
//   Stream::cpu(4)         four threads, the calling one included
//   Stream::cpu(executor)  the host program's own thread pool, through a parallel-for callback
//
// A stream made with bad arguments is not usable: status() says why, and every select() and run() that is
// given it returns that status. Small problems run on the calling thread whatever the stream.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kvant/export.h"
#include "kvant/sku.h"
#include "kvant/status.h"

namespace kvant {

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

// The host's thread pool. `parallel_for(parts, task)` calls task(0) … task(parts - 1) once each, on whatever
// threads it likes, and returns when all have returned. A part that was not run, or an exception that leaves
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

  BackendKind backend() const;
  int threads() const;
  const Status& status() const;

  // Runs the parts of `task` on this stream's threads and waits for them. Operators use it; so may callers. An
  // exception that leaves the task becomes Internal.
  Status parallel_for(std::int64_t parts, const Task& task) const;

 private:
  class Impl;
  explicit Stream(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace kvant
