#include "measure/output_losses.h"

#include <map>
#include <span>
#include <utility>

#include "base/float_environment.h"
#include "base/refuse.h"
#include "format/quantization_config.h"
#include "format/quantized_layers.h"
#include "io/checkpoint.h"
#include "kvant/element.h"
#include "kvant/linear.h"
#include "kvant/packed_weight.h"
#include "measure/sqnr.h"

namespace kvant::measure {
namespace {

namespace fs = std::filesystem;
using base::invalid_problem;

// The values of a BF16 tensor.
Result<std::vector<BFloat16>> read_bf16(const io::Checkpoint& checkpoint, const std::string& name,
                                        std::uint64_t elements) {
  const auto place = checkpoint.tensors().find(name);
  const io::TensorInfo* const info = checkpoint.find(name);
  if (info == nullptr || place == checkpoint.tensors().end())
    return invalid_problem("{}: has no tensor {}", io::printable(checkpoint.path().string()), io::printable(name));
  if (info->dtype != io::DType::bf16 || info->bytes() != 2 * elements)
    return invalid_problem("{}: {} has {} bytes of {}, the demo model's has {} of BF16",
                           io::printable(checkpoint.path().string()), io::printable(name), info->bytes(),
                           io::name(info->dtype), 2 * elements);
  std::vector<BFloat16> values(static_cast<std::size_t>(elements));
  if (Status s = checkpoint.read(place->second, 0, std::as_writable_bytes(std::span(values))); !s.ok()) return s;
  return values;
}

// y = x W^T in f64, [tokens, out], tokens four by four: four sums that do not wait for each other.
Status reference_outputs(const Stream& stream, const std::vector<float>& x, const std::vector<BFloat16>& w,
                         std::int64_t tokens, std::int64_t out, std::int64_t in, std::vector<double>& y) {
  static_assert(model::kDemoTestTokens % 4 == 0);
  y.resize(static_cast<std::size_t>(tokens * out));
  const auto band = [&](std::int64_t n) {
    const base::DefaultFloatEnvironment environment;
    std::vector<double> row(static_cast<std::size_t>(in));
    for (std::int64_t k = 0; k < in; ++k)
      row[static_cast<std::size_t>(k)] = static_cast<double>(to_float(w[static_cast<std::size_t>(n * in + k)]));
    for (std::int64_t t = 0; t < tokens; t += 4) {
      const float* const x0 = x.data() + t * in;
      double a = 0, b = 0, c = 0, d = 0;
      for (std::int64_t k = 0; k < in; ++k) {
        const double value = row[static_cast<std::size_t>(k)];
        a += value * static_cast<double>(x0[k]);
        b += value * static_cast<double>(x0[in + k]);
        c += value * static_cast<double>(x0[2 * in + k]);
        d += value * static_cast<double>(x0[3 * in + k]);
      }
      double* const to = y.data() + t * out + n;
      to[0] = a;
      to[out] = b;
      to[2 * out] = c;
      to[3 * out] = d;
    }
  };
  return stream.parallel_for(
      out, Task([](const void* context, std::int64_t part) { (*static_cast<const decltype(band)*>(context))(part); },
                &band));
}

// The W8A8 linear of the quantized layer on x.
Status quantized_outputs(const Stream& stream, const io::Checkpoint& checkpoint, const format::QuantizedLayer& layer,
                         const std::vector<float>& x, std::int64_t tokens, std::vector<float>& y) {
  format::LayerRows rows;
  if (Status s = format::read_rows(checkpoint, layer, 0, layer.rows, rows); !s.ok()) return s;
  const auto out = static_cast<std::int64_t>(layer.rows), in = static_cast<std::int64_t>(layer.columns);
  const auto packed = PackedWeight::pack(stream, TensorRef<std::int8_t>(rows.codes.data(), {out, in}));
  if (!packed.ok()) return packed.status();
  const auto plan =
      QuantizedLinearPlan<float>::select(stream, {.max_rows = tokens, .in_features = in, .out_features = out});
  if (!plan.ok()) return plan.status();
  std::vector<std::byte> scratch(plan->workspace_size());
  y.resize(static_cast<std::size_t>(tokens * out));
  return plan->run(stream, {scratch.data(), scratch.size()},
                   {.input = {x.data(), {tokens, in}},
                    .packed_weight = &*packed,
                    .weight_scale = TensorRef<float>(rows.scales.data(), {out}),
                    .output = {y.data(), {tokens, out}}});
}

double output_sqnr_db(const std::vector<double>& reference, const std::vector<float>& got) {
  double signal = 0, noise = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double error = reference[i] - static_cast<double>(got[i]);
    signal += reference[i] * reference[i];
    noise += error * error;
  }
  return sqnr_db(signal, noise);
}

// What the library's linear computes: one scale for each output channel, and one for each token at run time.
bool runs_as_w8a8(const format::SchemeSpec& spec) {
  return spec.weights.code == ElementKind::s8 && spec.weights.strategy == format::Strategy::channel &&
         spec.activations && spec.activations->dynamic;
}

}  // namespace

