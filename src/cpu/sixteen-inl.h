// Rows of numbers, a vector or sixteen numbers at a time. Sixteen are what sums have lanes, whatever the instruction
// set: element i is added in lane i % 16, and the lanes as a tree.
#pragma once

#include <cstddef>

#include "base/inline.h"

namespace kvant::cpu {

// Sixteen numbers in as many vectors as they take: two halves of half as many. Named members, because GCC 12 spills
// arrays of vectors to the stack.
template <class L, int kVectors = 16 / L::kWidth>
struct Sixteen {
  using C = typename L::C;
  using Half = Sixteen<L, kVectors / 2>;
  static constexpr std::size_t kHalf = static_cast<std::size_t>(L::kWidth) * kVectors / 2;
  Half low, high;

  static KVANT_INLINE Sixteen set(C c) { return {Half::set(c), Half::set(c)}; }
  template <class T>
  static KVANT_INLINE Sixteen get(const T* p) {
    return {Half::get(p), Half::get(p + kHalf)};
  }
  // The first `count`; `fill` in place of the others, whose memory is not touched.
  template <class T>
  static KVANT_INLINE Sixteen get_first(const T* p, std::size_t count, C fill) {
    if (count <= kHalf) return {Half::get_first(p, count, fill), Half::set(fill)};
    return {Half::get(p), Half::get_first(p + kHalf, count - kHalf, fill)};
  }
  KVANT_INLINE void put(C* p) const {
    low.put(p);
    high.put(p + kHalf);
  }
  KVANT_INLINE void put_first(C* p, std::size_t count) const {
    if (count <= kHalf) return low.put_first(p, count);
    low.put(p);
    high.put_first(p + kHalf, count - kHalf);
  }
  // f of the first vectors of each group, of the second, and so on.
  template <class Function, class... Group>
  static KVANT_INLINE Sixteen map(const Function& f, const Group&... group) {
    return {Half::map(f, group.low...), Half::map(f, group.high...)};
  }
  // Lane l and lane l + 8 are added, then l and l + 4, l + 2, l + 1.
  KVANT_INLINE C total() const {
    return Half::map([](auto a, auto b) KVANT_INLINE_LAMBDA { return L::add(a, b); }, low, high).total();
  }
  // Of numbers without NaN.
  KVANT_INLINE C greatest() const {
    return Half::map([](auto a, auto b) KVANT_INLINE_LAMBDA { return L::max(a, b); }, low, high).greatest();
  }
};

template <class L>
struct Sixteen<L, 1> {
  using C = typename L::C;
  typename L::F v;

  static KVANT_INLINE Sixteen set(C c) { return {L::set(c)}; }
  template <class T>
  static KVANT_INLINE Sixteen get(const T* p) {
    return {L::get(p)};
  }
  template <class T>
  static KVANT_INLINE Sixteen get_first(const T* p, std::size_t count, C fill) {
    if (count == 0) return set(fill);
    if constexpr (L::kWidth > 1)
      if (count < static_cast<std::size_t>(L::kWidth)) return {L::get_first(p, static_cast<int>(count), fill)};
    return get(p);
  }
  KVANT_INLINE void put(C* p) const { L::put(p, v); }
  KVANT_INLINE void put_first(C* p, std::size_t count) const {
    if (count == 0) return;
    if constexpr (L::kWidth > 1)
      if (count < static_cast<std::size_t>(L::kWidth)) return L::put_first(p, static_cast<int>(count), v);
    put(p);
  }
  template <class Function, class... Group>
  static KVANT_INLINE Sixteen map(const Function& f, const Group&... group) {
    return {f(group.v...)};
  }
  KVANT_INLINE C total() const { return L::total(v); }
  KVANT_INLINE C greatest() const { return L::greatest(v); }
};

// ---- Rows by sixteen ----

// Where in a row the next sixteen numbers are.
template <class L>
struct SixteenAt {
  std::size_t i;

  template <class T>
  KVANT_INLINE Sixteen<L> get(const T* row, typename L::C /*fill*/) const {
    return Sixteen<L>::get(row + i);
  }
  KVANT_INLINE void put(typename L::C* row, const Sixteen<L>& numbers) const { numbers.put(row + i); }
};
template <class L>
struct FewerAt {
  std::size_t i, count;

  template <class T>
  KVANT_INLINE Sixteen<L> get(const T* row, typename L::C fill) const {
    return Sixteen<L>::get_first(row + i, count, fill);
  }
  KVANT_INLINE void put(typename L::C* row, const Sixteen<L>& numbers) const { numbers.put_first(row + i, count); }
};

// f(place) for all of a row.
template <class L, class Function>
KVANT_INLINE void for_each_sixteen(std::size_t n, const Function& f) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) f(SixteenAt<L>{i});
  if (i < n) f(FewerAt<L>{i, n - i});
}

// The total of lanes that begin at 0 and become f(lane, number).
template <class L, class T, class Function>
KVANT_INLINE typename L::C sum_of(const T* row, std::size_t n, typename L::C fill, const Function& f) {
  auto sums = Sixteen<L>::set(0);
  for_each_sixteen<L>(n,
                      [&](const auto& at) KVANT_INLINE_LAMBDA { sums = Sixteen<L>::map(f, sums, at.get(row, fill)); });
  return sums.total();
}

// Of the numbers that are not NaN; -Inf where there are none.
template <class L>
KVANT_INLINE typename L::C greatest_of(const typename L::C* row, std::size_t n) {
  auto most = Sixteen<L>::set(-__builtin_inff());
  for_each_sixteen<L>(n, [&](const auto& at) KVANT_INLINE_LAMBDA {
    const auto larger = [](auto x, auto so_far) KVANT_INLINE_LAMBDA { return L::max(x, so_far); };
    most = Sixteen<L>::map(larger, at.get(row, -__builtin_inff()), most);
  });
  return most.greatest();
}

// ---- Rows by vectors, where nothing is summed ----

template <class L>
struct VectorAt {
  std::size_t i;

  template <class T>
  KVANT_INLINE typename L::F get(const T* row) const {
    return L::get(row + i);
  }
  KVANT_INLINE void put(typename L::C* row, typename L::F v) const { L::put(row + i, v); }
};
template <class L>
struct PartAt {
  std::size_t i;
  int count;

  template <class T>
  KVANT_INLINE typename L::F get(const T* row) const {
    return L::get_first(row + i, count, 0);
  }
  KVANT_INLINE void put(typename L::C* row, typename L::F v) const { L::put_first(row + i, count, v); }
};

template <class L, class Function>
KVANT_INLINE void for_each_vector(std::size_t n, const Function& f) {
  constexpr auto kWidth = static_cast<std::size_t>(L::kWidth);
  std::size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) f(VectorAt<L>{i});
  if constexpr (kWidth > 1)
    if (i < n) f(PartAt<L>{i, static_cast<int>(n - i)});
}

}  // namespace kvant::cpu
