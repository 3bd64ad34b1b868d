#include "quantize/tiles.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>

namespace kvant::quantize {
namespace {

std::uint64_t parts_of(std::uint64_t whole, std::uint64_t part) { return whole / part + (whole % part != 0 ? 1 : 0); }

}  // namespace

Tiling::Tiling(std::uint64_t rows, std::uint64_t columns, std::uint64_t element_bytes, std::uint64_t row_bytes,
               std::uint64_t tile_bytes)
    : rows_(rows), columns_(columns), tile_columns_(columns) {
  if (rows == 0 || columns == 0) return;
  const std::uint64_t fit = tile_bytes > row_bytes ? (tile_bytes - row_bytes) / element_bytes : 0;
  if (columns <= fit)
    tile_rows_ = std::clamp<std::uint64_t>(tile_bytes / (columns * element_bytes + row_bytes), 1, rows);
  else
    tile_columns_ = std::min(columns, std::max(fit / kBlock, std::uint64_t{1}) * kBlock);
  bands_ = parts_of(rows_, tile_rows_);
  pieces_ = parts_of(columns_, tile_columns_);
}

Tile Tiling::operator[](std::uint64_t i) const {
  Tile tile;
  tile.row = i / pieces_ * tile_rows_;
  tile.rows = std::min(tile_rows_, rows_ - tile.row);
  tile.column = i % pieces_ * tile_columns_;
  tile.columns = std::min(tile_columns_, columns_ - tile.column);
  return tile;
}

std::uint64_t Tiling::most_blocks() const { return tile_rows_ * Tile{0, 1, 0, tile_columns_}.blocks_per_row(); }

Status for_each_tile(const Stream& stream, std::uint64_t first, std::uint64_t last,
                     const std::function<Status(std::size_t worker, std::uint64_t i)>& work) {
  if (first >= last) return {};
  struct Shared {
    const std::function<Status(std::size_t, std::uint64_t)>& work;
    std::uint64_t last;
    std::atomic<std::uint64_t> next;
    std::mutex mutex;
    std::uint64_t refused_at = std::numeric_limits<std::uint64_t>::max();
    Status refusal = {};
  } shared{work, last, {first}, {}};
  // Each part is a worker that takes tiles while there are some: whoever is quick takes more.
  const Task task(
      [](const void* context, std::int64_t part) {
        auto& all = *static_cast<Shared*>(const_cast<void*>(context));
        for (std::uint64_t i = all.next.fetch_add(1); i < all.last; i = all.next.fetch_add(1)) {
          Status status = all.work(static_cast<std::size_t>(part), i);
          if (status.ok()) continue;
          const std::lock_guard lock(all.mutex);
          all.next.store(all.last);
          if (i >= all.refused_at) continue;
          all.refused_at = i;
          all.refusal = std::move(status);
        }
      },
      &shared);
  const auto workers = std::min(static_cast<std::uint64_t>(std::max(stream.threads(), 1)), last - first);
  if (Status s = stream.parallel_for(static_cast<std::int64_t>(workers), task); !s.ok()) return s;
  return shared.refusal;
}

}  // namespace kvant::quantize
