// Buffers that threads take for a part of their work and give back: as many as there are threads at once, never more.
#pragma once

#include <deque>
#include <mutex>
#include <utility>
#include <vector>

namespace kvant::recipes {

template <class Worker>
class WorkerPool {
 public:
  // A worker, for as long as this object lives.
  class Lease {
   public:
    Lease(WorkerPool& pool, Worker& worker) : pool_(pool), worker_(worker) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() {
      const std::lock_guard lock(pool_.mutex_);
      pool_.free_.push_back(&worker_);
    }
    Worker& operator*() const { return worker_; }
    Worker* operator->() const { return &worker_; }

   private:
    WorkerPool& pool_;
    Worker& worker_;
  };

  Lease take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      free_.reserve(workers_.size() + 1);  // giving back must not throw
      free_.push_back(&workers_.emplace_back());
    }
    Worker& worker = *free_.back();
    free_.pop_back();
    return {*this, worker};
  }

  // While none is taken.
  std::deque<Worker>& all() { return workers_; }

 private:
  std::mutex mutex_;
  std::deque<Worker> workers_;
  std::vector<Worker*> free_;
};

}  // namespace kvant::recipes
