// The benchmarks of each operator family.
#pragma once

namespace kvant::bench {

void register_elementwise();
void register_dynamic_range();
void register_linear();
void register_network_steps();

}  // namespace kvant::bench
