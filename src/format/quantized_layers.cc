#include "format/quantized_layers.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "base/divide_up.h"
#include "base/refuse.h"
#include "base/text.h"
#include "format/compressed_tensors.h"
#include "format/element_dtype.h"
#include "format/turned_codes.h"
#include "semantics/code_numbers.h"
#include "semantics/one_number.h"
#include "semantics/scale_formats.h"

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
    const bool packed = scheme_.weights.storage != Storage::elements;
    const auto linear = scheme_.weights.storage == Storage::words ? shape_of_words() : shape_of_bytes();
    if (linear && !fits_unit(*linear)) return std::nullopt;
    for (const TensorKind kind : {TensorKind::scales, TensorKind::zero_points})
      if (linear && at(kind)) check(kind, *linear);
    for (const TensorKind kind : {TensorKind::global_scale, TensorKind::input_scale, TensorKind::input_zero_point,
                                  TensorKind::input_global_scale})
      if (at(kind)) check(kind, {});
    if (!linear || problems_.size() != problems_before) return std::nullopt;
    const ScaleSpan span = span_of(scheme_.weights, linear->rows, linear->columns);
    QuantizedLayer layer;
    layer.module = module;
    layer.rows = linear->rows;
    layer.columns = linear->columns;
    layer.scheme = scheme_;
    layer.scale_rows = span.rows;
    layer.group_size = span.columns;
    layer.codes = at(packed ? TensorKind::packed_codes : TensorKind::codes)->place;
    layer.scales = at(TensorKind::scales)->place;
    const auto place_of = [&](TensorKind kind) {
      const auto& found = at(kind);
      return found ? std::optional(found->place) : std::nullopt;
    };
    layer.zero_points = place_of(TensorKind::zero_points);
    layer.input_scale = place_of(TensorKind::input_scale);
    layer.input_zero_point = place_of(TensorKind::input_zero_point);
    layer.input_global_scale = place_of(TensorKind::input_global_scale);
    if (!read_global_scale(layer)) return std::nullopt;
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

  // Codes one or two to a byte.
  std::optional<LinearShape> shape_of_bytes() {
    const bool nibbles = scheme_.weights.storage == Storage::nibbles;
    const TensorKind kind = nibbles ? TensorKind::packed_codes : TensorKind::codes;
    if (!at(kind) || !is_matrix(kind)) return std::nullopt;
    const std::vector<std::uint64_t>& shape = at(kind)->info->shape;
    return LinearShape{shape[0], nibbles ? 2 * shape[1] : shape[1]};
  }

  // Whole groups only.
  bool fits_unit(const LinearShape& linear) {
    const WeightScheme& weights = scheme_.weights;
    if (!weights.has_groups() || linear.columns % static_cast<std::uint64_t>(weights.group_size) == 0) return true;
    const auto& codes = at(at(TensorKind::packed_codes) ? TensorKind::packed_codes : TensorKind::codes);
    problem(codes->place.shard, "tensor '{}' has in_features {}, which is not a multiple of the group size {}",
            printable(codes->info->name), linear.columns, weights.group_size);
    return false;
  }

  bool read_global_scale(QuantizedLayer& layer) {
    const auto& found = at(TensorKind::global_scale);
    if (!found) return true;
    if (Status s = checkpoint_.read(found->place, 0, std::as_writable_bytes(std::span(&layer.global_scale, 1)));
        !s.ok()) {
      problems_.emplace_back(s.message());
      return false;
    }
    if (layer.global_scale > 0 && std::isfinite(layer.global_scale)) return true;
    problem(found->place.shard, "tensor '{}' is {}, must be finite and positive", printable(found->info->name),
            layer.global_scale);
    return false;
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
              printable(shape->info->name), sizes[0], sizes[1], base::bracketed(codes->info->shape),
              codes_per_word(scheme_.weights.code));
      return std::nullopt;
    }
    return linear;
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
  const WeightScheme& weights = layer.scheme.weights;
  std::int8_t* codes = fit(rows.codes, count * columns);
  const std::uint64_t stored_row = bytes_of_codes(weights, layer.columns), first = bytes_of_codes(weights, column);
  const std::uint64_t length = bytes_of_codes(weights, columns);
  // Whole rows follow each other in the file.
  const bool whole = columns == layer.columns;
  const std::uint64_t reads = whole ? 1 : count, bytes_each = whole ? count * length : length;
  std::byte* bytes =
      weights.storage == Storage::elements ? reinterpret_cast<std::byte*>(codes) : fit(rows.bytes, count * length);
  for (std::uint64_t r = 0; r < reads; ++r)
    if (Status s = checkpoint.read(layer.codes, (row + r) * stored_row + first,
                                   std::span(bytes + r * length, static_cast<std::size_t>(bytes_each)));
        !s.ok())
      return s;
  if (weights.storage != Storage::elements)
    for (std::uint64_t r = 0; r < count; ++r) unpack_codes(weights, bytes + r * length, columns, codes + r * columns);
  return {};
}

