// Independent parts of a job on the threads of a stream, taken one by one: whoever is quick takes more.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <utility>

#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant::base {

// Calls work(worker, i) once for each i in [first, last), on the stream's threads; `worker` is below stream.threads(),
// and no two calls with the same one run at once. Stops at a refusal and returns it (of several, that of the smallest
// i).
inline Status for_each_part(const Stream& stream, std::uint64_t first, std::uint64_t last,
                            const std::function<Status(std::size_t worker, std::uint64_t i)>& work) {
  if (first >= last) return {};
  struct Shared {
    const std::function<Status(std::size_t, std::uint64_t)>& work;
    std::uint64_t last;
    std::atomic<std::uint64_t> next;
    std::mutex mutex;
    std::uint64_t refused_at = std::numeric_limits<std::uint64_t>::max();
    Status refusal = {};
  } shared{work, last, {first}, {}};
  const Task task(
      [](const void* context, std::int64_t worker) {
        auto& all = *static_cast<Shared*>(const_cast<void*>(context));
        for (std::uint64_t i = all.next.fetch_add(1); i < all.last; i = all.next.fetch_add(1)) {
          Status status = all.work(static_cast<std::size_t>(worker), i);
          if (status.ok()) continue;
          const std::lock_guard lock(all.mutex);
          all.next.store(all.last);
          if (i >= all.refused_at) continue;
          all.refused_at = i;
          all.refusal = std::move(status);
        }
      },
      &shared);
  const auto workers = std::min(static_cast<std::uint64_t>(std::max(stream.threads(), 1)), last - first);
  if (Status s = stream.parallel_for(static_cast<std::int64_t>(workers), task); !s.ok()) return s;
  return shared.refusal;
}

}  // namespace kvant::base