Result<std::vector<OutputLoss>> output_losses(const model::DemoModel& demo, const fs::path& original,
                                              const fs::path& quantized, const Stream& stream) {
  if (Status s = model::check(demo); !s.ok()) return s;
  const auto before = io::Checkpoint::open(original);
  if (!before.ok()) return before.status();
  const auto after = io::Checkpoint::open(quantized);
  if (!after.ok()) return after.status();
  const auto config = format::read_quantization_config(*after);
  if (!config.ok()) return config.status();
  if (!runs_as_w8a8(config->scheme.spec()))
    return base::unsupported("{}: is {}; outputs can be compared for w8a8 only", io::printable(quantized.string()),
                             name(config->scheme.kind));
  const auto layers = format::find_quantized_layers(*after, *config);
  if (!layers.ok()) return layers.status();
  std::map<std::string, const format::QuantizedLayer*> by_module;
  for (const format::QuantizedLayer& layer : *layers) by_module[layer.module] = &layer;

  std::vector<OutputLoss> losses;
  std::vector<double> wanted;
  std::vector<float> got;
  for (const model::DemoLinear& linear : model::demo_linears(demo)) {
    const auto found = by_module.find(linear.module);
    if (found == by_module.end()) continue;
    const format::QuantizedLayer& layer = *found->second;
    if (layer.rows != static_cast<std::uint64_t>(linear.out) || layer.columns != static_cast<std::uint64_t>(linear.in))
      return invalid_problem("{}: {} is [{}, {}], the demo model's is [{}, {}]", io::printable(quantized.string()),
                             linear.module, layer.rows, layer.columns, linear.out, linear.in);
    std::vector<BFloat16> norm_before, norm_after;
    if (!linear.norm.empty()) {
      const auto width = static_cast<std::uint64_t>(linear.in);
      auto first = read_bf16(*before, linear.norm + ".weight", width);
      if (!first.ok()) return first.status();
      auto second = read_bf16(*after, linear.norm + ".weight", width);
      if (!second.ok()) return second.status();
      norm_before = std::move(first).value();
      norm_after = std::move(second).value();
    }
    const auto weight = read_bf16(*before, linear.module + ".weight", layer.rows * layer.columns);
    if (!weight.ok()) return weight.status();
    if (Status s = reference_outputs(stream, model::demo_test_rows(linear, norm_before), *weight,
                                     model::kDemoTestTokens, linear.out, linear.in, wanted);
        !s.ok())
      return s;
    if (Status s = quantized_outputs(stream, *after, layer, model::demo_test_rows(linear, norm_after),
                                     model::kDemoTestTokens, got);
        !s.ok())
      return s;
    losses.push_back({linear.module, output_sqnr_db(wanted, got)});
  }
  return losses;
}

}  // namespace kvant::measure
