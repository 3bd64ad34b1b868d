// Memory of the executor: what lies where, who touched it, and copies that are under way.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "tests/simt/machine.h"
#include "tests/simt/simt.h"

namespace kvant::simt {
namespace {

// Of one byte. Intervals are numbered through the life of the executor: a new one begins with each block and each
// sync_block(), so that what an earlier launch left here is never taken for something of this one. Who: 0 for nobody,
// otherwise a thread's number and its kind of access.
//
// One reader, one that differs from it in the lane and one in the warp are enough: a write that is in order with these
// is in order with all readers of the interval.
struct History {
  std::uint32_t write_interval;
  std::uint32_t write_warp_interval;
  std::uint32_t read_interval;
  std::uint32_t read_warp_interval;
  std::uint32_t foreign_interval;
  std::uint16_t writer;
  std::uint16_t reader;
  std::uint16_t other_lane;      // that read in the same interval of the warp
  std::uint16_t other_warp;      // that read in the same interval of the block
  std::uint16_t foreign_reader;  // of an earlier block
  std::uint16_t copier;          // whose asynchronous copy to here is under way
};

struct Region {
  Span span;
  std::unique_ptr<History[]> history;  // null until a checked launch touches it
  std::size_t size() const { return span.end - span.begin; }
};

struct FirstInterval {
  std::uint32_t interval;
  device::Index2 block;
};

struct Memory {
  std::vector<Region> regions;  // by address
  std::unique_ptr<std::byte[]> shared;
  unsigned shared_bytes = 0;
  std::vector<History> shared_history = std::vector<History>(kMaxShared);
  std::uint32_t interval = 0;
  std::vector<FirstInterval> blocks;  // of a checked launch, in the order they ran
};

Memory& memory() {
  static Memory instance;
  return instance;
}

// Words that are NaN as a float, half a double or the upper half of a word.
constexpr std::uint32_t kNobodyWrote = 0x7FF4DEADu;
constexpr std::uint32_t kUnderWay = 0x7FFBA0BAu;

void fill(std::byte* p, std::size_t bytes, std::uint32_t word) {
  for (std::size_t i = 0; i < bytes; i += sizeof word) std::memcpy(p + i, &word, std::min(sizeof word, bytes - i));
}

const char* name(Access access) {
  switch (access) {
    case Access::load: return "load";
    case Access::store: return "store";
    case Access::shared_load: return "shared_load";
    case Access::shared_store: return "shared_store";
    case Access::copy_async16: return "copy_async16";
    case Access::load_matrices: return "load_matrices";
  }
  return "";
}

std::uint16_t who(const Thread& thread, Access access) {
  return static_cast<std::uint16_t>(1 + thread.linear + static_cast<unsigned>(access) * kMaxThreads);
}
unsigned thread_of(std::uint16_t who) { return (who - 1u) % kMaxThreads; }

std::string describe(std::uint16_t who, std::uint32_t interval) {
  const auto& blocks = memory().blocks;
  const auto after = std::upper_bound(blocks.begin(), blocks.end(), interval,
                                      [](std::uint32_t i, const FirstInterval& f) { return i < f.interval; });
  const device::Index2 block = after == blocks.begin() ? running.block_index : (after - 1)->block;
  const unsigned thread = thread_of(who);
  const unsigned width = running.shape.block.x;
  return fmt::format("{} by thread ({}, {}) of block ({}, {})", name(static_cast<Access>((who - 1u) / kMaxThreads)),
                     thread % width, thread / width, block.x, block.y);
}

// Accesses of one thread to neighbouring bytes in the interval that is running.
struct Checker {
  const Thread& thread;
  std::uint16_t self;
  bool is_write;
  bool is_global;
  std::uint32_t interval;
  std::uint32_t first_of_launch;
  std::uint32_t first_of_block;

  Checker(const Thread& t, Access access, bool write, bool global)
      : thread(t),
        self(who(t, access)),
        is_write(write),
        is_global(global),
        interval(memory().interval),
        first_of_launch(memory().blocks.front().interval),
        first_of_block(memory().blocks.back().interval) {}

  struct Conflict {
    std::uint16_t who = 0;
    std::uint32_t interval = 0;
  };

  // Blocks share global memory only.
  bool is_foreign(std::uint32_t other) const { return is_global && other >= first_of_launch && other < first_of_block; }
  bool is_own_warp(std::uint16_t other) const { return thread_of(other) / kLanes == thread.linear / kLanes; }
  // For an access in this interval of the block.
  bool is_unordered(std::uint16_t other, std::uint32_t warp_interval) const {
    return thread_of(other) != thread.linear && (!is_own_warp(other) || warp_interval == thread.warp->interval);
  }

