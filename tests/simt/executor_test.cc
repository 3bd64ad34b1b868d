// The executor itself: correct kernels pass in every order with all checks, and each planted fault is found, in a
// kernel whose only difference from a passing one is the fault.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/cuda_backend.h"
#include "cuda/device.h"
#include "tests/simt/device_memory.h"
#include "tests/simt/simt.h"

namespace kvant::simt {
namespace {

using device::LaunchShape;

const detail::DeviceStream kStream;

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <class T>
std::vector<T> values_of(const DeviceBuffer& buffer) {
  std::vector<T> values(buffer.size() / sizeof(T));
  buffer.download(std::as_writable_bytes(std::span(values)));
  return values;
}

// All orders, without and with checks.
std::vector<Settings> all_settings() {
  std::vector<Settings> all;
  for (const bool check : {false, true}) {
    all.push_back({.order = Order::forward, .check = check});
    all.push_back({.order = Order::reverse, .check = check});
    for (std::uint64_t seed = 1; seed <= 5; ++seed)
      all.push_back({.order = Order::random, .seed = seed, .check = check});
  }
  return all;
}

// The sentence of a launch that must fail, "" if it does not.
template <class... Parameters, class... Arguments>
std::string failure(const LaunchShape& shape, void (*kernel)(Parameters...), const Arguments&... arguments) {
  const int error = device::launch(kStream, shape, kernel, arguments...);
  return error == 0 ? "" : device::error_text(error);
}

template <class... Parameters, class... Arguments>
std::string checked_failure(const LaunchShape& shape, void (*kernel)(Parameters...), const Arguments&... arguments) {
  const ScopedSettings scope({.check = true});
  return failure(shape, kernel, arguments...);
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// ---- Kernels that are correct ----

KVANT_KERNEL void add_one(std::int32_t* p, std::int64_t count) {
  const unsigned threads = device::block_size().x;
  std::int64_t i = std::int64_t{device::block_index().x} * threads + device::thread_index().x;
  for (; i < count; i += std::int64_t{device::grid_size().x} * threads)
    device::store(p + i, device::load<std::int32_t>(p + i) + 1);
}

TEST(Executor, StridesGrids) {
  for (const Settings& s : all_settings()) {
    const ScopedSettings scope(s);
    std::vector<std::int32_t> values(1000);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int32_t>(3 * i);
    DeviceBuffer buffer(bytes_of(values));
    ASSERT_EQ(failure({{3, 1}, {64, 1}}, add_one, reinterpret_cast<std::int32_t*>(buffer.data()), 1000), "");
    for (std::int32_t& v : values) ++v;
    EXPECT_EQ(values_of<std::int32_t>(buffer), values);
  }
}

KVANT_KERNEL void number_threads(std::uint32_t* p) {
  const unsigned block = device::block_index().y * device::grid_size().x + device::block_index().x;
  const unsigned threads = device::block_size().x * device::block_size().y;
  const unsigned linear = device::thread_index().y * device::block_size().x + device::thread_index().x;
  device::store(p + block * threads + linear, block * 1000 + device::linear_thread());
}

TEST(Executor, NumbersThreadsAndBlocks) {
  for (const Settings& s : all_settings()) {
    const ScopedSettings scope(s);
    DeviceBuffer buffer(6 * 96 * 4);
    const Statistics before = statistics();
    ASSERT_EQ(failure({{2, 3}, {16, 6}}, number_threads, reinterpret_cast<std::uint32_t*>(buffer.data())), "");
    EXPECT_EQ(statistics().launches - before.launches, 1);
    EXPECT_EQ(statistics().blocks - before.blocks, 6);
    EXPECT_EQ(statistics().threads - before.threads, 6 * 96);
    const auto got = values_of<std::uint32_t>(buffer);
    for (std::uint32_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], i / 96 * 1000 + i % 96);
  }
}

// Sums of a block's values; `kHasBarrier` false plants the fault.
template <bool kHasBarrier>
KVANT_KERNEL void sum_block(const double* x, double* sums) {
  const unsigned thread = device::linear_thread();
  const unsigned threads = device::block_size().x;
  double sum = device::load<double>(x + device::block_index().x * threads + thread);
  for (unsigned mask = 16; mask > 0; mask /= 2) sum = device::add_rn(sum, device::shuffle_xor(sum, mask));
  if (thread % 32 == 0) device::shared_store(8 * (thread / 32), sum);
  if constexpr (kHasBarrier) device::sync_block();
  double total = 0;
  for (unsigned w = 0; w < threads / 32; ++w) total = device::add_rn(total, device::shared_load<double>(8 * w));
  if (thread == 0) device::store(sums + device::block_index().x, total);
}

// The sums of 3 blocks of 256, in the order set.
template <bool kHasBarrier>
std::vector<double> sums_of_blocks(std::string* sentence) {
  std::vector<double> x(3 * 256);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i);
  DeviceBuffer from(bytes_of(x));
  DeviceBuffer to(3 * sizeof(double));
  to.fill(std::byte{0});
  *sentence = failure({{3, 1}, {256, 1}, 64}, sum_block<kHasBarrier>, reinterpret_cast<const double*>(from.data()),
                      reinterpret_cast<double*>(to.data()));
  return values_of<double>(to);
}

TEST(Executor, ReducesBlocks) {
  for (const Settings& s : all_settings()) {
    const ScopedSettings scope(s);
    std::string sentence;
    const Statistics before = statistics();
    EXPECT_EQ(sums_of_blocks<true>(&sentence), (std::vector<double>{32640, 98176, 163712}));
    EXPECT_EQ(sentence, "");
    EXPECT_EQ(statistics().block_barriers - before.block_barriers, 3);
    EXPECT_EQ(statistics().warp_operations - before.warp_operations, 3 * 8 * 5);
  }
}

TEST(Executor, ShowsAMissingBarrier) {
  std::string sentence;
  const auto run = [&](const Settings& s) {
    const ScopedSettings scope(s);
    return sums_of_blocks<false>(&sentence);
  };
  const auto forward = run({.order = Order::forward});
  EXPECT_EQ(sentence, "");
  const auto reverse = run({.order = Order::reverse});
  EXPECT_EQ(sentence, "");
  EXPECT_NE(std::memcmp(forward.data(), reverse.data(), sizeof(double) * 3), 0);
  for (const Order order : {Order::forward, Order::reverse, Order::random}) {
    run({.order = order, .check = true});
    EXPECT_TRUE(contains(sentence, "race at byte") || contains(sentence, "which nobody wrote")) << sentence;
  }
}

// Two buffers of a row for each thread, filled while the other is used. Rows are read by the neighbouring thread.
enum class Fault { none, no_wait, no_barrier, no_second_barrier };
template <Fault kFault>
KVANT_KERNEL void copy_rows(const std::byte* from, std::int32_t* sums, int rows, int last_bytes) {
  const unsigned thread = device::linear_thread();
  const unsigned threads = device::block_size().x;
  const auto fetch = [&](int row) {
    const int bytes = row < rows - 1 ? 16 : row == rows - 1 ? last_bytes : 0;
    const std::byte* p = from + (static_cast<unsigned>(row) * threads + thread) * 16;
    device::copy_async16((static_cast<unsigned>(row % 2) * threads + thread) * 16, bytes == 0 ? from : p, bytes);
    device::copy_async_commit();
  };
  fetch(0);
  std::int32_t sum = 0;
  for (int row = 0; row < rows; ++row) {
    fetch(row + 1);
    if constexpr (kFault != Fault::no_wait) device::copy_async_wait<1>();
    if constexpr (kFault != Fault::no_barrier) device::sync_block();
    const unsigned neighbour = (thread + 1) % threads;
    const auto words = device::shared_load<device::Words4>((static_cast<unsigned>(row % 2) * threads + neighbour) * 16);
    for (const std::uint32_t w : words.w) sum = device::dot4(w, 0x01010101u, sum);
    if constexpr (kFault != Fault::no_second_barrier) device::sync_block();
  }
  device::copy_async_wait<0>();
  device::store(sums + thread, sum);
}

std::vector<std::byte> random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random() >> 11);
  return bytes;
}

