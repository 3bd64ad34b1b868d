// The search for the scale with the least squared error; compiled once for each instruction set. docs/numerics.md says
// which scales are tried, and in which order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/inline.h"
#include "core/weight_rounding_kernel.h"
#include "cpu/sixteen-inl.h"
#include "kvant/element.h"
#include "semantics/one_number.h"
#include "semantics/scale_formats.h"
#include "semantics/stored_scale.h"
#include "semantics/weight_rounding.h"

namespace kvant::cpu {

// Scales that are tried on the same weights. Columns are written as vectors and read number by number: a vector from
// memory that was just written number by number would have to wait for it.
struct ScalesToTry {
  static constexpr std::size_t kMost = 16;
  alignas(64) float scales[kMost];
  float reciprocals[kMost];
  float zero_points[kMost];
  float least_errors[kMost];  // no scale has a smaller error
  std::int32_t codes[kMost];  // of scales that are codes
  std::size_t count;
};

// Of weights that all count the same or not, for codes of one kind.
template <class Isa, class Numbers, bool kWeighed>
class ScaleSearch {
 public:
  using L = typename Isa::template Lanes<float>;

  static KVANT_INLINE float squared_error(const detail::WeighedWeights& s, const detail::CodeNumbers& n, float scale,
                                          float zero_point) {
    Trial one = {L::set(scale), semantics::reciprocal_tried<L>(L::set(scale)), numbers_under(n, L::set(zero_point))};
    try_on(s, one);
    return one.costs.total();
  }

  static KVANT_INLINE WeightRounding::Fit fit(const detail::WeighedWeights& s, const detail::CodeNumbers& n,
                                              float scale, float zero_point) {
    const F reciprocal = semantics::reciprocal_tried<L>(L::set(scale));
    const Numbers numbers = numbers_under(n, L::set(zero_point));
    auto products = Group::set(0), squares = Group::set(0);
    for_each_group(s, [&](const Group& w, const Group& m) KVANT_INLINE_LAMBDA {
      const auto number = [&](F v) KVANT_INLINE_LAMBDA { return semantics::number_tried<L>(v, reciprocal, numbers); };
      const auto add = [](F sum, F a, F b, F c) KVANT_INLINE_LAMBDA { return L::add(sum, weighed(L::mul(a, b), c)); };
      const auto d = Group::map(number, w);
      products = Group::map(add, products, w, d, m);
      squares = Group::map(add, squares, d, d, m);
    });
    return {products.total(), squares.total()};
  }

  // The best scales of segments that lie one after the other. Those of the next segment are listed before those of this
  // one are tried: the list is a chain of operations that wait for each other, and trying them fills the gaps. That
  // takes a fifth off groups of 16 and 32 weights.
  static KVANT_INLINE void best(const detail::WeighedWeights& first, std::size_t segments, const detail::CodeNumbers& n,
                                const WeightRounding::Form& form, WeightRounding::Scale* scales) {
    ScaleSearch searches[2] = {ScaleSearch(n, form), ScaleSearch(n, form)};
    if (segments != 0) searches[0].begin(first, 0);
    for (std::size_t i = 0; i < segments; ++i) {
      if (i + 1 < segments) searches[(i + 1) % 2].begin(first, i + 1);
      scales[i] = searches[i % 2].finish();
    }
  }

 private:
  using D = typename Isa::template Lanes<double>;
  using F = typename L::F;
  using I = typename L::I;
  using Group = Sixteen<L>;
  static constexpr std::size_t kWidth = L::kWidth;

  // ---- Weights, sixteen at a time ----

  // f(weights, importance). Weights beyond the end are 0, which every grid has: they cost nothing.
  template <class Function>
  static KVANT_INLINE void for_each_group(const detail::WeighedWeights& s, const Function& f) {
    for_each_sixteen<L>(s.count, [&](const auto& at) KVANT_INLINE_LAMBDA {
      const Group w = Group::map([](F v) KVANT_INLINE_LAMBDA { return Numbers::taken(v); }, at.get(s.weights, 0));
      if constexpr (kWeighed)
        f(w, at.get(s.importance, 0));
      else
        f(w, w);
    });
  }
  // Times 1 changes nothing.
  static KVANT_INLINE F weighed(F product, F importance) { return kWeighed ? L::mul(product, importance) : product; }

