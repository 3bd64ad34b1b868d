// Inside the executor: what the functions of device_host.h work on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvant::device {

// 16 bytes that move as one.
struct alignas(16) Words4 {
  std::uint32_t w[4];
};

struct Index2 {
  unsigned x;
  unsigned y;
};

struct LaunchShape {
  Index2 grid;
  Index2 block;
  unsigned shared_bytes = 0;
};

}  // namespace kvant::device

namespace kvant::simt {

inline constexpr unsigned kLanes = 32;
inline constexpr unsigned kMaxThreads = 1024;
inline constexpr unsigned kMaxShared = 48 * 1024;
inline constexpr std::uint32_t kAllLanes = 0xFFFFFFFFu;

enum class Operation : std::uint8_t { sync_block, sync_warp, shuffle, shuffle_xor, ballot, load_matrices, mma_s8 };
enum class Access : std::uint8_t { load, store, shared_load, shared_store, copy_async16, load_matrices };

// What a lane brings to a warp operation and takes from it.
struct Lane {
  std::uint64_t value;
  unsigned source;  // a lane, or a shared offset
  std::array<std::uint32_t, 4> a;
  std::array<std::uint32_t, 2> b;
  std::array<std::uint32_t, 4> c;
};

struct Warp {
  std::uint32_t runnable;
  std::uint32_t waiting;  // in a warp operation,
  Operation operation;    // which is this one
  unsigned bytes;         // of its values
  // Counts what orders the accesses of the lanes: two in different intervals of their warp are no race.
  std::uint32_t interval;
  std::array<Lane, kLanes> lanes;
};

// A copy_async16 that no copy_async_wait has covered.
struct Copy {
  const std::byte* from;
  unsigned to;
  unsigned bytes;
  unsigned group;
};

struct Worker;

struct Thread {
  device::Index2 index;
  unsigned linear;
  unsigned lane;
  Warp* warp;
  Worker* worker;  // the fiber it waits in; null before its start and after its end
  bool has_returned;
  bool is_in_sync_block;
  unsigned groups;  // of copies, committed
  std::size_t first_copy;
  std::vector<Copy> copies;
};

struct Span {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

// Of the launch that is running. Plain data, for the inlined functions.
struct Running {
  Thread* thread = nullptr;
  device::Index2 block_index = {};
  device::LaunchShape shape = {};
  bool check = false;
  std::byte* shared = nullptr;
  // Regions that were used, by the address's 4 KiB.
  std::array<Span, 64> recent = {};
};
inline constinit Running running;

// Thrown through a kernel's frames when its launch has failed.
struct Stop {};

[[noreturn]] void fail(std::string sentence);

// "thread (1, 0) of block (2, 0)"
std::string name(const Thread& thread);

// ---- Memory (memory.cc) ----

// These check an access of `bytes` in full, and return where it goes.
std::byte* checked_global(const void* p, unsigned bytes, Access access);
std::byte* checked_shared(const Thread& thread, unsigned offset, unsigned bytes, Access access);

template <unsigned kBytes>
std::byte* global(const void* p, Access access) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  const Span& region = running.recent[address / 4096 % 64];
  const bool is_fine =
      address >= region.begin && address < region.end && region.end - address >= kBytes && address % kBytes == 0;
  if (!is_fine || running.check) [[unlikely]]
    return checked_global(p, kBytes, access);
  return static_cast<std::byte*>(const_cast<void*>(p));
}

template <unsigned kBytes>
std::byte* shared(unsigned offset, Access access) {
  const bool is_fine = std::uint64_t{offset} + kBytes <= running.shape.shared_bytes && offset % kBytes == 0;
  if (!is_fine || running.check) [[unlikely]]
    return checked_shared(*running.thread, offset, kBytes, access);
  return running.shared + offset;
}

void copy_async16(unsigned to, const void* from, int bytes);
void copy_async_commit();
void copy_async_wait(unsigned pending);

void begin_memory_of_launch();
void begin_memory_of_block();
void order_block_accesses();
void forget_accesses_to_shared();

// ---- Threads (executor.cc) ----

void sync_block();
void sync_warp();
std::uint64_t exchange(Operation operation, std::uint64_t value, unsigned source, unsigned bytes);
std::uint32_t ballot(bool b);
device::Words4 load_matrices(unsigned offset);
void mma_s8(int (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);

// Calls `kernel(call)` for every thread of the launch.
int run(const device::LaunchShape& shape, void (*kernel)(const void* call), const void* call);
const char* error_text(int error);

// Regions, settings and the machine are changed under this.
class Lock {
 public:
  Lock();
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

}  // namespace kvant::simt