template <Fault kFault>
std::string run_copy_rows(std::vector<std::int32_t>* sums) {
  const auto x = random_bytes(7 * 64 * 16 - 5, 3);
  DeviceBuffer from(x);
  DeviceBuffer to(64 * 4);
  // The last thread's last row ends 5 bytes early; so do the others'.
  const std::string sentence =
      failure({{1, 1}, {64, 1}, 2 * 64 * 16}, copy_rows<kFault>, static_cast<const std::byte*>(from.data()),
              reinterpret_cast<std::int32_t*>(to.data()), 7, 11);
  *sums = values_of<std::int32_t>(to);
  return sentence;
}

TEST(Executor, CopiesWhileOthersRead) {
  const auto x = random_bytes(7 * 64 * 16 - 5, 3);
  std::vector<std::int32_t> expected(64);
  for (std::size_t t = 0; t < 64; ++t)
    for (std::size_t row = 0; row < 7; ++row)
      for (std::size_t i = 0; i < (row < 6 ? 16u : 11u); ++i)
        expected[t] += static_cast<std::int8_t>(x[(row * 64 + (t + 1) % 64) * 16 + i]);
  for (const Settings& s : all_settings()) {
    const ScopedSettings scope(s);
    std::vector<std::int32_t> sums;
    EXPECT_EQ(run_copy_rows<Fault::none>(&sums), "");
    EXPECT_EQ(sums, expected);
    if (s.check) {
      const std::string no_wait = run_copy_rows<Fault::no_wait>(&sums);
      EXPECT_TRUE(contains(no_wait, "race at byte") && contains(no_wait, "which is not waited for")) << no_wait;
      const std::string no_barrier = run_copy_rows<Fault::no_barrier>(&sums);
      EXPECT_TRUE(contains(no_barrier, "race") || contains(no_barrier, "nobody wrote")) << no_barrier;
      const std::string no_second = run_copy_rows<Fault::no_second_barrier>(&sums);
      EXPECT_TRUE(contains(no_second, "race at byte")) << no_second;
    } else {
      EXPECT_EQ(run_copy_rows<Fault::no_wait>(&sums), "");
      EXPECT_NE(sums, expected) << "the bytes came before the wait";
    }
  }
}

template <bool kWaits>
KVANT_KERNEL void read_copy(const std::byte* from, std::uint32_t* out) {
  const unsigned thread = device::linear_thread();
  device::shared_store(16 * thread, device::Words4{});
  device::copy_async16(16 * thread, from + 16 * thread, 16);
  device::copy_async_commit();
  if constexpr (kWaits) device::copy_async_wait<0>();
  device::store(out + thread, device::shared_load<std::uint32_t>(16 * thread));
  device::copy_async_wait<0>();
}

TEST(Executor, ShowsNeitherOldNorNewBytesBeforeTheWait) {
  const std::vector<std::uint32_t> content(32 * 4, 77);
  DeviceBuffer from(bytes_of(content));
  DeviceBuffer out(32 * 4);
  const auto* p = static_cast<const std::byte*>(from.data());
  auto* const q = reinterpret_cast<std::uint32_t*>(out.data());
  const LaunchShape shape{{1, 1}, {32, 1}, 512};
  EXPECT_EQ(failure(shape, read_copy<false>, p, q), "");
  for (const std::uint32_t v : values_of<std::uint32_t>(out)) EXPECT_TRUE(v != 0 && v != 77);
  EXPECT_EQ(checked_failure(shape, read_copy<false>, p, q),
            "race at byte 0 of shared memory: shared_load by thread (0, 0) of block (0, 0) and copy_async16 by thread "
            "(0, 0) of block (0, 0), which is not waited for");
  EXPECT_EQ(checked_failure(shape, read_copy<true>, p, q), "");
  for (const std::uint32_t v : values_of<std::uint32_t>(out)) EXPECT_EQ(v, 77u);
}