  Conflict conflict(const History& h) const {
    if (h.copier != 0) return {h.copier, interval};
    if (is_foreign(h.write_interval)) return {h.writer, h.write_interval};
    if (h.write_interval == interval && is_unordered(h.writer, h.write_warp_interval)) return {h.writer, interval};
    if (!is_write) return {};
    if (is_foreign(h.foreign_interval)) return {h.foreign_reader, h.foreign_interval};
    if (is_foreign(h.read_interval)) return {h.reader, h.read_interval};
    if (h.read_interval != interval) return {};
    if (is_unordered(h.reader, h.read_warp_interval)) return {h.reader, interval};
    if (h.other_warp != 0) return {h.other_warp, interval};
    if (h.other_lane != 0 && h.read_warp_interval == thread.warp->interval) return {h.other_lane, interval};
    return {};
  }

  void record(History& h) const {
    const std::uint32_t warp_interval = thread.warp->interval;
    if (is_write) {
      h.write_interval = interval;
      h.write_warp_interval = warp_interval;
      h.writer = self;
      return;
    }
    if (h.read_interval != interval) {
      if (is_foreign(h.read_interval)) {
        h.foreign_interval = h.read_interval;
        h.foreign_reader = h.reader;
      }
      h.other_lane = 0;
      h.other_warp = 0;
    } else if (!is_own_warp(h.reader)) {
      h.other_warp = h.reader;
      h.other_lane = 0;
    } else if (h.read_warp_interval != warp_interval) {
      h.other_lane = 0;
    } else if (thread_of(h.reader) != thread.linear) {
      h.other_lane = h.reader;
    }
    h.read_interval = interval;
    h.read_warp_interval = warp_interval;
    h.reader = self;
  }

