#include "format/quantized_layers.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "base/divide_up.h"
#include "base/refuse.h"
#include "base/text.h"
#include "format/compressed_tensors.h"
#include "format/element_dtype.h"
#include "format/weight_form.h"

namespace kvant::format {
namespace {

using base::invalid_problem;
using io::printable;

// One module of a quantized checkpoint, tensor by tensor.
class LayerFinder {
 public:
  LayerFinder(const io::Checkpoint& checkpoint, const Scheme& scheme, std::vector<std::string>& problems)
      : checkpoint_(checkpoint), scheme_(scheme), problems_(problems) {}

  std::optional<QuantizedLayer> find(const std::string& module) {
    const std::size_t problems_before = problems_.size();
    look_for_all(module);
    const bool in_words = scheme_.spec().weights.storage == Storage::words;
    const auto linear = in_words ? shape_of_words() : shape_of_elements();
    for (const TensorKind kind : {TensorKind::scales, TensorKind::zero_points})
      if (linear && at(kind)) check(kind, *linear);
    for (const TensorKind kind : {TensorKind::input_scale, TensorKind::input_zero_point})
      if (at(kind)) check(kind, {});
    if (!linear || problems_.size() != problems_before) return std::nullopt;
    QuantizedLayer layer;
    layer.module = module;
    layer.rows = linear->rows;
    layer.columns = linear->columns;
    layer.code = scheme_.spec().weights.code;
    layer.storage = scheme_.spec().weights.storage;
    layer.group_size = columns_of_a_scale(scheme_, linear->columns);
    layer.codes = at(in_words ? TensorKind::packed_codes : TensorKind::codes)->place;
    layer.scales = at(TensorKind::scales)->place;
    if (const auto& found = at(TensorKind::zero_points)) layer.zero_points = found->place;
    if (const auto& found = at(TensorKind::input_scale)) layer.input_scale = found->place;
    return layer;
  }

 private:
  struct Found {
    io::TensorPlace place;
    const io::TensorInfo* info;
  };

  template <class... Args>
  void problem(std::size_t shard, fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back(fmt::format("{}: {}", printable(checkpoint_.shard_name(shard)),
                                    fmt::format(format, std::forward<Args>(args)...)));
  }

  // What the scheme has, or nothing where it is missing.
  const std::optional<Found>& at(TensorKind kind) const { return found_[static_cast<std::size_t>(kind)]; }

  std::optional<Found> look(const std::string& module, const TensorSpec& spec) const {
    const auto it = checkpoint_.tensors().find(fmt::format("{}{}", module, spec.suffix));
    if (it == checkpoint_.tensors().end()) return std::nullopt;
    return Found{it->second, &checkpoint_.at(it->second)};
  }

  // First everything that must not be there, then everything that must.
  void look_for_all(const std::string& module) {
    for (const TensorSpec& spec : tensor_specs())
      if (const std::string why = why_absent(spec.kind, scheme_); !why.empty())
        if (const auto found = look(module, spec))
          problem(found->place.shard, "tensor '{}' must not be there: {}", printable(found->info->name), why);
    found_.assign(tensor_specs().size(), std::nullopt);
    for (const TensorSpec& spec : tensor_specs()) {
      if (!why_absent(spec.kind, scheme_).empty()) continue;
      auto& found = found_[static_cast<std::size_t>(spec.kind)] = look(module, spec);
      if (!found)
        problems_.push_back(fmt::format("{}: tensor '{}{}' is missing: {}; quantize the checkpoint again",
                                        printable(checkpoint_.path().string()), printable(module), spec.suffix,
                                        spec.needed));
    }
  }

  bool check(TensorKind kind, const LinearShape& linear) {
    const auto& [place, info] = *at(kind);
    const std::span<const io::DType> dtypes = dtypes_of(kind, scheme_);
    if (std::find(dtypes.begin(), dtypes.end(), info->dtype) == dtypes.end()) {
      std::vector<std::string_view> names;
      for (const io::DType dtype : dtypes) names.push_back(io::name(dtype));
      problem(place.shard, "tensor '{}' holds {}, must hold {}", printable(info->name), io::name(info->dtype),
              base::joined(names, " or "));
      return false;
    }
    const std::vector<std::uint64_t> shape = shape_of(kind, scheme_, linear);
    if (info->shape == shape) return true;
    problem(place.shard, "tensor '{}' has shape {}, must have {}", printable(info->name), base::bracketed(info->shape),
            base::bracketed(shape));
    return false;
  }