// The source may change once the copy is waited for.
template <bool kWaitsBeforeBarrier>
KVANT_KERNEL void overwrite_source(std::byte* from) {
  const unsigned thread = device::linear_thread();
  if (thread == 0) {
    device::copy_async16(0, from, 16);
    device::copy_async_commit();
  }
  if constexpr (kWaitsBeforeBarrier) device::copy_async_wait<0>();
  device::sync_block();
  if (thread == 1) device::store(from + 12, 5);
  device::copy_async_wait<0>();
}

TEST(Executor, FindsCopiesWhoseSourceChanges) {
  DeviceBuffer from(16);
  from.fill(std::byte{0});
  for (const Settings& s : all_settings()) {
    const ScopedSettings scope(s);
    const LaunchShape shape{{1, 1}, {32, 1}, 16};
    EXPECT_EQ(failure(shape, overwrite_source<true>, from.data()), "");
    EXPECT_EQ(contains(failure(shape, overwrite_source<false>, from.data()), "race at byte 12 of a region of 16 bytes"),
              s.check);
  }
}

template <bool kWaits>
KVANT_KERNEL void copy_and_return(const std::byte* from) {
  device::copy_async16(16 * device::linear_thread(), from + 16 * device::linear_thread(), 16);
  device::copy_async_commit();
  if constexpr (kWaits) device::copy_async_wait<0>();
}

TEST(Executor, WantsCopiesToBeWaitedFor) {
  DeviceBuffer from(32 * 16);
  const auto* p = static_cast<const std::byte*>(from.data());
  EXPECT_EQ(failure({{1, 1}, {32, 1}, 512}, copy_and_return<true>, p), "");
  EXPECT_EQ(failure({{1, 1}, {32, 1}, 512}, copy_and_return<false>, p),
            "thread (0, 0) of block (0, 0) returns with 1 copy_async16 that it has not waited for");
  EXPECT_EQ(failure({{1, 1}, {32, 1}, 512}, copy_and_return<true>, p), "");
  EXPECT_EQ(failure({{1, 1}, {32, 1}, 512}, copy_and_return<true>, p + 1),
            "misaligned copy_async16 of 16 bytes at offset 1 of a region of 512 bytes, by thread (0, 0) of block "
            "(0, 0)");
  EXPECT_EQ(failure({{1, 1}, {32, 1}, 512}, copy_and_return<true>, p + 16),
            "copy_async16 of 16 bytes at offset 512 of a region of 512 bytes, by thread (31, 0) of block (0, 0)");
  EXPECT_EQ(failure({{1, 1}, {32, 1}, 500}, copy_and_return<true>, p),
            "copy_async16 of 16 bytes at offset 496 of 500 bytes of shared memory, by thread (31, 0) of block (0, 0)");
}

// ---- Matrices ----

struct Matrices {
  std::vector<std::int8_t> a = std::vector<std::int8_t>(16 * 32);  // [16, 32]
  std::vector<std::int8_t> b = std::vector<std::int8_t>(8 * 32);   // columns of [32, 8]
  std::vector<std::int32_t> c = std::vector<std::int32_t>(16 * 8);

  explicit Matrices(unsigned seed) {
    std::mt19937 random(seed);
    const bool extremes = seed % 2 == 0;
    const auto next = [&] {
      return static_cast<std::int8_t>(extremes ? -128 : static_cast<int>(random() % 256) - 128);
    };
    std::generate(a.begin(), a.end(), next);
    std::generate(b.begin(), b.end(), next);
    // Close to the greatest int, so that sums wrap.
    for (std::int32_t& v : c) v = static_cast<std::int32_t>(extremes ? 0x7FFFFFFFu - random() % 99 : random());
  }

  std::vector<std::int32_t> result() const {
    std::vector<std::int32_t> y = c;
    for (std::size_t m = 0; m < 16; ++m)
      for (std::size_t n = 0; n < 8; ++n) {
        std::int64_t sum = y[m * 8 + n];
        for (std::size_t k = 0; k < 32; ++k) sum += a[m * 32 + k] * b[n * 32 + k];
        y[m * 8 + n] = static_cast<std::int32_t>(static_cast<std::uint32_t>(sum));
      }
    return y;
  }
};

// Through shared memory (rows of 32 bytes, B behind A) and load_matrices, or straight from global memory.
template <bool kShared, bool kHasBarrier = true>
KVANT_KERNEL void multiply(const std::int8_t* a, const std::int8_t* b, std::int32_t* c) {
  const unsigned lane = device::linear_thread();
  const unsigned g = lane / 4;
  const unsigned t = lane % 4;
  std::uint32_t ra[4];
  std::uint32_t rb[2];
  if constexpr (kShared) {
    for (unsigned i = lane; i < 24 * 2; i += 32)
      device::shared_store(
          16 * i, i < 32 ? device::load<device::Words4>(a + 16 * i) : device::load<device::Words4>(b + 16 * (i - 32)));
    if constexpr (kHasBarrier) device::sync_block();
    // Matrices 0 and 1 are the upper and lower rows of A's left half, 2 and 3 of its right half.
    const auto wa = device::load_matrices((lane % 16) * 32 + lane / 16 * 16);
    for (unsigned i = 0; i < 4; ++i) ra[i] = wa.w[i];
    // Matrices 0 and 1 are the halves of B's columns; 2 and 3 go unused.
    const auto wb = device::load_matrices(16 * 32 + (lane % 8) * 32 + lane / 8 % 2 * 16);
    for (unsigned i = 0; i < 2; ++i) rb[i] = wb.w[i];
  } else {
    for (unsigned i = 0; i < 4; ++i) ra[i] = device::load<std::uint32_t>(a + (g + i % 2 * 8) * 32 + i / 2 * 16 + 4 * t);
    for (unsigned i = 0; i < 2; ++i) rb[i] = device::load<std::uint32_t>(b + g * 32 + i * 16 + 4 * t);
  }
  int rc[4];
  for (unsigned i = 0; i < 4; ++i) rc[i] = device::load<std::int32_t>(c + (g + i / 2 * 8) * 8 + 2 * t + i % 2);
  device::mma_s8(rc, ra, rb);
  for (unsigned i = 0; i < 4; ++i) device::store(c + (g + i / 2 * 8) * 8 + 2 * t + i % 2, rc[i]);
}

