#include "quantize/memory_budget.h"

#include <algorithm>

#include "base/divide_up.h"
#include "base/refuse.h"
#include "format/element_dtype.h"
#include "format/scheme.h"
#include "format/weight_form.h"
#include "quantize/feedback_factors.h"
#include "quantize/feedback_rounding.h"
#include "quantize/tensor_stream.h"

namespace kvant::quantize {
namespace {

using base::invalid_problem;

// The program with its libraries: 7 MiB were measured with one thread, and 13 with eight, tiles included.
constexpr std::uint64_t kProgramMemory = std::uint64_t{16} << 20;
constexpr std::uint64_t kThreadMemory = std::uint64_t{256} << 10;
// Small enough for a core's share of the cache, so that a tile is read from memory once; large enough that calls to the
// system cost nothing beside it.
constexpr std::uint64_t kTileBytes = std::uint64_t{512} << 10;
constexpr std::uint64_t kMinTileBytes = std::uint64_t{64} << 10;

// What the run holds for each tensor: names in several lists, places, the index.
std::uint64_t metadata_memory(const io::Checkpoint& checkpoint) {
  std::uint64_t bytes = 0;
  for (const auto& [name, place] : checkpoint.tensors()) bytes += 1536 + 12 * name.size();
  return bytes;
}

// Two vectors of statistics at a time. Where scales are searched for, each thread has one, and a segment in f32.
std::uint64_t stats_memory(const CheckpointPlan& plan, bool has_statistics, std::uint64_t threads) {
  std::uint64_t at_once = 0, searching = 0;
  for (const TensorPlan& tensor : plan.tensors) {
    const format::Scheme* const scheme = plan.scheme_of(tensor);
    if (scheme == nullptr) continue;
    if (scheme->needs_statistics()) at_once = std::max(at_once, 8 * tensor.shape[1]);
    if (scheme->scale_choice != format::ScaleChoice::search) continue;
    const std::uint64_t segment = format::span_of(scheme->weights, tensor.shape[0], tensor.shape[1]).columns;
    searching = std::max(searching, 4 * segment + (has_statistics ? 4 * tensor.shape[1] : 0));
  }
  return at_once + threads * searching;
}

// GPTQ: the factors of one input at a time, and rows of each thread.
std::uint64_t feedback_memory(const CheckpointPlan& plan, std::uint64_t threads) {
  std::uint64_t factors = 0, rows = 0;
  for (const TensorPlan& tensor : plan.tensors) {
    if (!tensor.has_feedback) continue;
    const std::uint64_t columns = tensor.shape[1];
    const format::ScaleSpan span = format::span_of(plan.scheme_of(tensor)->weights, tensor.shape[0], columns);
    const std::uint64_t groups = base::parts_of(columns, span.columns);
    factors = std::max(factors, FeedbackFactors::memory(columns));
    // Also weights as they are stored and as numbers, their codes, and what goes with a scale.
    rows = std::max(rows, FeedbackRounding::memory(FeedbackRounding::kRows, columns, groups) +
                              FeedbackRounding::kRows * (columns * (8 + 4 + 2) + WeightTile::memory(groups)));
  }
  return factors + threads * rows;
}

// How few weights share a scale anywhere.
std::uint64_t min_span(const CheckpointPlan& plan) {
  std::uint64_t span = 64;
  for (const TensorPlan& tensor : plan.tensors)
    if (const format::Scheme* scheme = plan.scheme_of(tensor))
      span = std::min(span, format::span_of(scheme->weights, tensor.shape[0], tensor.shape[1]).columns);
  return std::max(span, std::uint64_t{1});
}

// The least that tiles may be.
std::uint64_t min_tile_bytes(const CheckpointPlan& plan) {
  std::uint64_t bytes = kMinTileBytes;
  for (const TensorPlan& tensor : plan.tensors)
    if (const format::Scheme* scheme = plan.scheme_of(tensor))
      bytes = std::max(bytes, least_tile_bytes(format::weight_form(*scheme, tensor.dtype), tensor.shape[1]));
  return bytes;
}

std::uint64_t smoothing_memory(const io::Checkpoint& checkpoint, const CheckpointPlan& plan, std::uint64_t threads) {
  std::uint64_t kept = 0, at_once = 0;
  for (const SmoothedGroup& group : plan.smoothed) {
    const std::uint64_t channels = checkpoint.find(group.norm + ".weight")->shape[0];
    kept += 4 * channels;
    at_once = std::max(at_once, channels * (64 + 8 * threads + 8 * group.readers.size()));
  }
  return kept + at_once;
}

// Of what was asked for, by what it holds in memory.
std::string what_takes_less(const CheckpointPlan& plan) {
  if (std::ranges::any_of(plan.tensors, &TensorPlan::has_feedback))
    return ", or leave out --method gptq, which holds the Hessian of an input";
  if (min_tile_bytes(plan) > kMinTileBytes && std::ranges::any_of(plan.schemes, [](const format::Scheme& s) {
        return s.scale_choice == format::ScaleChoice::search;
      }))
    return ", or use --scale minmax, which reads groups in pieces";
  return {};
}

std::uint64_t megabytes_up(std::uint64_t bytes) { return (bytes + (1 << 20) - 1) >> 20; }

}  // namespace

Status check_names_fit(const io::Checkpoint& checkpoint, const QuantizeOptions& options) {
  const std::uint64_t needed = kProgramMemory + metadata_memory(checkpoint);
  if (needed <= options.max_memory || options.max_memory < kMinMaxMemory) return {};
  return invalid_problem("{}: the names of {} tensors need {}M of memory, --max-memory allows {}M: raise it",
                         io::printable_path(options.input), checkpoint.tensors().size(), megabytes_up(needed),
                         options.max_memory >> 20);
}

Result<MemoryBudget> memory_budget(const io::Checkpoint& checkpoint, const CheckpointPlan& plan,
                                   const QuantizeOptions& options, int thread_count) {
  const auto threads = static_cast<std::uint64_t>(thread_count);
  const std::uint64_t fixed = kProgramMemory + threads * kThreadMemory + metadata_memory(checkpoint) +
                              stats_memory(plan, options.stats.has_value(), threads) +
                              smoothing_memory(checkpoint, plan, threads) + feedback_memory(plan, threads);
  const std::uint64_t span = min_span(plan);
  const std::uint64_t least = min_tile_bytes(plan);
  const std::uint64_t needed = fixed + threads * worker_memory(least, span);
  if (options.max_memory < kMinMaxMemory)
    return invalid_problem("--max-memory is {} bytes, must be at least {}M", options.max_memory, kMinMaxMemory >> 20);
  if (options.max_memory < needed)
    return invalid_problem("{}: {} tensors on {} threads need {}M of memory, --max-memory allows {}M: raise it{}{}",
                           io::printable_path(checkpoint.path()), plan.tensors.size(), threads, megabytes_up(needed),
                           options.max_memory >> 20, threads > 1 ? ", use fewer --threads" : "", what_takes_less(plan));
  std::uint64_t tile_bytes = kTileBytes;
  while (fixed + threads * worker_memory(tile_bytes, span) > options.max_memory)
    tile_bytes = std::max(tile_bytes / 2, least);
  return MemoryBudget{tile_bytes, fixed + threads * worker_memory(tile_bytes, span)};
}

}  // namespace kvant::quantize
