// What a kernel works out about a problem at select(), for every run() after it.
#pragma once

#include <cstddef>

namespace kvant::detail {

class Prepared {
 public:
  virtual ~Prepared() = default;
  virtual std::size_t workspace_size() const = 0;
};

}  // namespace kvant::detail