template <bool kShared, bool kHasBarrier = true>
std::string run_multiply(const Matrices& m, std::vector<std::int32_t>* y) {
  DeviceBuffer a(bytes_of(m.a));
  DeviceBuffer b(bytes_of(m.b));
  DeviceBuffer c(bytes_of(m.c));
  const std::string sentence =
      failure({{1, 1}, {32, 1}, kShared ? 24 * 32u : 0u}, multiply<kShared, kHasBarrier>,
              reinterpret_cast<const std::int8_t*>(a.data()), reinterpret_cast<const std::int8_t*>(b.data()),
              reinterpret_cast<std::int32_t*>(c.data()));
  *y = values_of<std::int32_t>(c);
  return sentence;
}

TEST(Executor, MultipliesMatrices) {
  for (const Settings& s : all_settings()) {
    const ScopedSettings scope(s);
    for (unsigned seed = 1; seed <= 10; ++seed) {
      const Matrices m(seed);
      std::vector<std::int32_t> y;
      EXPECT_EQ((run_multiply<false>(m, &y)), "");
      EXPECT_EQ(y, m.result());
      EXPECT_EQ((run_multiply<true>(m, &y)), "");
      EXPECT_EQ(y, m.result());
      EXPECT_EQ((run_multiply<true, false>(m, &y)), "") << "load_matrices waits for the lanes of its warp";
      EXPECT_EQ(y, m.result());
    }
  }
  const ScopedSettings scope({.check = true, .warp_operations_order = false});
  std::vector<std::int32_t> y;
  EXPECT_EQ((run_multiply<true>(Matrices(1), &y)), "");
  EXPECT_TRUE(contains(run_multiply<true, false>(Matrices(1), &y), "race at byte")) << "though not by CUDA's promise";
}

KVANT_KERNEL void load_rows_at(unsigned offset, unsigned stride) {
  for (unsigned i = device::linear_thread(); i < 32; i += 32) device::shared_store(16 * i, device::Words4{});
  device::load_matrices(offset + stride * device::linear_thread());
}

TEST(Executor, ChecksRowsOfMatrices) {
  const LaunchShape shape{{1, 1}, {32, 1}, 512};
  EXPECT_EQ(checked_failure(shape, load_rows_at, 0, 16), "");
  EXPECT_EQ(checked_failure(shape, load_rows_at, 16, 16),
            "load_matrices of 16 bytes at offset 512 of 512 bytes of shared memory, by thread (31, 0) of block (0, 0)");
  EXPECT_EQ(checked_failure(shape, load_rows_at, 8, 0),
            "misaligned load_matrices of 16 bytes at offset 8 of shared memory, by thread (0, 0) of block (0, 0)");
}

// The rows are loaded for all lanes before one goes on.
KVANT_KERNEL void load_rows_and_overwrite(std::uint32_t* out) {
  const unsigned lane = device::linear_thread();
  for (const std::uint32_t i : {0u, 1u, 2u, 3u}) device::shared_store(16 * lane + 4 * i, 4 * lane + i);
  const device::Words4 words = device::load_matrices(16 * lane);
  device::shared_store(16 * (31 - lane), device::Words4{});
  for (const unsigned i : {0u, 1u, 2u, 3u}) device::store(out + 4 * lane + i, words.w[i]);
}

TEST(Executor, LoadsMatricesAtOnce) {
  for (const Settings& s : all_settings()) {
    const ScopedSettings scope(s);
    DeviceBuffer out(32 * 16);
    ASSERT_EQ(failure({{1, 1}, {32, 1}, 512}, load_rows_and_overwrite, reinterpret_cast<std::uint32_t*>(out.data())),
              "");
    const auto got = values_of<std::uint32_t>(out);
    for (std::uint32_t i = 0; i < 128; ++i) ASSERT_EQ(got[i], i % 4 * 32 + i / 4) << "word i % 4 of lane i / 4";
  }
}

// ---- Warp operations ----

KVANT_KERNEL void exchange_lanes(std::uint64_t* out) {
  const unsigned thread = device::linear_thread();
  const unsigned lane = thread % 32;
  const std::uint64_t reversed = device::shuffle(std::uint64_t{thread} << 40, 31 - lane);
  const float neighbour = device::shuffle_xor(static_cast<float>(thread), 1);
  const int first = device::shuffle(static_cast<int>(thread) - 40, 0);
  const unsigned odd = device::ballot(thread % 2 == 1);
  const unsigned warp = device::ballot(thread >= 32);
  device::store(out + 5 * thread, reversed);
  device::store(out + 5 * thread + 1, static_cast<std::uint64_t>(neighbour));
  device::store(out + 5 * thread + 2, static_cast<std::uint64_t>(first + 40));
  device::store(out + 5 * thread + 3, std::uint64_t{odd});
  device::store(out + 5 * thread + 4, std::uint64_t{warp});
}