  static KVANT_INLINE F cost(F w, F importance, F scale, F reciprocal, const Numbers& numbers) {
    const F e = semantics::rounding_error<L>(w, scale, semantics::number_tried<L>(w, reciprocal, numbers));
    return weighed(L::mul(e, e), importance);
  }
  static KVANT_INLINE Numbers numbers_under(const detail::CodeNumbers& n, F zero_point) {
    if constexpr (Numbers::kIntegers)
      return {L::sub(L::set(n.lo), zero_point), L::sub(L::set(n.hi), zero_point)};
    else
      return Numbers(n.grid->f32);
  }

  // One scale, and what it has cost so far.
  struct Trial {
    F scale, reciprocal;
    Numbers numbers;
    Group costs = Group::set(0);

    KVANT_INLINE void add(const Group& w, const Group& importance) {
      const auto f = [&](F sum, F v, F m)
                         KVANT_INLINE_LAMBDA { return L::add(sum, cost(v, m, scale, reciprocal, numbers)); };
      costs = Group::map(f, costs, w, importance);
    }
  };
  // Weights are read once for all of them. Two are as many as registers hold.
  template <class... Trials>
  static KVANT_INLINE void try_on(const detail::WeighedWeights& s, Trials&... trials) {
    for_each_group(s, [&](const Group& w, const Group& m) KVANT_INLINE_LAMBDA { (trials.add(w, m), ...); });
  }

  // ---- The search ----

  KVANT_INLINE ScaleSearch(const detail::CodeNumbers& n, const WeightRounding::Form& form) : n_(n), form_(form) {}

  // Lists the scales of the i-th segment.
  KVANT_INLINE void begin(const detail::WeighedWeights& first, std::size_t i) {
    s_.weights = first.weights + i * first.count;
    s_.importance = kWeighed ? first.importance + i * first.count : nullptr;
    s_.count = first.count;
    find_extremes();
    if (has_codes())
      list_codes();
    else
      list_shares();
  }
  KVANT_INLINE WeightRounding::Scale finish() {
    // The first is the best, whatever it costs.
    error_ = __builtin_inff();
    best_ = 0;
    scale_ = tried_.scales[0];
    zero_point_ = tried_.zero_points[0];
    try_listed();
    if (has_codes()) return {scale_, 0, static_cast<std::uint8_t>(tried_.codes[best_])};
    if (lo_ == 0 && hi_ == 0) return {};
    improve();
    return {scale_, static_cast<std::int32_t>(zero_point_)};
  }

  KVANT_INLINE bool has_codes() const {
    return !Numbers::kIntegers && (form_.scale == ElementKind::e8m0 || form_.scale == ElementKind::e4m3);
  }
  KVANT_INLINE bool is_asymmetric() const { return Numbers::kIntegers && form_.asymmetric; }

