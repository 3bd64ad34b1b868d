// Threads of the executor. Each GPU thread is a fiber, but a fiber serves many: when a thread returns, its fiber goes
// on with the next one that has not started, so that kernels without barriers switch once for each block.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>

#include "tests/simt/machine.h"
#include "tests/simt/simt.h"

#if defined(__SANITIZE_ADDRESS__)
#define KVANT_SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVANT_SIMT_ASAN 1
#endif
#endif
#ifdef KVANT_SIMT_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace kvant::simt {
namespace {

namespace context = boost::context;

#ifdef KVANT_SIMT_ASAN
constexpr std::size_t kStackBytes = 256 * 1024;
void leave_stack(void** own, const void* bottom, std::size_t bytes) {
  __sanitizer_start_switch_fiber(own, bottom, bytes);
}
void enter_stack(void* own, const void** left, std::size_t* bytes) {
  __sanitizer_finish_switch_fiber(own, left, bytes);
}
#else
constexpr std::size_t kStackBytes = 64 * 1024;
void leave_stack(void**, const void*, std::size_t) {}
void enter_stack(void*, const void**, std::size_t*) {}
#endif

// Stacks begin at different places of their pages, lest all threads' frames fall into the same lines of the cache.
constexpr std::size_t kColours = 64;
constexpr std::size_t kColourBytes = 256;

// What AddressSanitizer wants to know of the stack that is left.
struct Stack {
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  void* fake = nullptr;
};

const char* name(Operation operation) {
  switch (operation) {
    case Operation::sync_block: return "sync_block";
    case Operation::sync_warp: return "sync_warp";
    case Operation::shuffle: return "shuffle";
    case Operation::shuffle_xor: return "shuffle_xor";
    case Operation::ballot: return "ballot";
    case Operation::load_matrices: return "load_matrices";
    case Operation::mma_s8: return "mma_s8";
  }
  return "";
}

void exchange_values(Warp& warp) {
  std::array<std::uint64_t, kLanes> values;
  for (unsigned l = 0; l < kLanes; ++l) values[l] = warp.lanes[l].value;
  for (Lane& lane : warp.lanes) lane.value = values[lane.source];
}

void vote(Warp& warp) {
  std::uint64_t votes = 0;
  for (unsigned l = 0; l < kLanes; ++l) votes |= warp.lanes[l].value << l;
  for (Lane& lane : warp.lanes) lane.value = votes;
}

void load_rows(const Thread* lanes, Warp& warp) {
  std::array<const std::byte*, kLanes> rows;
  for (unsigned l = 0; l < kLanes; ++l)
    rows[l] = checked_shared(lanes[l], warp.lanes[l].source, 16, Access::load_matrices);
  for (unsigned l = 0; l < kLanes; ++l)
    for (unsigned matrix = 0; matrix < 4; ++matrix)
      std::memcpy(&warp.lanes[l].a[matrix], rows[8 * matrix + l / 4] + 4 * (l % 4), 4);
}

// Gathers A [16, 32], B [32, 8] by its columns and C [16, 8], and scatters C + A × B.
void multiply(Warp& warp) {
  std::int8_t a[16][32];
  std::int8_t b[8][32];
  for (unsigned l = 0; l < kLanes; ++l) {
    const Lane& lane = warp.lanes[l];
    const unsigned g = l / 4;
    const unsigned t = l % 4;
    for (unsigned i = 0; i < 4; ++i) {
      a[g][4 * t + i] = static_cast<std::int8_t>(lane.a[0] >> (8 * i));
      a[g + 8][4 * t + i] = static_cast<std::int8_t>(lane.a[1] >> (8 * i));
      a[g][4 * t + 16 + i] = static_cast<std::int8_t>(lane.a[2] >> (8 * i));
      a[g + 8][4 * t + 16 + i] = static_cast<std::int8_t>(lane.a[3] >> (8 * i));
      b[g][4 * t + i] = static_cast<std::int8_t>(lane.b[0] >> (8 * i));
      b[g][4 * t + 16 + i] = static_cast<std::int8_t>(lane.b[1] >> (8 * i));
    }
  }
  const auto product = [&](unsigned row, unsigned column) {
    int sum = 0;
    for (unsigned k = 0; k < 32; ++k) sum += a[row][k] * b[column][k];
    return static_cast<std::uint32_t>(sum);
  };
  for (unsigned l = 0; l < kLanes; ++l) {
    const unsigned g = l / 4;
    const unsigned t = l % 4;
    warp.lanes[l].c[0] += product(g, 2 * t);
    warp.lanes[l].c[1] += product(g, 2 * t + 1);
    warp.lanes[l].c[2] += product(g + 8, 2 * t);
    warp.lanes[l].c[3] += product(g + 8, 2 * t + 1);
  }
}

}  // namespace