TEST(Executor, ExchangesBetweenLanes) {
  for (const Settings& s : all_settings()) {
    const ScopedSettings scope(s);
    DeviceBuffer out(64 * 5 * 8);
    ASSERT_EQ(failure({{1, 1}, {64, 1}}, exchange_lanes, reinterpret_cast<std::uint64_t*>(out.data())), "");
    const auto got = values_of<std::uint64_t>(out);
    for (std::uint64_t i = 0; i < 64; ++i) {
      ASSERT_EQ(got[5 * i], (i / 32 * 32 + 31 - i % 32) << 40);
      ASSERT_EQ(got[5 * i + 1], i ^ 1);
      ASSERT_EQ(got[5 * i + 2], i / 32 * 32);
      ASSERT_EQ(got[5 * i + 3], 0xAAAAAAAAu);
      ASSERT_EQ(got[5 * i + 4], i < 32 ? 0u : 0xFFFFFFFFu);
    }
  }
}

// ---- Divergence ----

enum class Act { sync_block, sync_warp, shuffle, shuffle_64, ballot, leave };

KVANT_DEVICE void act(Act what) {
  switch (what) {
    case Act::sync_block: device::sync_block(); break;
    case Act::sync_warp: device::sync_warp(); break;
    case Act::shuffle: device::shuffle(1, 0); break;
    case Act::shuffle_64: device::shuffle(1.0, 0); break;
    case Act::ballot: device::ballot(true); break;
    case Act::leave: break;
  }
}

KVANT_KERNEL void diverge(unsigned first, Act before, Act from) {
  act(device::linear_thread() < first ? before : from);
}

TEST(Executor, FindsBarriersThatNotAllReach) {
  for (const Settings& s : all_settings()) {
    const ScopedSettings scope(s);
    const LaunchShape shape{{2, 1}, {64, 1}};
    for (const Act same : {Act::sync_block, Act::sync_warp, Act::shuffle, Act::shuffle_64, Act::ballot, Act::leave})
      EXPECT_EQ(failure(shape, diverge, 40, same, same), "");
    EXPECT_EQ(failure(shape, diverge, 32, Act::shuffle, Act::leave), "") << "whole warps may differ";
    EXPECT_EQ(failure(shape, diverge, 32, Act::shuffle, Act::ballot), "");
    const std::string block = s.order == Order::forward ? "(0, 0)" : s.order == Order::reverse ? "(1, 0)" : "";
    const std::string returned = failure(shape, diverge, 32, Act::sync_block, Act::leave);
    EXPECT_TRUE(contains(returned, "barrier that not all threads reach: 32 of 64 threads of block " + block))
        << returned;
    EXPECT_TRUE(contains(returned, "wait in sync_block, thread (32, 0) of block " + block)) << returned;
    EXPECT_TRUE(contains(returned, "has returned")) << returned;
    const std::string mixed = failure(shape, diverge, 40, Act::sync_block, Act::shuffle);
    EXPECT_TRUE(
        contains(mixed, "warp operation that not all lanes reach: 24 of 32 lanes wait in shuffle, thread (32, 0)"))
        << mixed;
    EXPECT_TRUE(contains(mixed, "waits in sync_block")) << mixed;
    const std::string gone = failure(shape, diverge, 40, Act::shuffle, Act::leave);
    EXPECT_TRUE(contains(gone, "8 of 32 lanes wait in shuffle, thread (40, 0)")) << gone;
    const std::string two = failure(shape, diverge, 40, Act::shuffle, Act::ballot);
    EXPECT_TRUE(contains(two, "different operations") && contains(two, "in shuffle of 4 bytes") &&
                contains(two, "in ballot"))
        << two;
    const std::string widths = failure(shape, diverge, 40, Act::shuffle, Act::shuffle_64);
    EXPECT_TRUE(contains(widths, "in shuffle of 4 bytes") && contains(widths, "in shuffle of 8 bytes")) << widths;
  }
}

// ---- Bounds ----

KVANT_KERNEL void load_at(const std::byte* p) { device::load<std::uint32_t>(p + 4 * device::linear_thread()); }
KVANT_KERNEL void store_at(std::byte* p) { device::store(p + 4 * device::linear_thread(), 1.0f); }
KVANT_KERNEL void store_shared_at(unsigned offset) { device::shared_store(offset + 4 * device::linear_thread(), 1.0f); }
KVANT_KERNEL void load_shared_at(unsigned offset) {
  device::shared_store(4 * device::linear_thread(), 1.0f);
  device::sync_block();
  device::shared_load<float>(offset + 4 * device::linear_thread());
}

TEST(Executor, ChecksBoundsOfGlobalMemory) {
  for (const Settings& s : all_settings()) {
    const ScopedSettings scope(s);
    DeviceBuffer buffer(128, 16);
    const LaunchShape shape{{1, 1}, {32, 1}};
    const auto loads = [&](std::ptrdiff_t offset) {
      return failure(shape, load_at, static_cast<const std::byte*>(buffer.data()) + offset);
    };
    const auto stores = [&](std::ptrdiff_t offset) { return failure(shape, store_at, buffer.data() + offset); };
    EXPECT_EQ(loads(0), "");
    EXPECT_EQ(stores(0), "");
    EXPECT_EQ(loads(4), "load of 4 bytes at offset 128 of a region of 128 bytes, by thread (31, 0) of block (0, 0)");
    EXPECT_EQ(stores(4), "store of 4 bytes at offset 128 of a region of 128 bytes, by thread (31, 0) of block (0, 0)");
    EXPECT_EQ(loads(-4), "load of 4 bytes at offset -4 of a region of 128 bytes, by thread (0, 0) of block (0, 0)");
    EXPECT_EQ(failure(shape, load_at, static_cast<const std::byte*>(nullptr)).find("load of 4 bytes in no region"), 0u);
    EXPECT_EQ(loads(0), "");
  }
}

