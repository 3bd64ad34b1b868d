#include "cpu/segments.h"

#include <numeric>

#include "base/divide_up.h"

namespace kvant::cpu {
namespace {

// A cell should stay in L1 together with what comes next, but be worth the calls it takes; a cell that cannot be that
// small must at least stay in L2.
constexpr std::int64_t kNearBytes = 16 << 10;
constexpr std::int64_t kHotBytes = 256 << 10;
// Stripes narrower than this make memory fetch too much that nobody asked for.
constexpr std::int64_t kStripeBytes = 1024;

// Partial ranges: parts large enough to be worth a thread's while, few enough that merging is cheap.
constexpr std::int64_t kSplitElements = 1 << 18;
constexpr std::int64_t kMaxChunks = 64;
constexpr std::int64_t kMaxPieces = 256;
constexpr std::int64_t kMinColumnLines = 8;  // else partial ranges of columns are as large as what they were found in

using base::divide_up;

std::int64_t round_down(std::int64_t a, std::int64_t to) { return a / to * to; }

void find_units(Segments& s, const Granularity& scope) {
  const detail::Runs& r = s.runs;
  s.unit_lines = r.lines;
  s.lines_begin_alike = true;
  switch (scope.kind()) {
    case GranularityKind::tensor: break;
    case GranularityKind::token: s.unit_lines = 1; break;
    case GranularityKind::channel:
      if (r.middle_step == 0) break;  // every line has all channels
      if (r.lines == r.middle_count * r.inner_count)
        s.unit_lines = r.inner_count;  // lines of one channel follow each other
      else
        s.lines_begin_alike = false;
      break;
    case GranularityKind::group:
    case GranularityKind::block:
      s.unit_lines = r.middle_step == 0 ? 1 : r.group * r.inner_count;
      s.lines_begin_alike = r.inner_step == 0;
      break;
  }
  const bool ragged_units =
      (scope.kind() == GranularityKind::group || scope.kind() == GranularityKind::block) && r.middle_step != 0;
  s.unit_period = ragged_units ? r.middle_count * r.inner_count : r.lines;
  s.units = r.lines / s.unit_period * divide_up(s.unit_period, s.unit_lines);
  s.unit_parameters = s.parameters / s.units;
}

// Lines of several runs that can be read as they lie and still be in the last cache afterwards, if there are enough
// units for the threads: 4096 x 4096 f32 to s8 in blocks of 128 x 128 takes 4.6 ms so, and took 8.8 in stripes.
bool units_are_better_whole(const Segments& s, std::int64_t unit_bytes) {
  constexpr std::int64_t kSharedBytes = 4 << 20, kManyUnits = 16;
  return s.runs.run > 1 && s.unit_lines > 1 && s.units >= kManyUnits && unit_bytes <= kSharedBytes &&
         s.unit_parameters <= kMaxCellParameters;
}

Cells find_cells(const Segments& s, std::int64_t element_bytes, int per_byte) {
  const detail::Runs& r = s.runs;
  const std::int64_t unit_bytes = s.unit_lines * r.length * element_bytes;
  if (unit_bytes <= kNearBytes && s.unit_parameters <= kMaxCellParameters) {
    const std::int64_t units =
        std::clamp<std::int64_t>(std::min(kNearBytes / unit_bytes, kMaxCellParameters / s.unit_parameters), 1, s.units);
    return {divide_up(s.units, units), units, 1, r.length};
  }
  if (units_are_better_whole(s, unit_bytes)) return {s.units, 1, 1, r.length};
  if (s.lines_begin_alike) {
    // Whole runs, in whole bytes of codes; columns in whole blocks.
    const std::int64_t quantum = r.run == 1 ? 64 : std::lcm<std::int64_t, std::int64_t>(r.run, per_byte);
    const std::int64_t target = s.unit_lines == 1 ? kNearBytes : kHotBytes;
    std::int64_t piece = round_down(target / (s.unit_lines * element_bytes), quantum);
    piece = std::min(piece, round_down(kMaxCellParameters * r.run, quantum));
    if (s.unit_lines == 1 && piece == 0) piece = quantum;
    const bool fits = piece != 0 && s.unit_lines * piece * element_bytes <= kHotBytes;
    const bool wide = s.unit_lines == 1 || piece >= r.length || piece * element_bytes >= kStripeBytes;
    if (fits && wide) {
      if (piece >= r.length) {
        if (s.unit_parameters <= kMaxCellParameters) return {s.units, 1, 1, r.length};
      } else {
        const std::int64_t pieces = divide_up(r.length, piece);
        return {s.units * pieces, 1, pieces, piece};
      }
    }
  }
  if (unit_bytes <= kHotBytes && s.unit_parameters <= kMaxCellParameters) return {s.units, 1, 1, r.length};
  return {};
}

Split find_split(const Segments& s) {
  const detail::Runs& r = s.runs;
  Split split;
  split.piece = r.length;
  if (s.lines_begin_alike && r.length >= 2 * kSplitElements) {
    constexpr std::int64_t kPage = 4096;
    split.piece = divide_up(std::max(kSplitElements, divide_up(r.length, kMaxPieces)), kPage) * kPage;
    split.pieces = divide_up(r.length, split.piece);
  }
  split.chunk_lines = s.unit_lines;
  split.chunks = 1;
  if (s.units == 1) {
    const std::int64_t least = r.run == 1 ? kMinColumnLines : 1;
    split.chunk_lines = std::max({least, divide_up(r.lines, kMaxChunks), kSplitElements / split.piece});
    split.chunks = divide_up(r.lines, split.chunk_lines);
  }
  split.chunk_slots = s.unit_parameters + split.pieces - 1;
  return split;
}

// `element_bytes` of the input; `per_byte` elements of the output, which is entered at whole bytes only.
Segments plan_segments(const detail::Runs& runs, const Granularity& scope, std::int64_t elements,
                       std::int64_t parameters, std::int64_t element_bytes, int per_byte) {
  Segments s;
  s.runs = runs;
  s.elements = elements;
  s.parameters = parameters;
  if (elements == 0) return s;
  find_units(s, scope);
  s.cells = find_cells(s, element_bytes, per_byte);
  if (s.cells.count == 0) s.split = find_split(s);
  return s;
}

}  // namespace

SegmentedTensor::SegmentedTensor(const detail::SegmentProblem& p) : row_length(p.shape.row_length()), input(p.input) {
  const std::int64_t elements = *p.shape.element_count();
  const std::int64_t parameters = *p.parameter_shape.element_count();
  const int per_byte = p.output ? elements_per_byte(*p.output) : 1;
  const detail::Runs row_runs = core::row_runs(p.shape, p.scope);
  const bool gaps_anyway = row_length % per_byte != 0;
  const auto plan = [&](const detail::Runs& runs) {
    return plan_segments(runs, p.scope, elements, parameters, row_bytes(input, 1), per_byte);
  };
  dense = plan(gaps_anyway ? row_runs : core::dense_runs(p.shape, p.scope));
  with_gaps = plan(row_runs);
}

std::size_t SegmentedTensor::workspace_bytes() const {
  const std::int64_t slots = std::max(dense.partial_slots(), with_gaps.partial_slots());
  if (slots == 0) return 0;
  constexpr std::size_t kAlignment = 64;
  return 2 * static_cast<std::size_t>(slots) * compute_bytes() + kAlignment;
}

RangeWork SegmentedTensor::range_work(const Segments& segments, const detail::Rows& x, bool large) const {
  return {.x = x.data,
          .x_stride = line_stride(segments.runs, input, x),
          .fetch_ahead = large && segments.cells.count == 0 ? kFetchAhead : 0,
          .runs = segments.runs};
}

}  // namespace kvant::cpu
