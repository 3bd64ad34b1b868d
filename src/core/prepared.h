// What a kernel works out about a problem at select(), for every run() after it.
#pragma once

#include <cstddef>
#include <memory>

namespace kvant::detail {

class Prepared {
 public:
  virtual ~Prepared() = default;
  virtual std::size_t workspace_size() const = 0;
};

// The same for a tensor that a backend has cut into pieces.
template <class Tensor>
struct PreparedTensor : Prepared {
  template <class Problem>
  explicit PreparedTensor(const Problem& problem) : tensor(problem) {}
  std::size_t workspace_size() const override { return tensor.workspace_bytes(); }

  template <class Problem>
  static std::unique_ptr<const Prepared> prepare(const Problem& problem) {
    return std::make_unique<const PreparedTensor>(problem);
  }

  Tensor tensor;
};

}  // namespace kvant::detail