TEST(Executor, ChecksAlignmentOfGlobalMemory) {
  DeviceBuffer even(132);
  DeviceBuffer odd(132, 1);
  const LaunchShape shape{{1, 1}, {32, 1}};
  for (const bool check : {false, true}) {
    const ScopedSettings scope({.check = check});
    EXPECT_EQ(failure(shape, store_at, even.data()), "");
    EXPECT_EQ(failure(shape, store_at, odd.data() + 3), "");
    EXPECT_EQ(failure(shape, store_at, even.data() + 2),
              "misaligned store of 4 bytes at offset 2 of a region of 132 bytes, by thread (0, 0) of block (0, 0)");
    EXPECT_EQ(failure(shape, load_at, static_cast<const std::byte*>(odd.data())),
              "misaligned load of 4 bytes at offset 0 of a region of 132 bytes, by thread (0, 0) of block (0, 0)");
  }
}

TEST(Executor, ForgetsRegions) {
  const std::vector<std::byte> memory(128);
  const LaunchShape shape{{1, 1}, {32, 1}};
  EXPECT_TRUE(contains(failure(shape, load_at, memory.data()), "load of 4 bytes"));
  register_region(memory.data(), memory.size());
  EXPECT_EQ(failure(shape, load_at, memory.data()), "");
  unregister_region(memory.data());
  EXPECT_TRUE(contains(failure(shape, load_at, memory.data()), "load of 4 bytes"));
}

TEST(Executor, ChecksBoundsOfSharedMemory) {
  const LaunchShape shape{{1, 1}, {32, 1}, 128};
  for (const bool check : {false, true}) {
    const ScopedSettings scope({.check = check});
    EXPECT_EQ(failure(shape, store_shared_at, 0), "");
    EXPECT_EQ(failure(shape, load_shared_at, 0), "");
    EXPECT_EQ(failure(shape, store_shared_at, 4),
              "shared_store of 4 bytes at offset 128 of 128 bytes of shared memory, by thread (31, 0) of block (0, 0)");
    EXPECT_EQ(failure(shape, load_shared_at, 4),
              "shared_load of 4 bytes at offset 128 of 128 bytes of shared memory, by thread (31, 0) of block (0, 0)");
    EXPECT_EQ(failure(shape, store_shared_at, 2),
              "misaligned shared_store of 4 bytes at offset 2 of shared memory, by thread (0, 0) of block (0, 0)");
    EXPECT_EQ(failure({{1, 1}, {32, 1}}, store_shared_at, 0),
              "shared_store of 4 bytes at offset 0 of 0 bytes of shared memory, by thread (0, 0) of block (0, 0)");
  }
}

// ---- Races ----

// Thread `writer` writes the byte that thread `reader` reads, with an operation between.
KVANT_KERNEL void hand_over(unsigned writer, unsigned reader, Act between, bool reads_first) {
  const unsigned thread = device::linear_thread();
  if (thread == 63) device::shared_store(0, std::uint8_t{1});
  device::sync_block();
  if (reads_first && thread == reader) device::shared_load<std::uint8_t>(0);
  if (!reads_first && thread == writer) device::shared_store(0, std::uint8_t{2});
  act(between);
  if (!reads_first && thread == reader) device::shared_load<std::uint8_t>(0);
  if (reads_first && thread == writer) device::shared_store(0, std::uint8_t{2});
}

TEST(Executor, FindsRacesBetweenThreads) {
  const LaunchShape shape{{1, 1}, {64, 1}, 16};
  for (const Settings& s : all_settings()) {
    if (!s.check) continue;
    const ScopedSettings scope(s);
    for (const bool reads_first : {false, true}) {
      EXPECT_EQ(failure(shape, hand_over, 3, 5, Act::sync_block, reads_first), "");
      EXPECT_EQ(failure(shape, hand_over, 3, 5, Act::shuffle, reads_first), "") << "a warp operation orders its warp";
      EXPECT_EQ(failure(shape, hand_over, 3, 5, Act::sync_warp, reads_first), "");
      EXPECT_EQ(failure(shape, hand_over, 3, 35, Act::sync_block, reads_first), "");
      EXPECT_EQ(failure(shape, hand_over, 3, 3, Act::leave, reads_first), "");
      for (const std::string& sentence : {failure(shape, hand_over, 3, 5, Act::leave, reads_first),
                                          failure(shape, hand_over, 3, 35, Act::leave, reads_first),
                                          failure(shape, hand_over, 3, 35, Act::shuffle, reads_first)}) {
        EXPECT_TRUE(contains(sentence, "race at byte 0 of shared memory: ")) << sentence;
        EXPECT_TRUE(contains(sentence, "shared_store by thread (3, 0) of block (0, 0)")) << sentence;
        EXPECT_TRUE(contains(sentence, "shared_load by thread (")) << sentence;
      }
    }
  }
  {
    const ScopedSettings scope({.check = true, .warp_operations_order = false});
    EXPECT_EQ(failure(shape, hand_over, 3, 5, Act::sync_warp, false), "");
    EXPECT_TRUE(contains(failure(shape, hand_over, 3, 5, Act::shuffle, false), "race at byte 0"));
  }
  EXPECT_EQ(checked_failure(shape, hand_over, 3, 5, Act::leave, false),
            "race at byte 0 of shared memory: shared_load by thread (5, 0) of block (0, 0) and shared_store by thread "
            "(3, 0) of block (0, 0), with no barrier between them");
}

// Two read what one then writes.
KVANT_KERNEL void read_then_write(std::uint8_t* p, unsigned first, unsigned second, unsigned writer, Act between) {
  const unsigned thread = device::linear_thread();
  if (thread == first || thread == second) device::load<std::uint8_t>(p);
  act(between);
  if (thread == writer) device::store(p, std::uint8_t{1});
}