  // The least and the largest weight as they are taken, or 0 where all are beyond it, and how much these two count.
  KVANT_INLINE void find_extremes() {
    auto below = Group::set(0), above = below, below_counts = below, above_counts = below;  // below: as negatives
    const auto larger = [](F a, F b) KVANT_INLINE_LAMBDA { return L::max(a, b); };
    const auto of_larger = [](F a, F b, F m, F n) KVANT_INLINE_LAMBDA { return L::select(L::le(a, b), n, m); };
    for_each_group(s_, [&](const Group& w, const Group& m) KVANT_INLINE_LAMBDA {
      if constexpr (kWeighed) above_counts = Group::map(of_larger, above, w, above_counts, m);
      above = Group::map(larger, above, w);
      if constexpr (Numbers::kIntegers) {
        const Group negative = Group::map([](F v) KVANT_INLINE_LAMBDA { return L::sub(L::set(0), v); }, w);
        if constexpr (kWeighed) below_counts = Group::map(of_larger, below, negative, below_counts, m);
        below = Group::map(larger, below, negative);
      }
    });
    hi_ = above.greatest();
    if constexpr (Numbers::kIntegers) lo_ = -below.greatest();
    if constexpr (kWeighed) {
      // In the lanes that have the largest weight, the largest importance: any would do.
      const auto of_largest = [](F most, F v, F m) KVANT_INLINE_LAMBDA { return L::masked(L::le(most, v), m); };
      hi_counts_ = Group::map(of_largest, Group::set(hi_), above, above_counts).greatest();
      lo_counts_ = Group::map(of_largest, Group::set(-lo_), below, below_counts).greatest();
    }
  }

  // Lists a vector of scales. Those that are judged have the costs of the extremes as the least error: all weights cost
  // no less, because costs are not negative and rounding keeps order. That spares a third to two thirds of the scales.
  KVANT_INLINE void list(std::size_t i, F scale, F zero_point, bool judged = true) {
    const F reciprocal = semantics::reciprocal_tried<L>(scale);
    L::put(tried_.scales + i, scale);
    L::put(tried_.reciprocals + i, reciprocal);
    L::put(tried_.zero_points + i, zero_point);
    F least = L::set(0);
    if (judged) {
      const Numbers numbers = numbers_under(n_, zero_point);
      least = cost(L::set(hi_), L::set(hi_counts_), scale, reciprocal, numbers);
      if constexpr (Numbers::kIntegers)
        least = L::add(least, cost(L::set(lo_), L::set(lo_counts_), scale, reciprocal, numbers));
    }
    L::put(tried_.least_errors + i, least);
  }
  // A single one.
  KVANT_INLINE void list_one(std::size_t i, float scale, float zero_point) {
    tried_.scales[i] = scale;
    tried_.reciprocals[i] = semantics::reciprocal_tried<semantics::OneNumber<float>>(scale);
    tried_.zero_points[i] = zero_point;
    tried_.least_errors[i] = 0;
  }

  // The first of those on the list with the least error becomes the best, if that is less than before.
  KVANT_INLINE bool try_listed() {
    const int better = best_of(s_, n_, tried_, error_);
    if (better < 0) return false;
    best_ = better;
    scale_ = tried_.scales[better];
    zero_point_ = tried_.zero_points[better];
    return true;
  }
  static int best_of(const detail::WeighedWeights& s, const detail::CodeNumbers& n, const ScalesToTry& tried,
                     float& error) {
    float least = error;
    int best = -1;
    const auto next = [&](std::size_t i) KVANT_INLINE_LAMBDA {
      while (i < tried.count && tried.least_errors[i] >= least) ++i;
      return i;
    };
    const Numbers any = numbers_under(n, L::set(0));
    const auto trial = [&](std::size_t i) KVANT_INLINE_LAMBDA {
      return Trial{L::broadcast(tried.scales + i), L::broadcast(tried.reciprocals + i),
                   Numbers::kIntegers ? numbers_under(n, L::broadcast(tried.zero_points + i)) : any};
    };
    // Without a branch, which nothing could foresee. NaN is not less.
    const auto judge = [&](std::size_t i, const Trial& one) KVANT_INLINE_LAMBDA {
      const float total = one.costs.total();
      best = total < least ? static_cast<int>(i) : best;
      least = total < least ? total : least;
    };
    for (std::size_t i = next(0); i < tried.count;) {
      const std::size_t j = next(i + 1);
      Trial first = trial(i);
      if (j < tried.count) {
        Trial second = trial(j);
        try_on(s, first, second);
        judge(i, first);
        judge(j, second);
        i = next(j + 1);
      } else {
        try_on(s, first);
        judge(i, first);
        i = j;
      }
    }
    error = least;
    return best;
  }