Status read_zero_points(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row,
                        std::uint64_t count, LayerRows& rows) {
  std::int16_t* zero_points = fit(rows.zero_points, count * rows.groups);
  if (!layer.zero_points) {
    std::fill_n(zero_points, count * rows.groups, std::int16_t{0});
    return {};
  }
  const ElementKind code = layer.code();
  const std::uint64_t per_word = codes_per_word(code);
  std::byte* bytes = fit(rows.bytes, 4 * rows.groups);
  for (std::uint64_t r = 0; r < count; ++r) {
    // So many rows share a row of words.
    if (r == 0 || (row + r) % per_word == 0)
      if (Status s = checkpoint.read(*layer.zero_points, 4 * ((row + r) / per_word * layer.groups() + rows.first_group),
                                     std::span(bytes, 4 * rows.groups));
          !s.ok())
        return s;
    for (std::uint64_t g = 0; g < rows.groups; ++g) {
      std::uint32_t word;
      std::memcpy(&word, bytes + 4 * g, sizeof word);
      zero_points[r * rows.groups + g] = unpack_zero_point(code, word, row + r);
    }
  }
  return {};
}

// As numbers, a row of them for each row of the layer.
Status read_scales_of_rows(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row,
                           std::uint64_t count, LayerRows& rows) {
  const std::uint64_t groups = rows.groups;
  float* const scales = fit(rows.scales, count * groups);
  // Rows of scales that follow each other in the file are read at once.
  const bool whole = groups == layer.groups() && layer.scale_rows == 1;
  for (std::uint64_t r = 0; r < (whole ? 1 : count); ++r) {
    float* const to = scales + r * groups;
    const std::uint64_t from = (row + r) / layer.scale_rows;
    if (r > 0 && from == (row + r - 1) / layer.scale_rows) {
      std::copy_n(to - groups, groups, to);
      continue;
    }
    if (Status s = read_scales(checkpoint, layer.scales, from * layer.groups() + rows.first_group,
                               std::span(to, static_cast<std::size_t>(whole ? count * groups : groups)), rows.bytes);
        !s.ok())
      return s;
    if (layer.scheme.weights.strategy == Strategy::tensor_group)
      for (std::uint64_t i = 0; i < (whole ? count * groups : groups); ++i)
        to[i] = layer.globals_multiply ? to[i] * layer.global_scale : to[i] / layer.global_scale;
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
  const auto schemes = SchemesOfModules::of(config);
  if (!schemes.ok()) {
    problems.emplace_back(schemes.status().message());
    return layers;
  }
  for (const std::string& module : modules) {
    const Scheme* const scheme = schemes->find(module);
    if (scheme == nullptr) {
      problems.push_back(
          fmt::format("{}: targets do not list '{}', which is quantized: loaders expect its plain weight; add it to "
                      "targets of quantization_config",
                      printable(checkpoint.path().string()), printable(module)));
      continue;
    }
    if (auto layer = LayerFinder(checkpoint, *scheme, problems).find(module)) layers.push_back(std::move(*layer));
  }
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
  constexpr std::uint64_t kUnit = codes_per_word(ElementKind::s4);  // where every storage begins a byte and a word
  if (row > layer.rows || count > layer.rows - row || column % kUnit != 0 || column > layer.columns ||
      columns > layer.columns - column)
    return invalid_problem("layer '{}' of {} rows and {} columns: rows {} + {} and columns {} + {} are outside it",
                           printable(layer.module), layer.rows, layer.columns, row, count, column, columns);
  rows.first_group = 0;
  rows.groups = 0;
  if (count == 0 || columns == 0) return {};
  if (layer.arrangement != Arrangement::by_rows)
    return read_turned_rows(checkpoint, layer, row, count, column, columns, rows);
  if (Status s = read_codes(checkpoint, layer, row, count, column, columns, rows); !s.ok()) return s;
  rows.first_group = column / layer.group_size;
  rows.groups = (column + columns - 1) / layer.group_size - rows.first_group + 1;
  if (Status s = read_scales_of_rows(checkpoint, layer, row, count, rows); !s.ok()) return s;
  return read_zero_points(checkpoint, layer, row, count, rows);
}

Status read_values(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row,
                   std::uint64_t count, std::uint64_t column, std::uint64_t columns, LayerRows& rows, float* to) {
  if (Status s = read_rows(checkpoint, layer, row, count, column, columns, rows); !s.ok()) return s;
  const float* const numbers = semantics::numbers_of(layer.code());
  for (std::uint64_t r = 0; r < count; ++r)
    for (std::uint64_t c = 0; c < columns;) {
      const std::uint64_t group = (column + c) / layer.group_size - rows.first_group;
      const std::uint64_t end = std::min(columns, (rows.first_group + group + 1) * layer.group_size - column);
      const float scale = rows.scales[r * rows.groups + group];
      if (!(scale >= 0) || !std::isfinite(scale))
        return invalid_problem("{}: the scale of row {}, group {} of layer '{}' is {}, must be finite and not negative",
                               printable(checkpoint.shard_name(layer.scales.shard)), row + r, rows.first_group + group,
                               printable(layer.module), scale);
      const std::int32_t zero_point = rows.zero_points[r * rows.groups + group];
      const std::int8_t* const codes = rows.codes.data() + r * columns;
      float* const values = to + r * columns;
      if (numbers != nullptr)
        for (; c < end; ++c) values[c] = scale * numbers[static_cast<std::uint8_t>(codes[c])];
      else
        for (; c < end; ++c) values[c] = scale * static_cast<float>(codes[c] - zero_point);
    }
  return {};
}

Status read_scales(const io::Checkpoint& checkpoint, const io::TensorPlace& place, std::uint64_t first,
                   std::span<float> to, std::vector<std::byte>& bytes) {
  const io::TensorInfo& info = checkpoint.at(place);
  const auto width = static_cast<std::size_t>(io::bits(info.dtype)) / 8;
  if (info.dtype == io::DType::f32) return checkpoint.read(place, 4 * first, std::as_writable_bytes(to));
  std::byte* const stored = fit(bytes, width * to.size());
  if (Status s = checkpoint.read(place, width * first, std::span(stored, width * to.size())); !s.ok()) return s;
  const auto bits16 = [&](std::size_t i) {
    std::uint16_t bits;
    std::memcpy(&bits, stored + 2 * i, sizeof bits);
    return bits;
  };
  const float* const e4m3 = semantics::numbers_of(ElementKind::e4m3);
  for (std::size_t i = 0; i < to.size(); ++i) switch (info.dtype) {
      case io::DType::f16: to[i] = to_float(Half{bits16(i)}); break;
      case io::DType::bf16: to[i] = to_float(BFloat16{bits16(i)}); break;
      case io::DType::f8_e4m3: to[i] = e4m3[std::to_integer<std::uint8_t>(stored[i])]; break;
      case io::DType::u8:
      case io::DType::f8_e8m0:
        to[i] = semantics::e8m0_value<semantics::OneNumber<float>>(std::to_integer<std::int32_t>(stored[i]));
        break;
      default:
        return invalid_problem("{}: tensor '{}' holds {}, scales must be F32, F16, BF16, F8_E4M3 or U8",
                               printable(checkpoint.shard_name(place.shard)), printable(info.name),
                               io::name(info.dtype));
    }
  return {};
}

bool survives_dividing(const QuantizedLayer& layer) {
  if (!layer.globals_multiply) return true;
  const float divisor = 1 / layer.global_scale;
  const float* const numbers = semantics::numbers_of(*layer.scheme.weights.scale_code);
  constexpr std::size_t kPositive = 127;  // codes of e4m3 below NaN
  return std::all_of(numbers, numbers + kPositive,
                     [&](float scale) { return scale * layer.global_scale == scale / divisor; });
}

double coarsest_step(ElementKind code) {
  if (!has_float_grid(code)) return 1;
  const FloatFormat& format = info(code).format;
  return std::ldexp(1.0, format.max_exponent() - format.mantissa_bits);
}

double coarse_levels(ElementKind code) {
  const double largest = has_float_grid(code) ? static_cast<double>(info(code).format.max()) : code_range(code).max;
  return largest / coarsest_step(code);
}

}  // namespace kvant::format