struct Worker {
  context::fiber fiber;      // while it is suspended
  context::fiber scheduler;  // while it runs
  Thread* thread = nullptr;  // to start
  Stack stack;
};

namespace {

class Executor {
 public:
  Executor() : threads_(kMaxThreads), warps_(kMaxThreads / kLanes) {}
  ~Executor() {
    is_ending_ = true;
    for (const auto& worker : workers_) resume(*worker);
  }
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  Settings settings;
  Statistics statistics;
  std::recursive_mutex mutex;

  int run(const device::LaunchShape& shape, void (*kernel)(const void*), const void* call);
  const char* error_text(int error);
  [[noreturn]] void fail(std::string sentence);
  void sync_block();
  void meet(Operation operation, unsigned bytes);

 private:
  std::string refusal(const device::LaunchShape& shape) const;
  void shape_threads();
  void order_blocks();
  void run_block();
  void stop();
  std::string deadlock() const;

  Thread* next();
  std::uint32_t random(std::uint32_t bound);
  void resume(Worker& worker);
  Worker& idle_worker();
  void work(Worker& worker);
  void start(Worker& worker);
  void wait();
  void perform(Warp& warp);

  void (*kernel_)(const void*) = nullptr;
  const void* call_ = nullptr;
  std::uint64_t random_ = 1;
  std::string failure_;
  std::deque<std::string> errors_;
  bool is_stopping_ = false;
  bool is_ending_ = false;

  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  unsigned thread_count_ = 0;
  unsigned width_ = 0;  // of the block that `threads_` are numbered for
  unsigned returned_ = 0;
  unsigned in_sync_block_ = 0;
  std::uint32_t runnable_warps_ = 0;
  std::vector<std::uint32_t> block_order_;