  KVANT_INLINE void list_codes() {
    const bool powers = form_.scale == ElementKind::e8m0;  // two: too few to judge
    const F largest = L::set(hi_), global = L::set(form_.global);
    const F plain = L::div(largest, L::set(static_cast<float>(n_.largest)));
    const I first = powers ? semantics::mx_scale<L>(largest, n_.largest_exponent, true).bits
                           : semantics::nvfp4_scale<L>(plain, global).bits;
    const semantics::CodesTried& codes = powers ? semantics::kPowersTried : semantics::kCodesTried;
    tried_.count = codes.count;
    for (std::size_t i = 0; i < codes.count; i += kWidth) {
      // One beyond the ends is one that was listed before, and is not better than itself.
      const I code = L::min_int(L::set_int(codes.most),
                                L::max_int(L::set_int(codes.least), L::add_int(first, L::get_int(codes.steps + i))));
      L::put_int(tried_.codes + i, code);
      list(i, powers ? semantics::e8m0_value<L>(code) : semantics::nvfp4_value<L>(code, global), L::set(0), !powers);
    }
  }

  KVANT_INLINE void list_shares() {
    const auto lo = static_cast<double>(lo_), hi = static_cast<double>(hi_), largest = hi > -lo ? hi : -lo;
    const auto share_of = [](double whole, std::size_t i) KVANT_INLINE_LAMBDA {
      return D::mul(D::set(whole), D::get(semantics::kScaleShares + i));
    };
    const F q_min = L::set(n_.lo), q_max = L::set(n_.hi);
    tried_.count = semantics::kScaleShareCount;
    for (std::size_t i = 0; i < tried_.count; i += kWidth) {
      if (is_asymmetric()) {
        const auto low = [&](std::size_t j) KVANT_INLINE_LAMBDA { return share_of(lo, j); };
        const auto step = [&](std::size_t j) KVANT_INLINE_LAMBDA {
          return semantics::asymmetric_step<D>(low(j), share_of(hi, j), D::set(static_cast<double>(n_.hi - n_.lo)));
        };
        const F scale = semantics::stored<L>(D::narrow(step, i), form_.scale);
        list(i, scale, semantics::zero_point_of<L>(D::narrow(low, i), scale, q_min, q_max));
      } else {
        const auto plain = [&](std::size_t j)
                               KVANT_INLINE_LAMBDA { return D::div(share_of(largest, j), D::set(n_.largest)); };
        list(i, semantics::stored<L>(D::narrow(plain, i), form_.scale), L::set(0));
      }
    }
  }

  // What follows from the best share.
  KVANT_INLINE void improve() {
    if (is_asymmetric()) {
      // One beyond the codes is that of the best, and is not better than itself.
      const float lower = zero_point_ - 1, upper = zero_point_ + 1;
      list_one(0, scale_, lower < n_.lo ? n_.lo : lower);
      list_one(1, scale_, upper > n_.hi ? n_.hi : upper);
      tried_.count = 2;
      try_listed();
    }
    tried_.count = 1;
    for (int i = 0; i < semantics::kScaleRefits; ++i) {
      const WeightRounding::Fit made = fit(s_, n_, scale_, zero_point_);
      const float quotient = made.products / made.squares;
      if (!(quotient > 0) || quotient > 0x1.FFFFFEp127f) return;
      const float scale = semantics::stored<semantics::OneNumber<float>>(quotient, form_.scale);
      // From a scale that is no better, or the same, nothing new follows.
      if (scale == scale_) return;
      list_one(0, scale, zero_point_);
      if (!try_listed()) return;
    }
  }

  detail::WeighedWeights s_;
  const detail::CodeNumbers& n_;
  const WeightRounding::Form& form_;
  float lo_ = 0, hi_ = 0, lo_counts_ = 1, hi_counts_ = 1;
  ScalesToTry tried_;
  // The best so far.
  float error_, scale_, zero_point_;
  int best_;
};

}  // namespace kvant::cpu