  bool is_matrix(TensorKind kind) {
    const auto& [place, info] = *at(kind);
    const io::DType dtype = dtypes_of(kind, scheme_).front();
    if (info->dtype == dtype && info->shape.size() == 2) return true;
    problem(place.shard, "tensor '{}' is {} {}, must be {} with 2 dimensions", printable(info->name),
            io::name(info->dtype), base::bracketed(info->shape), io::name(dtype));
    return false;
  }

  std::optional<LinearShape> shape_of_elements() {
    if (!at(TensorKind::codes) || !is_matrix(TensorKind::codes)) return std::nullopt;
    const std::vector<std::uint64_t>& shape = at(TensorKind::codes)->info->shape;
    return LinearShape{shape[0], shape[1]};
  }

  // The last word of a row may not be full, so that X.weight_shape has the last word.
  std::optional<LinearShape> shape_of_words() {
    const auto& codes = at(TensorKind::packed_codes);
    const auto& shape = at(TensorKind::weight_shape);
    if (!codes || !shape || !is_matrix(TensorKind::packed_codes) || !check(TensorKind::weight_shape, {}))
      return std::nullopt;
    std::array<std::int64_t, 2> sizes = {};
    if (Status s = checkpoint_.read(shape->place, 0, std::as_writable_bytes(std::span(sizes))); !s.ok()) {
      problems_.emplace_back(s.message());
      return std::nullopt;
    }
    const LinearShape linear{static_cast<std::uint64_t>(sizes[0]), static_cast<std::uint64_t>(sizes[1])};
    if (sizes[0] < 0 || sizes[1] < 0 || codes->info->shape != shape_of(TensorKind::packed_codes, scheme_, linear)) {
      problem(shape->place.shard,
              "tensor '{}' says [{}, {}], which does not fit weight_packed {} with {} codes per word",
              printable(shape->info->name), sizes[0], sizes[1], base::bracketed(codes->info->shape), kPerWord);
      return std::nullopt;
    }
    const std::uint64_t group = columns_of_a_scale(scheme_, linear.columns);
    if (group == 0 || linear.columns % group == 0) return linear;
    problem(shape->place.shard, "tensor '{}' says in_features {}, which is not a multiple of the group size {}",
            printable(shape->info->name), linear.columns, group);
    return std::nullopt;
  }