  // Lanes of one warp that go on, in this order.
  std::array<Thread*, kLanes> round_ = {};
  unsigned round_size_ = 0;
  unsigned round_at_ = 0;
  Thread* handed_ = nullptr;  // by a worker that was done, to the scheduler

  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> idle_;
  Stack scheduler_stack_;
};

Executor& executor() {
  static Executor instance;
  return instance;
}

void Executor::fail(std::string sentence) {
  if (failure_.empty()) failure_ = std::move(sentence);
  throw Stop();
}

// ---- Fibers ----

void Executor::resume(Worker& worker) {
  leave_stack(&scheduler_stack_.fake, worker.stack.bottom, worker.stack.bytes);
  worker.fiber = std::move(worker.fiber).resume();
  enter_stack(scheduler_stack_.fake, nullptr, nullptr);
}

Worker& Executor::idle_worker() {
  if (idle_.empty()) {
    workers_.push_back(std::make_unique<Worker>());
    Worker& worker = *workers_.back();
    context::protected_fixedsize_stack allocator(kStackBytes + kColours * kColourBytes);
    const context::stack_context stack = allocator.allocate();
    auto* const top = static_cast<std::byte*>(stack.sp);
    worker.stack.bottom = top - stack.size;
    worker.stack.bytes = stack.size;
    const std::size_t skipped = workers_.size() % kColours * kColourBytes;
    worker.fiber = context::fiber(std::allocator_arg, context::preallocated(top - skipped, stack.size - skipped, stack),
                                  allocator, [this, &worker](context::fiber&& scheduler) {
                                    worker.scheduler = std::move(scheduler);
                                    work(worker);
                                    return std::move(worker.scheduler);
                                  });
    return worker;
  }
  Worker& worker = *idle_.back();
  idle_.pop_back();
  return worker;
}

void Executor::work(Worker& worker) {
  const auto to_scheduler = [&] {
    leave_stack(&worker.stack.fake, scheduler_stack_.bottom, scheduler_stack_.bytes);
    worker.scheduler = std::move(worker.scheduler).resume();
    enter_stack(worker.stack.fake, &scheduler_stack_.bottom, &scheduler_stack_.bytes);
  };
  enter_stack(nullptr, &scheduler_stack_.bottom, &scheduler_stack_.bytes);
  while (!is_ending_) {
    start(worker);
    Thread* const thread = failure_.empty() ? next() : nullptr;
    if (thread != nullptr && thread->worker == nullptr) {
      worker.thread = thread;
      continue;
    }
    handed_ = thread;
    idle_.push_back(&worker);
    to_scheduler();
  }
  leave_stack(nullptr, scheduler_stack_.bottom, scheduler_stack_.bytes);
}

// Runs a thread from its first instruction to its last.
void Executor::start(Worker& worker) {
  Thread& thread = *worker.thread;
  thread.worker = &worker;
  running.thread = &thread;
  ++statistics.threads;
  try {
    kernel_(call_);
    if (!thread.copies.empty())
      fail(fmt::format("{} returns with {} copy_async16 that it has not waited for", name(thread),
                       thread.copies.size() - thread.first_copy));
  } catch (const Stop&) {
  } catch (const std::exception& e) {
    if (failure_.empty()) failure_ = fmt::format("{} threw: {}", name(thread), e.what());
  }
  thread.worker = nullptr;
  thread.has_returned = true;
  ++returned_;
}

// Suspends the running thread until it is resumed.
void Executor::wait() {
  Thread& thread = *running.thread;
  Worker& worker = *thread.worker;
  leave_stack(&worker.stack.fake, scheduler_stack_.bottom, scheduler_stack_.bytes);
  worker.scheduler = std::move(worker.scheduler).resume();
  enter_stack(worker.stack.fake, &scheduler_stack_.bottom, &scheduler_stack_.bytes);
  if (is_stopping_) throw Stop();
  running.thread = &thread;
}

// ---- Who runs ----

std::uint32_t Executor::random(std::uint32_t bound) {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return static_cast<std::uint32_t>(((random_ >> 32) * bound) >> 32);
}

// The thread to run, or null where none can.
Thread* Executor::next() {
  if (round_at_ == round_size_) {
    if (runnable_warps_ == 0) return nullptr;
    unsigned w = static_cast<unsigned>(std::countr_zero(runnable_warps_));
    if (settings.order == Order::reverse) w = 31 - static_cast<unsigned>(std::countl_zero(runnable_warps_));
    if (settings.order == Order::random) {
      std::uint32_t rest = runnable_warps_;
      for (std::uint32_t skip = random(static_cast<std::uint32_t>(std::popcount(rest))); skip > 0; --skip)
        rest &= rest - 1;
      w = static_cast<unsigned>(std::countr_zero(rest));
    }
    round_at_ = 0;
    round_size_ = 0;
    for (std::uint32_t lanes = warps_[w].runnable; lanes != 0; lanes &= lanes - 1)
      round_[round_size_++] = &threads_[w * kLanes + static_cast<unsigned>(std::countr_zero(lanes))];
    if (settings.order == Order::reverse) std::reverse(round_.begin(), round_.begin() + round_size_);
    if (settings.order == Order::random)
      for (unsigned i = round_size_; i > 1; --i) std::swap(round_[i - 1], round_[random(i)]);
    warps_[w].runnable = 0;
    runnable_warps_ &= ~(1u << w);
  }
  return round_[round_at_++];
}

void Executor::order_blocks() {
  block_order_.resize(std::size_t{running.shape.grid.x} * running.shape.grid.y);
  std::iota(block_order_.begin(), block_order_.end(), 0u);
  if (settings.order == Order::reverse) std::reverse(block_order_.begin(), block_order_.end());
  if (settings.order == Order::random)
    for (std::size_t i = block_order_.size(); i > 1; --i)
      std::swap(block_order_[i - 1], block_order_[random(static_cast<std::uint32_t>(i))]);
}

// ---- Barriers ----

void Executor::sync_block() {
  running.thread->is_in_sync_block = true;
  if (++in_sync_block_ == thread_count_) {
    ++statistics.block_barriers;
    in_sync_block_ = 0;
    for (unsigned i = 0; i < thread_count_; ++i) threads_[i].is_in_sync_block = false;
    for (unsigned w = 0; w < thread_count_ / kLanes; ++w) warps_[w].runnable = kAllLanes;
    runnable_warps_ = kAllLanes >> (32 - thread_count_ / kLanes);
    order_block_accesses();
  }
  wait();
}

void Executor::meet(Operation operation, unsigned bytes) {
  const Thread& thread = *running.thread;
  Warp& warp = *thread.warp;
  if (warp.waiting == 0) {
    warp.operation = operation;
    warp.bytes = bytes;
  } else if (warp.operation != operation || warp.bytes != bytes) {
    const auto first = static_cast<unsigned>(std::countr_zero(warp.waiting));
    const auto described = [](Operation o, unsigned b) {
      return b == 0 ? std::string(name(o)) : fmt::format("{} of {} bytes", name(o), b);
    };
    fail(fmt::format("lanes of a warp meet in different operations: {} in {}, {} in {}",
                     name(threads_[thread.linear - thread.lane + first]), described(warp.operation, warp.bytes),
                     name(thread), described(operation, bytes)));
  }
  warp.waiting |= 1u << thread.lane;
  if (warp.waiting == kAllLanes) {
    perform(warp);
    warp.waiting = 0;
    warp.runnable = kAllLanes;
    runnable_warps_ |= 1u << (thread.linear / kLanes);
  }
  wait();
}

void Executor::perform(Warp& warp) {
  ++statistics.warp_operations;
  const bool orders = warp.operation == Operation::sync_warp || settings.warp_operations_order;
  if (orders) ++warp.interval;
  switch (warp.operation) {
    case Operation::sync_block:
    case Operation::sync_warp: break;
    case Operation::shuffle:
    case Operation::shuffle_xor: exchange_values(warp); break;
    case Operation::ballot: vote(warp); break;
    case Operation::load_matrices:
      load_rows(&threads_[running.thread->linear - running.thread->lane], warp);
      if (orders) ++warp.interval;  // what the lanes do next is behind these loads
      break;
    case Operation::mma_s8: multiply(warp); break;
  }
}

// Why nobody can go on.
std::string Executor::deadlock() const {
  const auto state = [](const Thread& thread) {
    return name(thread) + (thread.has_returned ? " has returned" : " waits in sync_block");
  };
  for (unsigned w = 0; w < thread_count_ / kLanes; ++w) {
    const Warp& warp = warps_[w];
    if (warp.waiting == 0) continue;
    const auto absent = static_cast<unsigned>(std::countr_zero(~warp.waiting));
    return fmt::format("warp operation that not all lanes reach: {} of 32 lanes wait in {}, {}",
                       std::popcount(warp.waiting), name(warp.operation), state(threads_[w * kLanes + absent]));
  }
  unsigned absent = 0;
  while (threads_[absent].is_in_sync_block) ++absent;
  return fmt::format("barrier that not all threads reach: {} of {} threads of block ({}, {}) wait in sync_block, {}",
                     in_sync_block_, thread_count_, running.block_index.x, running.block_index.y,
                     state(threads_[absent]));
}

// ---- Launches ----

std::string Executor::refusal(const device::LaunchShape& shape) const {
  const std::uint64_t threads = std::uint64_t{shape.block.x} * shape.block.y;
  const std::uint64_t blocks = std::uint64_t{shape.grid.x} * shape.grid.y;
  if (threads == 0 || threads % kLanes != 0 || threads > kMaxThreads)
    return fmt::format("invalid launch: a block of ({}, {}) threads, not a multiple of {} up to {}", shape.block.x,
                       shape.block.y, kLanes, kMaxThreads);
  if (blocks == 0 || shape.grid.x > 0x7FFFFFFFu || shape.grid.y > 0xFFFFu)
    return fmt::format("invalid launch: a grid of ({}, {}) blocks, not 1 to 2147483647 by 1 to 65535", shape.grid.x,
                       shape.grid.y);
  if (shape.shared_bytes > kMaxShared)
    return fmt::format("invalid launch: {} bytes of shared memory, more than {}", shape.shared_bytes, kMaxShared);
  if (running.thread != nullptr) return "invalid launch: by a kernel";
  return {};
}

void Executor::shape_threads() {
  const device::Index2 block = running.shape.block;
  thread_count_ = block.x * block.y;
  if (block.x == width_) return;
  width_ = block.x;
  for (unsigned i = 0; i < kMaxThreads; ++i) {
    threads_[i].index = {i % width_, i / width_};
    threads_[i].linear = i;
    threads_[i].lane = i % kLanes;
    threads_[i].warp = &warps_[i / kLanes];
  }
}

int Executor::run(const device::LaunchShape& shape, void (*kernel)(const void*), const void* call) {
  const std::scoped_lock lock(mutex);
  failure_ = refusal(shape);
  if (failure_.empty()) {
    ++statistics.launches;
    kernel_ = kernel;
    call_ = call;
    random_ = (settings.seed + 1) * 0x9E3779B97F4A7C15u | 1u;
    running.shape = shape;
    running.check = settings.check;
    shape_threads();
    order_blocks();
    begin_memory_of_launch();
    for (const std::uint32_t block : block_order_) {
      running.block_index = {block % shape.grid.x, block / shape.grid.x};
      run_block();
      if (!failure_.empty()) break;
    }
    running.thread = nullptr;
  }
  if (failure_.empty()) return 0;
  errors_.push_back(std::move(failure_));
  failure_.clear();
  return static_cast<int>(errors_.size());
}

void Executor::run_block() {
  ++statistics.blocks;
  begin_memory_of_block();
  for (unsigned i = 0; i < thread_count_; ++i) {
    threads_[i].has_returned = false;
    threads_[i].is_in_sync_block = false;
    threads_[i].groups = 0;
  }
  const unsigned warps = thread_count_ / kLanes;
  for (unsigned w = 0; w < warps; ++w) {
    warps_[w].runnable = kAllLanes;
    warps_[w].waiting = 0;
    warps_[w].interval = 0;
  }
  runnable_warps_ = kAllLanes >> (32 - warps);
  returned_ = 0;
  in_sync_block_ = 0;
  round_at_ = round_size_ = 0;

  while (failure_.empty()) {
    Thread* const thread = handed_ != nullptr ? std::exchange(handed_, nullptr) : next();
    if (thread == nullptr) break;
    if (thread->worker == nullptr) {
      Worker& worker = idle_worker();
      worker.thread = thread;
      resume(worker);
    } else {
      resume(*thread->worker);
    }
  }
  if (failure_.empty() && returned_ != thread_count_) failure_ = deadlock();
  if (!failure_.empty()) stop();
}

// Unwinds the threads that wait.
void Executor::stop() {
  is_stopping_ = true;
  for (unsigned i = 0; i < thread_count_; ++i)
    if (threads_[i].worker != nullptr) resume(*threads_[i].worker);
  is_stopping_ = false;
  handed_ = nullptr;
  for (Thread& thread : threads_) {
    thread.copies.clear();
    thread.first_copy = 0;
  }
  if (running.check) forget_accesses_to_shared();  // of copies that never ended
}

const char* Executor::error_text(int error) {
  const std::scoped_lock lock(mutex);
  if (error == 0) return "no error";
  if (error < 0 || static_cast<std::size_t>(error) > errors_.size()) return "no error of the executor";
  return errors_[static_cast<std::size_t>(error) - 1].c_str();
}

}  // namespace

