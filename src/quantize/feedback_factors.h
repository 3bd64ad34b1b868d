// What GPTQ rounds a weight by. Columns are rounded one after the other, and each is moved first by what the errors of
// those before it do to the layer's output, as far as its own input can make up for it.
//
// With H = Σ x xᵀ over the inputs, and damping · mean(diag H) added to its diagonal, the columns in the order in which
// they are rounded:
//
//   H = Gᵀ D G    G lower, with ones on its diagonal; D diagonal
//   target of column k = w[k] + Σ_{i<k} G[k, i] · (w[i] - ŵ[i])
//
// which is GPTQ without an inverse: the squared error of the outputs is Σ_k D[k] (target - ŵ)², one term for each
// column.
//
// The factors are found in f64, block by block from the last column to the first; every sum is a chain of fused
// multiply-adds in a fixed order (chain_products of kvant/network_steps.h). So they are the same bits for any number of
// threads and any instruction set. Where a pivot is not positive, the damping is ten times as large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kvant/network_steps.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "quantize/checkpoint_plan.h"

namespace kvant::quantize {

class FeedbackFactors {
 public:
  // Columns that are rounded between two products of matrices.
  static constexpr std::size_t kBlock = 128;

  // Rows of H from `row` on: whole ones. Called from one thread, for all rows in order, more than once.
  using ReadRows = std::function<Status(std::uint64_t row, std::span<float> to)>;
  // `s`: what smoothing divides the input by; empty: nothing.
  // Nothing: a pivot is not positive even with the whole mean added.
  static Result<std::optional<FeedbackFactors>> make(const Stream& stream, std::uint64_t columns, const ReadRows& read,
                                                     std::span<const float> s, const FeedbackOptions& options);
  // Bytes that make() takes at most.
  static std::uint64_t memory(std::uint64_t columns);

  std::size_t columns() const { return order_.size(); }
  // The column that is rounded k-th.
  std::span<const std::uint32_t> order() const { return order_; }
  // That the factors were found with.
  double damping() const { return damping_; }

  // G[k, i] of k in [first, first + count), i < k: factors[(k - first) * stride + i].
  struct Block {
    std::size_t first, count;
    const float* factors;
    std::size_t stride;
  };
  std::size_t blocks() const { return rows_.size(); }
  Block block(std::size_t index) const;

 private:
  FeedbackFactors() = default;

  std::vector<std::uint32_t> order_;
  std::vector<std::vector<float>> rows_;  // of each block: as many numbers in a row as columns up to its end
  double damping_ = 0;
};

}  // namespace kvant::quantize
