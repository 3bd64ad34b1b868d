// Streams: a oneTBB arena, the host program's own thread pool, or a GPU's.
#include "kvant/stream.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <atomic>
#include <exception>
#include <optional>
#include <utility>

#include "base/refuse.h"
#include "core/cuda_backend.h"

namespace kvant {

class Stream::Impl {
 public:
  Status status;
  BackendKind backend = BackendKind::cpu;
  detail::DeviceStream device;
  int threads = 1;
  // TBB makes only as many workers as there are cores unless told otherwise. Raised, never lowered: lowering would
  // bind the host program's own use of TBB too.
  std::optional<tbb::global_control> more_workers;
  mutable std::optional<tbb::task_arena> arena;
  std::function<void(std::int64_t, const Task&)> parallel_for;
};

namespace {

constexpr int kMaxThreads = 1024;

// Sees to it that a host's thread pool ran every part once. Part numbers are scrambled before they are added up, so
// that one part run twice does not make up for another.
class Witness {
 public:
  explicit Witness(const Task& task) : task_(&task) {}

  static void run(const void* context, std::int64_t part) {
    auto& witness = *static_cast<Witness*>(const_cast<void*>(context));
    (*witness.task_)(part);
    witness.sum_.fetch_add(scramble(part), std::memory_order_relaxed);
    witness.count_.fetch_add(1, std::memory_order_release);
  }

  Status verdict(std::int64_t parts) const {
    const std::int64_t count = count_.load(std::memory_order_acquire);
    if (count != parts)
      return base::refuse(StatusCode::Internal, "stream: the executor ran {} of {} parts", count, parts);
    std::uint64_t wanted = 0;
    for (std::int64_t part = 0; part < parts; ++part) wanted += scramble(part);
    if (sum_.load(std::memory_order_relaxed) != wanted)
      return base::refuse(StatusCode::Internal, "stream: the executor ran some of {} parts twice and left others out",
                          parts);
    return {};
  }

 private:
  static std::uint64_t scramble(std::int64_t part) {
    auto x = static_cast<std::uint64_t>(part) + 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    return x ^ (x >> 27);
  }

  const Task* task_;
  std::atomic<std::int64_t> count_{0};
  std::atomic<std::uint64_t> sum_{0};
};

#if defined(__SANITIZE_THREAD__)
// Debian's libtbb is not built with ThreadSanitizer, which therefore cannot see that parts begin after parallel_for was
// called and end before it returns, and takes memory that is used again for a race.
class VisibleOrder {
 public:
  VisibleOrder() { edge_.store(0, std::memory_order_release); }  // which a constructor does not do
  void begin_part() { (void)edge_.load(std::memory_order_acquire); }
  void end_part() { edge_.fetch_add(1, std::memory_order_acq_rel); }
  void all_ended() { (void)edge_.load(std::memory_order_acquire); }

 private:
  std::atomic<std::int64_t> edge_{0};
};
#else
struct VisibleOrder {
  void begin_part() {}
  void end_part() {}
  void all_ended() {}
};
#endif

}  // namespace

Stream::Stream(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Stream Stream::cpu() {
  // One arena for all default streams, and they are made often.
  static const Stream all_cores = cpu(tbb::info::default_concurrency());
  return all_cores;
}

Stream Stream::cpu(int threads) {
  auto impl = std::make_shared<Impl>();
  if (threads < 1 || threads > kMaxThreads) {
    impl->status = base::invalid_problem("stream: {} threads; give 1 to {}", threads, kMaxThreads);
    return Stream(impl);
  }
  impl->threads = threads;
  try {
    if (threads > tbb::info::default_concurrency())
      impl->more_workers.emplace(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(threads));
    if (threads > 1) {
      impl->arena.emplace(threads);
      impl->arena->initialize();
    }
  } catch (const std::exception& e) {
    impl->status = base::refuse(StatusCode::Internal, "stream: cannot start {} threads: {}", threads, e.what());
  }
  return Stream(impl);
}

Stream Stream::cpu(Executor executor) {
  auto impl = std::make_shared<Impl>();
  if (executor.threads < 1 || executor.threads > kMaxThreads)
    impl->status =
        base::invalid_problem("stream: executor with {} threads; give 1 to {}", executor.threads, kMaxThreads);
  else if (!executor.parallel_for)
    impl->status = base::invalid_problem("stream: executor without parallel_for");
  impl->threads = executor.threads;
  impl->parallel_for = std::move(executor.parallel_for);
  return Stream(impl);
}

Stream Stream::cuda(CUstream_st* stream) {
  auto impl = std::make_shared<Impl>();
  impl->backend = BackendKind::cuda;
  const auto device = cuda::open_stream(stream);
  if (device.ok())
    impl->device = *device;
  else
    impl->status = device.status();
  return Stream(impl);
}

BackendKind Stream::backend() const { return impl_->backend; }
const detail::DeviceStream& Stream::device() const { return impl_->device; }
int Stream::threads() const { return impl_->threads; }
const Status& Stream::status() const { return impl_->status; }

Status Stream::parallel_for(std::int64_t parts, const Task& task) const {
  if (!impl_->status.ok()) return impl_->status;
  if (impl_->backend != BackendKind::cpu)
    return base::unsupported("stream: parallel_for runs on cpu streams only, this stream is on {}",
                             name(impl_->backend));
  try {
    if (parts <= 1 || impl_->threads == 1) {
      for (std::int64_t part = 0; part < parts; ++part) task(part);
      return {};
    }
    if (impl_->arena) {
      VisibleOrder order;
      impl_->arena->execute([&] {
        // Parts are already the size that is worth a steal, so they are neither merged nor split.
        tbb::parallel_for(
            std::int64_t{0}, parts,
            [&](std::int64_t part) {
              order.begin_part();
              task(part);
              order.end_part();
            },
            tbb::simple_partitioner());
      });
      order.all_ended();
      return {};
    }
    Witness witness(task);
    impl_->parallel_for(parts, Task(&Witness::run, &witness));
    return witness.verdict(parts);
  } catch (const std::exception& e) {
    return base::refuse(StatusCode::Internal, "stream: parallel_for threw: {}", e.what());
  } catch (...) {
    return base::refuse(StatusCode::Internal, "stream: parallel_for threw something that is not a std::exception");
  }
}

}  // namespace kvant