void fail(std::string sentence) { executor().fail(std::move(sentence)); }

std::string name(const Thread& thread) {
  return fmt::format("thread ({}, {}) of block ({}, {})", thread.index.x, thread.index.y, running.block_index.x,
                     running.block_index.y);
}

Settings& settings() { return executor().settings; }
Statistics& statistics() { return executor().statistics; }
int run(const device::LaunchShape& shape, void (*kernel)(const void*), const void* call) {
  return executor().run(shape, kernel, call);
}
const char* error_text(int error) { return executor().error_text(error); }

Lock::Lock() { executor().mutex.lock(); }
Lock::~Lock() { executor().mutex.unlock(); }

void sync_block() { executor().sync_block(); }
void sync_warp() { executor().meet(Operation::sync_warp, 0); }

std::uint64_t exchange(Operation operation, std::uint64_t value, unsigned source, unsigned bytes) {
  Lane& lane = running.thread->warp->lanes[running.thread->lane];
  lane.value = value;
  lane.source = source;
  executor().meet(operation, bytes);
  return lane.value;
}

std::uint32_t ballot(bool b) {
  Lane& lane = running.thread->warp->lanes[running.thread->lane];
  lane.value = b ? 1 : 0;
  executor().meet(Operation::ballot, 0);
  return static_cast<std::uint32_t>(lane.value);
}

device::Words4 load_matrices(unsigned offset) {
  Lane& lane = running.thread->warp->lanes[running.thread->lane];
  lane.source = offset;
  executor().meet(Operation::load_matrices, 0);
  return {{lane.a[0], lane.a[1], lane.a[2], lane.a[3]}};
}

void mma_s8(int (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  Lane& lane = running.thread->warp->lanes[running.thread->lane];
  std::memcpy(lane.a.data(), a, sizeof a);
  std::memcpy(lane.b.data(), b, sizeof b);
  std::memcpy(lane.c.data(), c, sizeof c);
  executor().meet(Operation::mma_s8, 0);
  std::memcpy(c, lane.c.data(), sizeof c);
}

}  // namespace kvant::simt