TEST(Executor, RemembersEnoughReaders) {
  DeviceBuffer buffer(1);
  buffer.fill(std::byte{0});
  const LaunchShape shape{{1, 1}, {96, 1}};
  auto* const p = reinterpret_cast<std::uint8_t*>(buffer.data());
  for (const Settings& s : all_settings()) {
    if (!s.check) continue;
    const ScopedSettings scope(s);
    const unsigned candidates[] = {1, 4, 34, 40, 70};
    for (const unsigned a : candidates)
      for (const unsigned b : candidates)
        for (const unsigned w : candidates) {
          EXPECT_EQ(failure(shape, read_then_write, p, a, b, w, Act::sync_block), "");
          const bool races = a != w || b != w;
          EXPECT_EQ(
              contains(failure(shape, read_then_write, p, a, b, w, Act::leave), "race at byte 0 of a region of 1"),
              races)
              << a << " " << b << " " << w;
          const bool races_warps = a / 32 != w / 32 || b / 32 != w / 32;
          EXPECT_EQ(contains(failure(shape, read_then_write, p, a, b, w, Act::shuffle), "race at byte 0 of a region"),
                    races_warps)
              << a << " " << b << " " << w;
        }
  }
}

// Thread 0 of each block; a step of 0 makes blocks share.
KVANT_KERNEL void write_by_block(std::uint32_t* p, unsigned step) {
  if (device::linear_thread() == 0) device::store(p + step * device::block_index().x, std::uint32_t{7});
}
KVANT_KERNEL void read_then_write_by_block(std::uint32_t* p, unsigned reader, unsigned writer) {
  if (device::linear_thread() != 0) return;
  if (device::block_index().x <= reader) device::load<std::uint32_t>(p);
  if (device::block_index().x == writer) device::store(p, std::uint32_t{7});
}

TEST(Executor, FindsRacesBetweenBlocks) {
  DeviceBuffer buffer(16);
  buffer.fill(std::byte{0});
  auto* const p = reinterpret_cast<std::uint32_t*>(buffer.data());
  const LaunchShape shape{{4, 1}, {32, 1}};
  EXPECT_EQ(checked_failure(shape, write_by_block, p, 1), "");
  EXPECT_EQ(checked_failure(shape, write_by_block, p, 1), "") << "launches are in order";
  EXPECT_EQ(checked_failure(shape, write_by_block, p, 0),
            "race at byte 0 of a region of 16 bytes: store by thread (0, 0) of block (1, 0) and store by thread (0, 0) "
            "of block (0, 0), with no barrier between them");
  EXPECT_EQ(failure(shape, write_by_block, p, 0), "") << "not looked for";
  for (const Settings& s : all_settings()) {
    if (!s.check) continue;
    const ScopedSettings scope(s);
    EXPECT_EQ(failure({{1, 1}, {32, 1}}, read_then_write_by_block, p, 0, 0), "");
    EXPECT_EQ(failure(shape, read_then_write_by_block, p, 3, 9), "");
    EXPECT_TRUE(contains(failure(shape, read_then_write_by_block, p, 0, 2), "race at byte 0")) << "one block reads";
    EXPECT_TRUE(contains(failure(shape, read_then_write_by_block, p, 1, 1), "race at byte 0"))
        << "the block that read last writes";
  }
}

KVANT_KERNEL void read_unwritten(unsigned writers) {
  const unsigned thread = device::linear_thread();
  if (thread < writers) device::shared_store(4 * thread, thread);
  device::sync_block();
  device::shared_load<unsigned>(4 * (31 - thread));
}

TEST(Executor, FindsReadsOfWhatNobodyWrote) {
  const LaunchShape shape{{2, 1}, {32, 1}, 128};
  EXPECT_EQ(checked_failure(shape, read_unwritten, 32), "");
  EXPECT_EQ(checked_failure(shape, read_unwritten, 31),
            "shared_load of byte 124 of shared memory, which nobody wrote, by thread (0, 0) of block (0, 0)");
}

KVANT_KERNEL void store_unwritten(float* out) { device::store(out, device::shared_load<float>(4)); }

TEST(Executor, FillsSharedMemoryWithNonsense) {
  DeviceBuffer out(4);
  ASSERT_EQ(failure({{1, 1}, {32, 1}, 8}, store_unwritten, reinterpret_cast<float*>(out.data())), "");
  EXPECT_TRUE(std::isnan(values_of<float>(out)[0]));
}

// ---- Launches ----

TEST(Executor, RefusesShapes) {
  const auto refusal = [](const LaunchShape& shape) { return failure(shape, store_shared_at, 0); };
  EXPECT_EQ(refusal({{1, 1}, {1024, 1}, 48 * 1024}), "");
  EXPECT_EQ(refusal({{1, 1}, {33, 1}}), "invalid launch: a block of (33, 1) threads, not a multiple of 32 up to 1024");
  EXPECT_EQ(refusal({{1, 1}, {32, 0}}), "invalid launch: a block of (32, 0) threads, not a multiple of 32 up to 1024");
  EXPECT_EQ(refusal({{1, 1}, {1056, 1}}),
            "invalid launch: a block of (1056, 1) threads, not a multiple of 32 up to 1024");
  EXPECT_EQ(refusal({{0, 1}, {32, 1}}), "invalid launch: a grid of (0, 1) blocks, not 1 to 2147483647 by 1 to 65535");
  EXPECT_EQ(refusal({{1, 65536}, {32, 1}}),
            "invalid launch: a grid of (1, 65536) blocks, not 1 to 2147483647 by 1 to 65535");
  EXPECT_EQ(refusal({{1, 1}, {32, 1}, 48 * 1024 + 1}), "invalid launch: 49153 bytes of shared memory, more than 49152");
}

