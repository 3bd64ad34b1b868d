#include "quantize/feedback_factors.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/divide_up.h"
#include "base/float_environment.h"
#include "base/for_each_part.h"

namespace kvant::quantize {
namespace {

constexpr std::size_t kBlock = FeedbackFactors::kBlock;
// Columns of a product that are in a cache together.
constexpr std::size_t kStrip = 256;
// Numbers of H that are read at a time.
constexpr std::uint64_t kReadNumbers = 1 << 18;
constexpr double kMostDamping = 1;

// A matrix that is found from its last row to its first: H = R^T R with R lower. In place of each block of rows of H
// that of R. Only what is on and below the diagonal counts.
class Factorization {
 public:
  Factorization(const Stream& stream, const NetworkSteps& steps, std::size_t columns)
      : stream_(stream), steps_(steps), columns_(columns), products_(static_cast<std::size_t>(stream.threads())) {
    for (std::size_t first = 0; first < columns; first += kBlock) {
      const std::size_t end = std::min(first + kBlock, columns);
      rows_.emplace_back((end - first) * end);
    }
  }

  std::size_t blocks() const { return rows_.size(); }
  std::size_t first(std::size_t block) const { return block * kBlock; }
  std::size_t end(std::size_t block) const { return std::min(first(block) + kBlock, columns_); }
  std::size_t count(std::size_t block) const { return end(block) - first(block); }
  double* row(std::size_t k) {
    const std::size_t block = k / kBlock;
    return rows_[block].data() + (k - first(block)) * end(block);
  }
  std::vector<double>& rows(std::size_t block) { return rows_[block]; }

  // false: a pivot is not positive.
  Result<bool> run() {
    const base::DefaultFloatEnvironment environment;
    for (std::size_t block = blocks(); block-- > 0;) {
      if (!factor_corner(block)) return false;
      if (Status s = solve(block); !s.ok()) return s;
      if (Status s = take_from_those_before(block); !s.ok()) return s;
    }
    return true;
  }

 private:
  // The square on the diagonal: C = R^T R, column by column from the last.
  bool factor_corner(std::size_t block) {
    const std::size_t n = count(block), at = first(block);
    for (std::size_t k = n; k-- > 0;) {
      double* const own = row(at + k) + at;
      if (!(own[k] > 0)) return false;
      const double pivot = std::sqrt(own[k]);
      own[k] = pivot;
      for (std::size_t i = 0; i < k; ++i) own[i] /= pivot;
      for (std::size_t p = 0; p < k; ++p) {
        double* const other = row(at + p) + at;
        const double factor = -own[p];
        for (std::size_t i = 0; i <= p; ++i) other[i] = std::fma(factor, own[i], other[i]);
      }
    }
    return true;
  }

  // What is left of the square: H = C^T R, so R is the inverse of C^T times H.
  Status solve(std::size_t block) {
    const std::size_t n = count(block), at = first(block), stride = end(block);
    if (at == 0) return {};
    // T with T C^T = 1. Row by row, T[k, m] for m from k on: the product of row k with column m of C^T is 1 or 0.
    std::vector<double> inverse(n * n, 0.0);
    for (std::size_t k = 0; k < n; ++k) {
      double* const t = inverse.data() + k * n;
      for (std::size_t m = k; m < n; ++m) {
        double sum = m == k ? 1.0 : 0.0;
        const double* const c = row(at + m) + at;
        for (std::size_t i = k; i < m; ++i) sum = std::fma(-t[i], c[i], sum);
        t[m] = sum / c[m];
      }
    }
    return base::for_each_part(stream_, 0, base::parts_of(at, kStrip),
                               [&](std::size_t worker, std::uint64_t part) -> Status {
                                 const base::DefaultFloatEnvironment environment;
                                 const std::size_t column = part * kStrip, width = std::min(kStrip, at - column);
                                 double* const from = rows_[block].data() + column;
                                 std::vector<double>& out = room(worker);
                                 steps_.chain_products(inverse.data(), n, from, stride, n, n, width, out.data(), width);
                                 for (std::size_t k = 0; k < n; ++k)
                                   std::copy_n(out.data() + k * width, width, from + k * stride);
                                 return {};
                               });
  }

  // H - R^T R in the blocks before: those see what the block's errors leave to them.
  Status take_from_those_before(std::size_t block) {
    const std::size_t n = count(block), at = first(block), stride = end(block);
    std::vector<double> turned(at * n);  // R^T of the block
    for (std::size_t k = 0; k < n; ++k)
      for (std::size_t i = 0; i < at; ++i) turned[i * n + k] = rows_[block][k * stride + i];
    // The last ones are the longest: first, so that the threads end together.
    return base::for_each_part(stream_, 0, block, [&](std::size_t worker, std::uint64_t part) -> Status {
      const base::DefaultFloatEnvironment environment;
      const std::size_t other = block - 1 - part;
      std::vector<double>& out = room(worker);
      for (std::size_t column = 0; column < end(other); column += kStrip) {
        const std::size_t width = std::min(kStrip, end(other) - column);
        steps_.chain_products(turned.data() + first(other) * n, n, rows_[block].data() + column, stride, count(other),
                              n, width, out.data(), width);
        for (std::size_t k = 0; k < count(other); ++k) {
          double* const to = row(first(other) + k) + column;
          for (std::size_t i = 0; i < width; ++i) to[i] -= out[k * width + i];
        }
      }
      return {};
    });
  }