  template <class Place>
  void touch(History* h, std::size_t bytes, const Place& place) const {
    for (std::size_t i = 0; i < bytes; ++i) {
      const Conflict c = conflict(h[i]);
      if (c.who != 0)
        fail(fmt::format("race at {}: {} and {}{}", place(i), describe(self, interval), describe(c.who, c.interval),
                         h[i].copier != 0 ? ", which is not waited for" : ", with no barrier between them"));
      record(h[i]);
    }
  }
};

bool is_write(Access access) {
  return access == Access::store || access == Access::shared_store || access == Access::copy_async16;
}

void forget_recent() { running.recent = {}; }

std::vector<Region>::iterator first_region_behind(std::uintptr_t address) {
  auto& regions = memory().regions;
  return std::upper_bound(regions.begin(), regions.end(), address,
                          [](std::uintptr_t a, const Region& r) { return a < r.span.begin; });
}

// "at offset 400 of a region of 400 bytes"
std::string place(std::uintptr_t address) {
  constexpr std::uintptr_t kNear = 4096;
  const auto behind = first_region_behind(address);
  const auto& regions = memory().regions;
  const Region* before = behind == regions.begin() ? nullptr : &*(behind - 1);
  const Region* after = behind == regions.end() ? nullptr : &*behind;
  const std::uintptr_t beyond =
      before == nullptr ? kNear : address - std::min(address, before->span.end);  // 0 for an address in it
  const std::uintptr_t ahead = after == nullptr ? kNear : after->span.begin - address;
  if (beyond < kNear && beyond <= ahead)
    return fmt::format("at offset {} of a region of {} bytes", address - before->span.begin, before->size());
  if (ahead < kNear) return fmt::format("at offset -{} of a region of {} bytes", ahead, after->size());
  return "in no region";
}

Region& region_of(const Thread& thread, std::uintptr_t address, std::size_t bytes, Access access) {
  const auto behind = first_region_behind(address);
  Region* region = behind == memory().regions.begin() ? nullptr : &*(behind - 1);
  if (region == nullptr || address >= region->span.end || region->span.end - address < bytes)
    fail(fmt::format("{} of {} bytes {}, by {}", name(access), bytes, place(address), name(thread)));
  return *region;
}

void touch_global(const Thread& thread, Region& region, std::uintptr_t address, std::size_t bytes, Access access,
                  bool writes) {
  if (region.history == nullptr) region.history = std::make_unique<History[]>(region.size());
  const std::size_t offset = address - region.span.begin;
  Checker(thread, access, writes, true).touch(&region.history[offset], bytes, [&](std::size_t i) {
    return fmt::format("byte {} of a region of {} bytes", offset + i, region.size());
  });
}

void touch_shared(const Thread& thread, unsigned offset, unsigned bytes, Access access) {
  History* const history = &memory().shared_history[offset];
  Checker(thread, access, is_write(access), false).touch(history, bytes, [&](std::size_t i) {
    return fmt::format("byte {} of shared memory", offset + i);
  });
  if (is_write(access)) return;
  for (unsigned i = 0; i < bytes; ++i)
    if (history[i].write_interval < memory().blocks.back().interval)
      fail(fmt::format("{} of byte {} of shared memory, which nobody wrote, by {}", name(access), offset + i,
                       name(thread)));
}

}  // namespace

void register_region(const void* begin, std::size_t bytes) {
  const Lock lock;
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  forget_recent();
  memory().regions.insert(first_region_behind(address), Region{{address, address + bytes}, nullptr});
}

void unregister_region(const void* begin) {
  const Lock lock;
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  forget_recent();
  const auto behind = first_region_behind(address);
  if (behind != memory().regions.begin() && (behind - 1)->span.begin == address) memory().regions.erase(behind - 1);
}

std::byte* checked_global(const void* p, unsigned bytes, Access access) {
  const Thread& thread = *running.thread;
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  Region& region = region_of(thread, address, bytes, access);
  if (address % bytes != 0)
    fail(fmt::format("misaligned {} of {} bytes {}, by {}", name(access), bytes, place(address), name(thread)));
  if (running.check) touch_global(thread, region, address, bytes, access, is_write(access));
  running.recent[address / 4096 % running.recent.size()] = region.span;
  return static_cast<std::byte*>(const_cast<void*>(p));
}

std::byte* checked_shared(const Thread& thread, unsigned offset, unsigned bytes, Access access) {
  const unsigned size = running.shape.shared_bytes;
  if (std::uint64_t{offset} + bytes > size)
    fail(fmt::format("{} of {} bytes at offset {} of {} bytes of shared memory, by {}", name(access), bytes, offset,
                     size, name(thread)));
  if (offset % bytes != 0)
    fail(fmt::format("misaligned {} of {} bytes at offset {} of shared memory, by {}", name(access), bytes, offset,
                     name(thread)));
  if (running.check) touch_shared(thread, offset, bytes, access);
  return memory().shared.get() + offset;
}

void copy_async16(unsigned to, const void* from, int bytes) {
  Thread& thread = *running.thread;
  if (bytes < 0 || bytes > 16) fail(fmt::format("copy_async16 of {} bytes, not 0 to 16, by {}", bytes, name(thread)));
  const auto address = reinterpret_cast<std::uintptr_t>(from);
  const auto size = static_cast<unsigned>(bytes);
  if (address % 16 != 0)
    fail(fmt::format("misaligned copy_async16 of {} bytes {}, by {}", bytes, place(address), name(thread)));
  std::byte* const target = checked_shared(thread, to, 16, Access::copy_async16);
  if (bytes != 0) {
    Region& region = region_of(thread, address, size, Access::copy_async16);
    if (running.check) touch_global(thread, region, address, size, Access::copy_async16, false);
  }
  if (running.check)
    for (unsigned i = 0; i < 16; ++i) memory().shared_history[to + i].copier = who(thread, Access::copy_async16);
  fill(target, 16, kUnderWay);
  thread.copies.push_back({static_cast<const std::byte*>(from), to, size, thread.groups + 1});
}

void copy_async_commit() { ++running.thread->groups; }

void copy_async_wait(unsigned pending) {
  Thread& thread = *running.thread;
  if (thread.groups <= pending) return;
  const unsigned last = thread.groups - pending;
  while (thread.first_copy < thread.copies.size() && thread.copies[thread.first_copy].group <= last) {
    const Copy copy = thread.copies[thread.first_copy++];
    if (running.check) {
      for (unsigned i = 0; i < 16; ++i) memory().shared_history[copy.to + i].copier = 0;
      touch_shared(thread, copy.to, 16, Access::copy_async16);
      const auto address = reinterpret_cast<std::uintptr_t>(copy.from);
      if (copy.bytes != 0)
        touch_global(thread, region_of(thread, address, copy.bytes, Access::copy_async16), address, copy.bytes,
                     Access::copy_async16, false);
    }
    std::byte* const target = running.shared + copy.to;
    if (copy.bytes != 0) std::memcpy(target, copy.from, copy.bytes);
    std::memset(target + copy.bytes, 0, 16 - copy.bytes);
  }
  if (thread.first_copy == thread.copies.size()) {
    thread.copies.clear();
    thread.first_copy = 0;
  }
}

void begin_memory_of_launch() {
  Memory& m = memory();
  // On the heap and no larger than asked for, so that AddressSanitizer sees what goes beyond.
  if (m.shared == nullptr || m.shared_bytes != running.shape.shared_bytes) {
    m.shared_bytes = running.shape.shared_bytes;
    m.shared = std::make_unique<std::byte[]>(m.shared_bytes);
  }
  running.shared = m.shared.get();
  m.blocks.clear();
}

void begin_memory_of_block() {
  Memory& m = memory();
  fill(m.shared.get(), m.shared_bytes, kNobodyWrote);
  if (running.check) m.blocks.push_back({++m.interval, running.block_index});
}

void order_block_accesses() { ++memory().interval; }

void forget_accesses_to_shared() {
  std::fill(memory().shared_history.begin(), memory().shared_history.end(), History{});
}

}  // namespace kvant::simt
