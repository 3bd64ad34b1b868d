#include "model/linear_layer.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/refuse.h"
#include "io/file.h"

namespace kvant::model {
namespace {

using base::invalid_problem;
using io::printable;

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

Result<LinearLayer> LinearLayer::load(const Stream& stream, const Weights& weights, const LinearModule& linear,
                                      std::int64_t max_rows) {
  LinearLayer layer(linear);
  auto bias = weights.read_vector_if_there(fmt::format("{}.bias", linear.module), linear.out);
  if (!bias.ok()) return bias.status();
  layer.bias_ = std::move(bias).value();
  const auto form = form_of(weights, linear);
  if (!form.ok()) return form.status();
  const format::QuantizedLayer* const codes = weights.quantized(linear.module);
  if (Status s = *form == Form::floats  ? layer.load_floats(stream, weights, linear, max_rows)
                 : *form == Form::codes ? layer.load_codes(stream, weights, *codes, max_rows)
                                        : layer.load_decoded(stream, weights, *codes, max_rows);
      !s.ok())
    return s;
  return layer;
}

Result<LinearLayer::Form> LinearLayer::form_of(const Weights& weights, const LinearModule& linear) {
  const format::QuantizedLayer* const layer = weights.quantized(linear.module);
  if (layer == nullptr) return Form::floats;
  if (static_cast<std::int64_t>(layer->rows) != linear.out || static_cast<std::int64_t>(layer->columns) != linear.in)
    return invalid_problem("'{}' is [{}, {}], must be [{}, {}]", printable(layer->module), layer->rows, layer->columns,
                           linear.out, linear.in);
  const format::Scheme& scheme = layer->scheme;
  const auto& activations = scheme.activations;
  const bool of_bytes = activations && activations->code == ElementKind::s8 && activations->group_size == 0;
  if (of_bytes && layer->code() == ElementKind::s8 && layer->groups() == 1 && layer->scale_rows == 1 &&
      !layer->zero_points && layer->arrangement == format::Arrangement::by_rows)
    return Form::codes;
  return Form::decoded;
}

Result<ActivationCodes> LinearLayer::activations_of(const Weights& weights, const format::QuantizedLayer& layer) {
  float scale = 1;
  std::int32_t zero_point = 0;
  std::vector<std::byte> bytes;
  for (const auto& place : {layer.input_scale, layer.input_global_scale})
    if (place)
      if (Status s = format::read_scales(weights.checkpoint(), *place, 0, {&scale, 1}, bytes); !s.ok()) return s;
  if (layer.input_global_scale && layer.globals_multiply) scale = 1 / scale;
  if (layer.input_zero_point) {
    std::byte code{};
    if (Status s = weights.checkpoint().read(*layer.input_zero_point, 0, {&code, 1}); !s.ok()) return s;
    zero_point = static_cast<std::int8_t>(code);
  }
  return ActivationCodes(*layer.scheme.activations, static_cast<std::int64_t>(layer.columns), scale, zero_point);
}

Result<LinearLayer::Memory> LinearLayer::memory(const Stream& stream, const Weights& weights,
                                                const LinearModule& linear) {
  // What is needed beside the rows is little, shared by so many.
  constexpr std::int64_t kManyRows = 1024;
  const auto form = form_of(weights, linear);
  if (!form.ok()) return form.status();
  const auto elements = static_cast<std::uint64_t>(linear.in * linear.out);
  Memory memory;
  memory.kept = 8 * static_cast<std::uint64_t>(linear.out);  // bias, scales
  if (*form == Form::codes) {
    const auto packed = PackedWeight::packed_size(stream, linear.out, linear.in);
    if (!packed.ok()) return packed.status();
    memory.kept += *packed;
    memory.loading = 2 * elements;  // as read and as codes
    const auto plan = QuantizedLinearPlan<float, std::int8_t>::select(
        stream, {.max_rows = kManyRows, .in_features = linear.in, .out_features = linear.out});
    if (!plan.ok()) return plan.status();
    memory.workspace_row = plan->workspace_size() / kManyRows + 1;
    return memory;
  }
  ElementKind kind = ElementKind::f32;
  std::uint64_t width = sizeof(float);
  if (*form == Form::floats && !linear.is_conv1d) {
    const auto stored = weights.find(fmt::format("{}.weight", linear.module),
                                     {static_cast<std::uint64_t>(linear.out), static_cast<std::uint64_t>(linear.in)});
    if (!stored.ok()) return stored.status();
    if (stored->kind != ElementKind::f64) kind = stored->kind;
    width = static_cast<std::uint64_t>(bits_per_element(kind) / 8);
  }
  const auto packed = PackedF32Weight::packed_size(stream, kind, linear.out, linear.in);
  if (!packed.ok()) return packed.status();
  memory.kept += *packed;
  const auto plan = AnyF32LinearPlan::select(
      stream, {.max_rows = kManyRows, .in_features = linear.in, .out_features = linear.out, .weight = kind});
  if (!plan.ok()) return plan.status();
  memory.workspace_row = plan->workspace_size() / kManyRows + 1;
  const format::QuantizedLayer* const layer = weights.quantized(linear.module);
  if (layer != nullptr && layer->scheme.activations) {
    const auto codes = activations_of(weights, *layer);
    if (!codes.ok()) return codes.status();
    const auto size = codes->workspace_size(stream, kManyRows);
    if (!size.ok()) return size.status();
    memory.workspace_row += *size / kManyRows + 4 * static_cast<std::uint64_t>(linear.in) + 1;
  }
  memory.loading = elements * width * (linear.is_conv1d ? 2 : 1) + (std::uint64_t{8} << 20);  // with pieces of rows
  return memory;
}

Status LinearLayer::load_floats(const Stream& stream, const Weights& weights, const LinearModule& linear,
                                std::int64_t max_rows) {
  const auto out = static_cast<std::uint64_t>(out_), in = static_cast<std::uint64_t>(in_);
  const auto stored = weights.find(fmt::format("{}.weight", linear.module),
                                   linear.is_conv1d ? std::vector{in, out} : std::vector{out, in});
  if (!stored.ok()) return stored.status();
  const ElementKind kind = stored->kind;
  if (kind != ElementKind::f64 && !linear.is_conv1d) {
    // As it is: 16 bits stay 16 bits in memory.
    std::vector<std::byte> bytes(in * out * static_cast<std::size_t>(bits_per_element(kind) / 8));
    if (Status s = weights.read(*stored, bytes); !s.ok()) return s;
    return pack_floats(stream, kind, bytes.data(), max_rows);
  }
  std::vector<float> values(static_cast<std::size_t>(in * out));
  if (Status s = weights.read_rows(*stored, 0, linear.is_conv1d ? in : out, values.data()); !s.ok()) return s;
  if (linear.is_conv1d) {
    std::vector<float> turned = std::move(values);
    values.resize(turned.size());
    for (std::size_t k = 0; k < in; ++k)
      for (std::size_t n = 0; n < out; ++n) values[n * in + k] = turned[k * out + n];
  }
  return pack_floats(stream, ElementKind::f32, values.data(), max_rows);
}

Status LinearLayer::pack_floats(const Stream& stream, ElementKind kind, const void* elements, std::int64_t max_rows) {
  auto packed = PackedF32Weight::pack(stream, AnyRef{elements, kind, {out_, in_}, 0});
  if (!packed.ok()) return packed.status();
  auto plan = AnyF32LinearPlan::select(
      stream, {.max_rows = max_rows, .in_features = in_, .out_features = out_, .weight = kind});
  if (!plan.ok()) return plan.status();
  f32_weight_ = std::move(packed).value();
  f32_plan_ = std::move(plan).value();
  workspace_size_ = f32_plan_->workspace_size();
  return {};
}

Status LinearLayer::load_decoded(const Stream& stream, const Weights& weights, const format::QuantizedLayer& layer,
                                 std::int64_t max_rows) {
  std::vector<float> values(static_cast<std::size_t>(layer.rows * layer.columns));
  constexpr std::uint64_t kRows = 64;
  format::LayerRows rows;
  for (std::uint64_t first = 0; first < layer.rows; first += kRows)
    if (Status s = format::read_values(weights.checkpoint(), layer, first, std::min(kRows, layer.rows - first), 0,
                                       layer.columns, rows, values.data() + first * layer.columns);
        !s.ok())
      return s;
  if (Status s = pack_floats(stream, ElementKind::f32, values.data(), max_rows); !s.ok()) return s;
  if (!layer.scheme.activations) return {};
  auto codes = activations_of(weights, layer);
  if (!codes.ok()) return codes.status();
  if (Status s = codes->check(stream); !s.ok())
    return invalid_problem("'{}': {}", printable(layer.module), s.message());
  const auto size = codes->workspace_size(stream, max_rows);
  if (!size.ok()) return size.status();
  activations_ = std::move(codes).value();
  workspace_size_ = aligned(workspace_size_) + aligned(*size) + 4 * static_cast<std::size_t>(max_rows * in_);
  return {};
}

Status LinearLayer::load_codes(const Stream& stream, const Weights& weights, const format::QuantizedLayer& layer,
                               std::int64_t max_rows) {
  format::LayerRows rows;
  if (Status s = format::read_rows(weights.checkpoint(), layer, 0, layer.rows, rows); !s.ok()) return s;
  scales_ = std::move(rows.scales);
  auto packed = PackedWeight::pack(stream, TensorRef<std::int8_t>(rows.codes.data(), {out_, in_}));
  if (!packed.ok()) return packed.status();
  QuantizedLinearDescriptor descriptor{.max_rows = max_rows, .in_features = in_, .out_features = out_};
  if (layer.scheme.has_asymmetric_activations() && !layer.input_scale) {
    descriptor.mode = DynamicRangeMode::asymmetric;
    descriptor.include_zero = true;  // as loaders do
  }
  if (layer.input_scale) {
    float scale = 0;
    if (Status s = format::read_scales(weights.checkpoint(), *layer.input_scale, 0, {&scale, 1}, rows.bytes); !s.ok())
      return s;
    descriptor.act_scale = static_cast<double>(scale);
    if (layer.input_zero_point) {
      std::byte code{};
      if (Status s = weights.checkpoint().read(*layer.input_zero_point, 0, {&code, 1}); !s.ok()) return s;
      descriptor.act_zero_point = static_cast<std::int8_t>(code);
    }
  }
  auto plan = QuantizedLinearPlan<float, std::int8_t>::select(stream, descriptor);
  if (!plan.ok()) return plan.status();
  code_weight_ = std::move(packed).value();
  code_plan_.emplace(std::move(plan).value());
  workspace_size_ = code_plan_->workspace_size();
  return {};
}

Status LinearLayer::run(const Stream& stream, Workspace workspace, const float* x, std::int64_t x_stride,
                        std::int64_t rows, float* y, std::int64_t y_stride) const {
  const TensorMut<float> output(y, {rows, out_}, y_stride);
  const TensorRef<float> bias = bias_.empty() ? TensorRef<float>() : TensorRef<float>(bias_.data(), {out_});
  if (!f32_plan_)
    return code_plan_->run(stream, workspace,
                           {.input = TensorRef<float>(x, {rows, in_}, x_stride),
                            .packed_weight = &*code_weight_,
                            .weight_scale = TensorRef<float>(scales_.data(), {out_}),
                            .bias = bias,
                            .output = output});
  if (activations_) {
    // What the codes give back lies at the end of the workspace, behind what making them takes.
    const std::size_t linear = aligned(f32_plan_->workspace_size());
    auto* const base = static_cast<std::byte*>(workspace.data);
    const auto size = activations_->workspace_size(stream, rows);
    if (!size.ok()) return size.status();
    auto* const values = reinterpret_cast<float*>(base + linear + aligned(*size));
    if (Status s = activations_->run(stream, {base + linear, *size}, x, x_stride, rows, values); !s.ok()) return s;
    x = values;
    x_stride = in_;
  }
  return f32_plan_->run(stream, workspace,
                        AnyF32LinearArgs{.input = TensorRef<float>(x, {rows, in_}, x_stride),
                                         .packed_weight = &*f32_weight_,
                                         .bias = bias,
                                         .output = output});
}

}  // namespace kvant::model