KVANT_KERNEL void throw_something(bool does) {
  const std::vector<int> held(100);  // freed while the launch is stopped
  device::sync_warp();
  if (does && device::linear_thread() == 7) throw std::runtime_error("oops");
  device::sync_block();
}

TEST(Executor, GoesOnAfterFailures) {
  for (const Settings& s : all_settings()) {
    const ScopedSettings scope(s);
    EXPECT_EQ(failure({{1, 1}, {1024, 1}}, throw_something, false), "");
    EXPECT_EQ(failure({{1, 1}, {1024, 1}}, throw_something, true), "thread (7, 0) of block (0, 0) threw: oops");
    EXPECT_EQ(failure({{1, 1}, {1024, 1}}, throw_something, false), "");
  }
}

TEST(Executor, ServesSeveralHostThreads) {
  std::vector<std::thread> hosts;
  for (int i = 0; i < 3; ++i)
    hosts.emplace_back([] {
      for (int round = 0; round < 50; ++round) {
        DeviceBuffer buffer(128);
        EXPECT_EQ(failure({{1, 1}, {256, 1}}, throw_something, false), "");
        EXPECT_EQ(failure({{1, 1}, {256, 1}}, throw_something, true), "thread (7, 0) of block (0, 0) threw: oops");
        EXPECT_EQ(failure({{1, 1}, {32, 1}}, store_at, buffer.data()), "");
      }
    });
  for (std::thread& host : hosts) host.join();
}

TEST(Executor, IsABackend) {
  ASSERT_TRUE(cuda::is_built());
  const ScopedSettings scope({.max_blocks = 3});
  const auto stream = cuda::open_stream(nullptr);
  ASSERT_TRUE(stream.ok());
  EXPECT_EQ(stream->multiprocessors, 2);
  EXPECT_EQ(stream->max_blocks, 3);
  EXPECT_TRUE(cuda::launch_status("quantize", 0).ok());
  const Status status = cuda::launch_status("quantize", device::launch(*stream, {{1, 1}, {31, 1}}, store_shared_at, 0));
  EXPECT_EQ(status.code(), StatusCode::Internal);
  EXPECT_EQ(status.message(), "quantize: invalid launch: a block of (31, 1) threads, not a multiple of 32 up to 1024");
}

// ---- Numbers ----

TEST(Device, MultipliesBytes) {
  EXPECT_EQ(device::dot4(0x80808080u, 0x80808080u, 0), 65536);
  EXPECT_EQ(device::dot4(0x80808080u, 0x7F7F7F7Fu, 5), 5 - 65024);
  EXPECT_EQ(device::dot4(0x04030201u, 0x01FF0101u, -7), 1 + 2 - 3 + 4 - 7);
  EXPECT_EQ(device::dot4(0x00000080u, 0x00000080u, 0x7FFFFFFF), std::numeric_limits<int>::min() + 16383) << "wraps";
}

TEST(Device, RoundsToInt) {
  constexpr int kMin = std::numeric_limits<int>::min();
  constexpr int kMax = std::numeric_limits<int>::max();
  EXPECT_EQ(device::to_int_rn(2.5f), 2);
  EXPECT_EQ(device::to_int_rn(-3.5f), -4);
  EXPECT_EQ(device::to_int_rn(NAN), 0);
  EXPECT_EQ(device::to_int_rn(INFINITY), kMax);
  EXPECT_EQ(device::to_int_rn(-INFINITY), kMin);
  EXPECT_EQ(device::to_int_rn(2147483648.0f), kMax);
  EXPECT_EQ(device::to_int_rn(-2147483648.0f), kMin);
  EXPECT_EQ(device::to_int_rn(2147483520.0f), 2147483520);
  EXPECT_EQ(device::to_int_rn(std::numeric_limits<double>::quiet_NaN()), kMin);
  EXPECT_EQ(device::to_int_rn(2147483647.5), kMax);
  EXPECT_EQ(device::to_int_rn(2147483646.5), 2147483646);
  EXPECT_EQ(device::to_int_rn(-2147483648.5), kMin);
  EXPECT_EQ(device::to_int_rn(-2147483647.5), kMin);
  EXPECT_EQ(device::to_int_rn(1e300), kMax);
  EXPECT_EQ(device::to_real<float>(16777217), 16777216.0f);
  EXPECT_EQ(device::to_real<double>(9007199254740993LL), 9007199254740992.0);
}

TEST(Device, ConvertsHalves) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float f = device::half_to_float(half);
    const unsigned exponent = bits >> 10 & 31;
    const unsigned fraction = bits & 1023;
    if (exponent == 31 && fraction != 0) {
      ASSERT_TRUE(std::isnan(f));
      ASSERT_EQ(device::float_to_half(f), 0x7FFF);
      continue;
    }
    const double size = exponent == 31  ? std::numeric_limits<double>::infinity()
                        : exponent == 0 ? std::ldexp(fraction, -24)
                                        : std::ldexp(1024 + fraction, static_cast<int>(exponent) - 25);
    ASSERT_EQ(f, bits >> 15 != 0 ? -size : size) << bits;
    ASSERT_EQ(device::float_to_half(f), half);
    // Halfway to the next one and one float to either side.
    if (exponent == 31) continue;
    const double step = std::ldexp(1.0, std::max(static_cast<int>(exponent), 1) - 25);
    const auto sign = static_cast<std::uint16_t>(bits & 0x8000);
    const auto rounded = [&](float magnitude) { return device::float_to_half(sign != 0 ? -magnitude : magnitude); };
    const auto tie = static_cast<float>(size + step / 2);
    ASSERT_EQ(rounded(tie), bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(rounded(std::nextafter(tie, 0.0f)), bits);
    ASSERT_EQ(rounded(std::nextafter(tie, 1e9f)), bits + 1);
  }
}

}  // namespace
}  // namespace kvant::simt
