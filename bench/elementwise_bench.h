#pragma once

namespace kvant::bench {

// Registers every element-wise case; one name each: op/granularity/types/numerics/shape/threads.
void register_elementwise();

}  // namespace kvant::bench
