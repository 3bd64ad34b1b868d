// Which of many parallel parts failed first, in the order of parts and not of time.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>
#include <utility>

#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant::recipes {

class FirstFailure {
 public:
  // Others need not begin any more.
  bool happened() const { return happened_.load(std::memory_order_relaxed); }

  void report(Status status, std::int64_t part) {
    if (status.ok()) return;
    const std::lock_guard lock(mutex_);
    happened_.store(true, std::memory_order_relaxed);
    if (part >= part_) return;
    part_ = part;
    status_ = std::move(status);
  }

  // When all parts have returned.
  const Status& status() const { return status_; }

 private:
  std::atomic<bool> happened_ = false;
  std::mutex mutex_;
  std::int64_t part_ = std::numeric_limits<std::int64_t>::max();
  Status status_;
};

// Calls body(0) … body(parts - 1) on the stream's threads.
template <class Body>
Status run_parts(const Stream& stream, std::int64_t parts, const Body& body) {
  const auto call = [](const void* context, std::int64_t part) { (*static_cast<const Body*>(context))(part); };
  return stream.parallel_for(parts, Task(call, &body));
}

}  // namespace kvant::recipes
