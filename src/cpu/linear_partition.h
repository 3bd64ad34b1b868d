// How the product of a linear layer is cut into parts for the stream's threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/divide_up.h"
#include "base/float_environment.h"
#include "cpu/linear_kernel.h"

namespace kvant::cpu {

// What a product is made of: panels of so many columns, tiles of so many rows, and how many multiplications are worth
// waking a thread for.
struct LinearGrain {
  std::int64_t panel_columns;
  std::int64_t tile_rows;
  std::int64_t min_products;
};

// All rows by some panels, or some rows too where panels are few.
struct LinearPartition {
  std::int64_t panels;
  std::int64_t rows;
  std::int64_t panels_per_part;
  std::int64_t rows_per_part;

  LinearPartition(const LinearGrain& grain, std::int64_t row_count, std::int64_t columns, std::int64_t depth,
                  int threads)
      : panels(base::divide_up(columns, grain.panel_columns)), rows(row_count) {
    constexpr std::int64_t kPartsPerThread = 12;
    std::int64_t products = 0;
    const bool endless = __builtin_mul_overflow(rows * columns, depth, &products);
    const std::int64_t worth = endless ? threads * kPartsPerThread : products / grain.min_products;
    const std::int64_t wanted = threads == 1 ? 1 : std::clamp<std::int64_t>(worth, 1, threads * kPartsPerThread);
    const std::int64_t panel_parts = std::min(wanted, panels);
    const std::int64_t row_parts =
        std::clamp<std::int64_t>(wanted / panel_parts, 1, base::divide_up(rows, grain.tile_rows));
    panels_per_part = base::divide_up(panels, panel_parts);
    rows_per_part = base::divide_up(base::divide_up(rows, row_parts), grain.tile_rows) * grain.tile_rows;
  }

  std::int64_t row_parts() const { return base::divide_up(rows, rows_per_part); }
  std::int64_t parts() const { return base::divide_up(panels, panels_per_part) * row_parts(); }
  LinearPart part(std::int64_t index) const {
    const std::int64_t panel = index / row_parts() * panels_per_part;
    const std::int64_t row = index % row_parts() * rows_per_part;
    return {panel, std::min(panel + panels_per_part, panels), row, std::min(row + rows_per_part, rows)};
  }
};

// All parts of a product on the stream's threads.
template <class Kernel, class Work>
Status multiply(const Stream& stream, const Kernel& kernel, const Work& work, const LinearPartition& partition) {
  struct Launch {
    const Kernel* kernel;
    const Work* work;
    const LinearPartition* partition;

    static void run_part(const void* context, std::int64_t index) {
      const Launch& l = *static_cast<const Launch*>(context);
      const base::DefaultFloatEnvironment environment;
      l.kernel->run(*l.work, l.partition->part(index));
    }
  };
  const Launch launch{&kernel, &work, &partition};
  return stream.parallel_for(partition.parts(), Task(&Launch::run_part, &launch));
}

}  // namespace kvant::cpu