  std::vector<double>& room(std::size_t worker) {
    products_[worker].resize(kBlock * kStrip);
    return products_[worker];
  }

  const Stream& stream_;
  const NetworkSteps& steps_;
  std::size_t columns_;
  std::vector<std::vector<double>> rows_;
  std::vector<std::vector<double>> products_;  // of each thread
};

// All rows in order, some at a time: each(row, numbers of it).
Status read_all(const Stream& stream, std::uint64_t columns, const FeedbackFactors::ReadRows& read,
                const std::function<void(std::size_t row, const float* numbers)>& each) {
  const std::uint64_t at_once = std::max<std::uint64_t>(1, kReadNumbers / columns);
  std::vector<float> numbers;
  for (std::uint64_t first = 0; first < columns; first += at_once) {
    const std::uint64_t count = std::min(at_once, columns - first);
    numbers.resize(count * columns);
    if (Status s = read(first, numbers); !s.ok()) return s;
    const Status done = base::for_each_part(stream, 0, count, [&](std::size_t /*worker*/, std::uint64_t row) -> Status {
      const base::DefaultFloatEnvironment environment;
      each(first + row, numbers.data() + row * columns);
      return {};
    });
    if (!done.ok()) return done;
  }
  return {};
}

}  // namespace

Result<std::optional<FeedbackFactors>> FeedbackFactors::make(const Stream& stream, std::uint64_t columns,
                                                             const ReadRows& read, std::span<const float> s,
                                                             const FeedbackOptions& options) {
  const auto steps = NetworkSteps::select(stream);
  if (!steps.ok()) return steps.status();
  const base::DefaultFloatEnvironment environment;
  const std::size_t n = columns;
  // Of x / s.
  const auto number = [&](const float* row, std::size_t r, std::size_t c) {
    const auto value = static_cast<double>(row[c]);
    return s.empty() ? value : value / (static_cast<double>(s[r]) * static_cast<double>(s[c]));
  };
  std::vector<double> diagonal(n);
  if (Status done =
          read_all(stream, columns, read, [&](std::size_t r, const float* row) { diagonal[r] = number(row, r, r); });
      !done.ok())
    return done;
  FeedbackFactors factors;
  factors.order_.resize(n);
  std::iota(factors.order_.begin(), factors.order_.end(), 0u);
  if (options.by_size)
    std::stable_sort(factors.order_.begin(), factors.order_.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return diagonal[a] > diagonal[b]; });
  std::vector<std::uint32_t> place(n);  // of a column, in that order
  for (std::size_t k = 0; k < n; ++k) place[factors.order_[k]] = static_cast<std::uint32_t>(k);
  // An input that is always 0 moves nothing, and nothing can be said of its column.
  const double mean =
      std::accumulate(diagonal.begin(), diagonal.end(), 0.0) / static_cast<double>(std::max(n, std::size_t{1}));

  for (factors.damping_ = options.damping;; factors.damping_ = std::min(10 * factors.damping_, kMostDamping)) {
    Factorization factorization(stream, *steps, n);
    const double added = mean > 0 ? factors.damping_ * mean : 1;
    if (Status done = read_all(stream, columns, read,
                               [&](std::size_t r, const float* row) {
                                 const std::size_t k = place[r];
                                 double* const to = factorization.row(k);
                                 for (std::size_t i = 0; i <= k; ++i) to[i] = number(row, r, factors.order_[i]);
                                 to[k] += added;
                               });
        !done.ok())
      return done;
    const auto found = factorization.run();
    if (!found.ok()) return found.status();
    if (!*found) {
      if (factors.damping_ >= kMostDamping) return std::optional<FeedbackFactors>();
      continue;
    }
    for (std::size_t block = 0; block < factorization.blocks(); ++block) {
      std::vector<double>& rows = factorization.rows(block);
      std::vector<float>& made = factors.rows_.emplace_back(rows.size());
      const std::size_t stride = factorization.end(block);
      for (std::size_t k = 0; k < factorization.count(block); ++k) {
        const double* const from = rows.data() + k * stride;
        const std::size_t own = factorization.first(block) + k;
        for (std::size_t i = 0; i < own; ++i) made[k * stride + i] = static_cast<float>(from[i] / from[own]);
      }
      std::vector<double>().swap(rows);
    }
    return std::optional(std::move(factors));
  }
}

std::uint64_t FeedbackFactors::memory(std::uint64_t columns) {
  // Half a matrix in f64, and in f32 what was made of it while it goes; what is read at a time, and a block turned
  // around.
  return columns * (columns + kBlock) / 2 * 8 + columns * kBlock * 12 + kReadNumbers * 4 + columns * 4 + (4 << 20);
}

FeedbackFactors::Block FeedbackFactors::block(std::size_t index) const {
  const std::size_t first = index * kBlock, end = std::min(first + kBlock, order_.size());
  return {first, end - first, rows_[index].data(), end};
}

}  // namespace kvant::quantize
