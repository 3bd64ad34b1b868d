// Tensors cut into segments such that each way of finding ranges is needed: by a thread, a warp, a block or many
// blocks; along rows and across them.
#pragma once

#include <vector>

#include "kvant/granularity.h"
#include "kvant/tensor.h"
#include "tests/cuda/execution.h"
#include "tests/support/dynamic_range_case.h"

namespace kvant::tests {

inline constexpr Data kAllData[] = {Data::normal,   Data::positive, Data::negative,
                                    Data::specials, Data::one_odd,  Data::any_bits};

struct SegmentPath {
  Shape shape;
  std::vector<Granularity> scopes;
};

inline std::vector<SegmentPath> segment_paths() {
  return {// Short segments. With groups of 1 and 3, packed codes of two segments share a byte.
          {{5, 389}, {PerGroup{1, 1}, PerGroup{1, 3}, PerGroup{1, 32}, PerGroup{1, 128}}},
          {{kMoreLinesThanAGrid, 3}, {PerToken{}, PerChannel{1}}},
          // Long ones.
          {{3, 5003}, {PerToken{}, PerChannel{0}, PerChannel{1}, PerGroup{1, 1000}}},
          {{70001}, {PerTensor{}, PerToken{}, PerGroup{0, 60000}, PerGroup{0, 60001}}},
          // Both the lines of a segment and the run in each of them are cut.
          {{2, 2, 20001}, {PerChannel{1}}},
          {{151, 203}, {PerTensor{}, PerChannel{1}, PerChannel{0}}},
          // A channel on the first, a middle and the last axis.
          {{6, 50, 41}, {PerChannel{0}, PerChannel{1}, PerChannel{2}, PerGroup{1, 8}, PerGroup{0, 4}}},
          // Groups over the outer axis, the last of them ragged or not.
          {{50, 137}, {PerGroup{0, 32}, PerGroup{0, 7}, PerGroup{0, 25}}},
          {{600, 5}, {PerChannel{1}, PerGroup{0, 256}}},
          // Blocks, ragged or not, in one matrix or several: rows that a warp, a thread or a block of threads goes
          // along, ones that are cut, packed codes that share a byte, blocks of whole rows and of single columns.
          {{50, 137}, {PerBlock{16, 32}, PerBlock{7, 3}, PerBlock{1, 20}, PerBlock{8, 1}, PerBlock{9, 200}}},
          {{3, 20, 40}, {PerBlock{8, 16}, PerBlock{100, 40}, PerBlock{20, 6}}},
          {{130, 600}, {PerBlock{128, 512}, PerBlock{65, 300}, PerBlock{130, 600}}},
          {{4, 5003}, {PerBlock{3, 2000}}},
          // Few channels of many lines: short runs whose many partial ranges are merged before codes are made, longer
          // ones that teams merge themselves, and narrow columns.
          {{300, 3, 4}, {PerChannel{1}}},
          {{70, 3, 130}, {PerChannel{1}}},
          {{2000, 16}, {PerChannel{1}, PerGroup{0, 700}}},
          // Many without an element.
          {{0, 3 * kMoreLinesThanAGrid}, {PerChannel{1}}}};
}

}  // namespace kvant::tests
