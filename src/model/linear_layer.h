// A linear layer of a model, ready to run: in floating point by F32LinearPlan; with codes of eight bits by
// QuantizedLinearPlan, whose products are integers; with other codes by F32LinearPlan on the values of weights, and of
// activations where the scheme quantizes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kvant/f32_linear.h"
#include "kvant/linear.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "model/activation_codes.h"
#include "model/network.h"
#include "model/weights.h"

namespace kvant::model {

class LinearLayer {
 public:
  // For runs of up to `max_rows` rows.
  static Result<LinearLayer> load(const Stream& stream, const Weights& weights, const LinearModule& linear,
                                  std::int64_t max_rows);

  // What load() takes, and more of it while it works; and a row in the workspace of run().
  struct Memory {
    std::uint64_t kept = 0;
    std::uint64_t loading = 0;
    std::uint64_t workspace_row = 0;
  };
  static Result<Memory> memory(const Stream& stream, const Weights& weights, const LinearModule& linear);

  std::size_t workspace_size() const { return workspace_size_; }
  // y[r, :] = weight * x[r, :] + bias for rows [0, rows). Strides in elements.
  Status run(const Stream& stream, Workspace workspace, const float* x, std::int64_t x_stride, std::int64_t rows,
             float* y, std::int64_t y_stride) const;

 private:
  // How a linear of a checkpoint is run.
  enum class Form : std::uint8_t { floats, codes, decoded };
  // Refuses codes that no plan takes.
  static Result<Form> form_of(const Weights& weights, const LinearModule& linear);
  static Result<ActivationCodes> activations_of(const Weights& weights, const format::QuantizedLayer& layer);

  explicit LinearLayer(const LinearModule& linear) : in_(linear.in), out_(linear.out) {}
  Status load_floats(const Stream& stream, const Weights& weights, const LinearModule& linear, std::int64_t max_rows);
  Status load_codes(const Stream& stream, const Weights& weights, const format::QuantizedLayer& layer,
                    std::int64_t max_rows);
  Status load_decoded(const Stream& stream, const Weights& weights, const format::QuantizedLayer& layer,
                      std::int64_t max_rows);
  // Packs elements of [out, in].
  Status pack_floats(const Stream& stream, ElementKind kind, const void* elements, std::int64_t max_rows);

  std::int64_t in_;
  std::int64_t out_;
  std::vector<float> bias_;  // empty: none
  std::size_t workspace_size_ = 0;
  // One of the two.
  std::optional<AnyF32LinearPlan> f32_plan_;
  std::optional<PackedF32Weight> f32_weight_;
  std::optional<QuantizedLinearPlan<float, std::int8_t>> code_plan_;
  std::optional<PackedWeight> code_weight_;
  std::vector<float> scales_;                   // of code_weight_
  std::optional<ActivationCodes> activations_;  // that f32_plan_ reads
};

}  // namespace kvant::model