  const io::Checkpoint& checkpoint_;
  const Scheme& scheme_;
  std::vector<std::string>& problems_;
  std::vector<std::optional<Found>> found_;  // by kind
};

template <class T>
T* fit(std::vector<T>& buffer, std::uint64_t count) {
  if (buffer.size() < count) buffer.resize(static_cast<std::size_t>(count));
  return buffer.data();
}

Status read_codes(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row, std::uint64_t count,
                  std::uint64_t column, std::uint64_t columns, LayerRows& rows) {
  std::int8_t* codes = fit(rows.codes, count * columns);
  const bool whole = columns == layer.columns;
  if (layer.storage == Storage::elements) {
    // Whole rows follow each other in the file.
    const std::uint64_t reads = whole ? 1 : count, length = whole ? count * columns : columns;
    for (std::uint64_t r = 0; r < reads; ++r)
      if (Status s = checkpoint.read(layer.codes, (row + r) * layer.columns + column,
                                     std::as_writable_bytes(std::span(codes + r * columns, length)));
          !s.ok())
        return s;
    return {};
  }
  const std::uint64_t row_words = base::parts_of(layer.columns, kPerWord);
  const std::uint64_t words = base::parts_of(columns, kPerWord);
  std::byte* bytes = fit(rows.bytes, 4 * words * (whole ? count : 1));
  if (whole)
    if (Status s = checkpoint.read(layer.codes, 4 * row * row_words, std::span(bytes, 4 * words * count)); !s.ok())
      return s;
  for (std::uint64_t r = 0; r < count; ++r) {
    if (!whole)
      if (Status s = checkpoint.read(layer.codes, 4 * ((row + r) * row_words + column / kPerWord),
                                     std::span(bytes, 4 * words));
          !s.ok())
        return s;
    unpack_codes(bytes + (whole ? 4 * words * r : 0), columns, codes + r * columns);
  }
  return {};
}

Status read_zero_points(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row,
                        std::uint64_t count, LayerRows& rows) {
  std::int8_t* zero_points = fit(rows.zero_points, count * rows.groups);
  if (!layer.zero_points) {
    std::fill_n(zero_points, count * rows.groups, std::int8_t{0});
    return {};
  }
  std::byte* bytes = fit(rows.bytes, 4 * rows.groups);
  for (std::uint64_t r = 0; r < count; ++r) {
    // Eight rows share a row of words.
    if (r == 0 || (row + r) % kPerWord == 0)
      if (Status s = checkpoint.read(*layer.zero_points, 4 * ((row + r) / kPerWord * layer.groups() + rows.first_group),
                                     std::span(bytes, 4 * rows.groups));
          !s.ok())
        return s;
    for (std::uint64_t g = 0; g < rows.groups; ++g) {
      std::uint32_t word;
      std::memcpy(&word, bytes + 4 * g, sizeof word);
      zero_points[r * rows.groups + g] = unpack_zero_point(word, row + r);
    }
  }
  return {};
}

}  // namespace

std::vector<QuantizedLayer> find_quantized_layers(const io::Checkpoint& checkpoint, const QuantizationConfig& config,
                                                  std::vector<std::string>& problems) {
  std::set<std::string, std::less<>> modules;
  for (const io::SafetensorsFile& shard : checkpoint.shards())
    for (const io::TensorInfo& tensor : shard.tensors())
      if (const auto module = module_of_quantized(tensor)) modules.emplace(*module);
  std::vector<QuantizedLayer> layers;
  LayerFinder finder(checkpoint, config.scheme, problems);
  for (const std::string& module : modules)
    if (auto layer = finder.find(module)) layers.push_back(std::move(*layer));
  return layers;
}

Result<std::vector<QuantizedLayer>> find_quantized_layers(const io::Checkpoint& checkpoint,
                                                          const QuantizationConfig& config) {
  std::vector<std::string> problems;
  auto layers = find_quantized_layers(checkpoint, config, problems);
  if (!problems.empty()) return invalid_problem("{}", problems[0]);
  return layers;
}

Status read_rows(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row, std::uint64_t count,
                 LayerRows& rows) {
  return read_rows(checkpoint, layer, row, count, 0, layer.columns, rows);
}

Status read_rows(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row, std::uint64_t count,
                 std::uint64_t column, std::uint64_t columns, LayerRows& rows) {
  if (row > layer.rows || count > layer.rows - row || column % kPerWord != 0 || column > layer.columns ||
      columns > layer.columns - column)
    return invalid_problem("layer '{}' of {} rows and {} columns: rows {} + {} and columns {} + {} are outside it",
                           printable(layer.module), layer.rows, layer.columns, row, count, column, columns);
  rows.first_group = 0;
  rows.groups = 0;
  if (count == 0 || columns == 0) return {};
  if (Status s = read_codes(checkpoint, layer, row, count, column, columns, rows); !s.ok()) return s;
  rows.first_group = column / layer.group_size;
  rows.groups = (column + columns - 1) / layer.group_size - rows.first_group + 1;
  float* scales = fit(rows.scales, count * rows.groups);
  const bool whole = rows.groups == layer.groups();
  for (std::uint64_t r = 0; r < (whole ? 1 : count); ++r)
    if (Status s =
            read_scales(checkpoint, layer.scales, (row + r) * layer.groups() + rows.first_group,
                        std::span(scales + r * rows.groups, whole ? count * rows.groups : rows.groups), rows.bytes);
        !s.ok())
      return s;
  return read_zero_points(checkpoint, layer, row, count, rows);
}

Status read_scales(const io::Checkpoint& checkpoint, const io::TensorPlace& place, std::uint64_t first,
                   std::span<float> to, std::vector<std::byte>& bytes) {
  const io::TensorInfo& info = checkpoint.at(place);
  if (!is_scale_dtype(info.dtype))
    return invalid_problem("{}: tensor '{}' holds {}, scales must be F32, F16 or BF16",
                           printable(checkpoint.shard_name(place.shard)), printable(info.name), io::name(info.dtype));
  if (info.dtype == io::DType::f32) return checkpoint.read(place, 4 * first, std::as_writable_bytes(to));
  std::byte* narrow = fit(bytes, 2 * to.size());
  if (Status s = checkpoint.read(place, 2 * first, std::span(narrow, 2 * to.size())); !s.ok()) return s;
  for (std::size_t i = 0; i < to.size(); ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, narrow + 2 * i, sizeof bits);
    to[i] = info.dtype == io::DType::f16 ? to_float(Half{bits}) : to_float(BFloat16{bits});
  }
  return {};
}

}  // namespace kvant::format
