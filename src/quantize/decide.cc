#include "quantize/decide.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "base/refuse.h"
#include "format/compressed_tensors.h"
#include "format/element_dtype.h"
#include "format/module_name.h"
#include "format/patterns.h"
#include "io/json.h"
#include "model/smooth_groups.h"

namespace kvant::quantize {
namespace {

using base::invalid_problem;
using base::unsupported;

// Names that only quantized checkpoints have, beside those of kvant's own layout: GPTQ and AWQ, fp8 in blocks,
// bitsandbytes.
constexpr std::array<std::string_view, 7> kForeignSuffixes = {
    ".qweight", ".qzeros", ".scales", ".weight_scale_inv", ".SCB", ".g_idx", ".weight.quant_map"};

bool has_quantized_name(std::string_view tensor) {
  for (const auto kind :
       {format::TensorKind::scales, format::TensorKind::packed_codes, format::TensorKind::zero_points})
    if (tensor.ends_with(format::spec_of(kind).suffix)) return true;
  return std::any_of(kForeignSuffixes.begin(), kForeignSuffixes.end(),
                     [&](std::string_view suffix) { return tensor.ends_with(suffix); });
}

Status refuse_quantized(const io::Checkpoint& checkpoint) {
  for (const std::string_view key : {"quantization_config", "compression_config"})
    if (checkpoint.config() && checkpoint.config()->contains(key) && !(*checkpoint.config())[key].is_null())
      return unsupported("{}: is already quantized: its config.json has \"{}\"; give the original checkpoint",
                         io::printable_path(checkpoint.path()), key);
  for (const io::SafetensorsFile& shard : checkpoint.shards()) {
    if (shard.metadata().contains("quantization_config"))
      return unsupported(
          "{}: is already quantized: its metadata has \"quantization_config\"; give the original checkpoint",
          io::printable_path(shard.file().path()));
    for (const io::TensorInfo& tensor : shard.tensors()) {
      if (has_quantized_name(tensor.name))
        return unsupported("{}: is already quantized: it has the tensor '{}'; give the original checkpoint",
                           io::printable_path(shard.file().path()), io::printable(tensor.name));
      if (io::bits(tensor.dtype) <= 8 && tensor.shape.size() == 2 && tensor.name.ends_with(".weight"))
        return unsupported("{}: is already quantized: '{}' is {}; give the original checkpoint",
                           io::printable_path(shard.file().path()), io::printable(tensor.name), io::name(tensor.dtype));
    }
  }
  return {};
}

class Decider {
 public:
  Decider(const io::Checkpoint& checkpoint, const QuantizeOptions& options, const format::ActivationStats* stats)
      : checkpoint_(checkpoint), options_(options), stats_(stats), facts_(model::facts_of(checkpoint)) {}

  Result<CheckpointPlan> decide() {
    for (const auto step : {&Decider::check_options, &Decider::judge_all, &Decider::check_patterns,
                            &Decider::check_fused, &Decider::plan_smoothing, &Decider::check_static})
      if (Status s = (this->*step)(); !s.ok()) return s;
    fill_ignore();
    fill_sizes();
    return std::move(plan_);
  }

 private:
  const format::SchemeSpec& spec() const { return options_.scheme.spec(); }

  Status check_options() {
    if (Status s = format::check(options_.scheme); !s.ok()) return s;
    if (Status s = refuse_quantized(checkpoint_); !s.ok()) return s;
    if (options_.smooth && stats_ == nullptr)
      return invalid_problem("--smooth needs activation statistics; give them with --stats FILE");
    if (spec().needs_statistics() && stats_ == nullptr)
      return invalid_problem("{} needs activation statistics; give them with --stats FILE", spec().name);
    if (options_.alpha && !(*options_.alpha >= 0 && *options_.alpha <= 1))
      return invalid_problem("alpha {} must lie between 0 and 1", *options_.alpha);
    auto ignore = format::Patterns::parse(options_.ignore);
    if (!ignore.ok()) return ignore.status();
    ignore_ = std::move(ignore).value();
    auto include = format::Patterns::parse(options_.include);
    if (!include.ok()) return include.status();
    include_ = std::move(include).value();
    return {};
  }

  Status judge_all() {
    for (std::size_t shard = 0; shard < checkpoint_.shards().size(); ++shard) {
      for (const io::TensorInfo& tensor : checkpoint_.shards()[shard].tensors()) {
        TensorPlan plan{.name = tensor.name, .shard = shard, .dtype = tensor.dtype, .shape = tensor.shape};
        plan.bytes_before = tensor.bytes();
        if (Status s = judge_one(tensor, plan); !s.ok()) return s;
        if (const std::string_view module = format::module_of(plan.name); !module.empty()) modules_.emplace(module);
        by_name_.emplace(plan.name, plan_.tensors.size());
        plan_.tensors.push_back(std::move(plan));
      }
    }
    if (std::none_of(plan_.tensors.begin(), plan_.tensors.end(),
                     [](const TensorPlan& t) { return t.action == Action::quantize; }))
      return invalid_problem("{}: has no Linear weight to quantize among its {} tensors",
                             io::printable_path(checkpoint_.path()), plan_.tensors.size());
    return {};
  }

  Status judge_one(const io::TensorInfo& tensor, TensorPlan& plan) {
    model::Judgement judgement = model::judge(tensor, facts_.model_type);
    plan.role = judgement.role;
    plan.reason = std::move(judgement.reason);
    const std::string_view module = format::module_of(tensor.name);
    const bool possible = model::is_linear_module(judgement.role);
    const std::string* included = nullptr;
    const std::string* ignored = nullptr;
    if (!module.empty()) {
      for (const std::string* pattern : include_.matches(module)) {
        // An expression says "of these modules, the Linears"; a name means just that module.
        if (!possible && pattern->starts_with("re:")) continue;
        matched_.insert(*pattern);
        if (included == nullptr) included = pattern;
      }
      for (const std::string* pattern : ignore_.matches(module)) {
        matched_.insert(*pattern);
        if (ignored == nullptr) ignored = pattern;
      }
    }
    if (included != nullptr) {
      if (!possible)
        return invalid_problem("--include {} matches '{}', which cannot be quantized: {}", io::printable(*included),
                               io::printable(module), plan.reason);
      plan.reason = fmt::format("matches --include {}", io::printable(*included));
      return want_quantized(tensor, plan);
    }
    if (ignored != nullptr) {
      plan.reason = fmt::format("matches --ignore {}", io::printable(*ignored));
      return {};
    }
    if (judgement.role == model::Role::conv1d)
      return unsupported(
          "{}: '{}' is a Conv1D of model_type {}, stored as [in, out]; kvant quantizes only [out, in]: "
          "export the model with Linear layers",
          io::printable_path(checkpoint_.path()), io::printable(tensor.name), io::printable(facts_.model_type));
    if (judgement.role == model::Role::linear) return want_quantized(tensor, plan);
    if (judgement.role == model::Role::lm_head || judgement.role == model::Role::router ||
        judgement.role == model::Role::embedding)
      plan.reason += ": ignored by default";
    return {};
  }

  // The scheme may still say no.
  Status want_quantized(const io::TensorInfo& tensor, TensorPlan& plan) {
    if (tensor.bytes() == 0) {
      plan.reason = "has no elements";
      return {};
    }
    if (spec().has_groups()) {
      const auto group = static_cast<std::uint64_t>(options_.scheme.group_size);
      if (tensor.shape[1] % group != 0) {
        plan.reason = fmt::format("{} input channels are not a multiple of the group size {}", tensor.shape[1], group);
        plan_.warnings.push_back(
            fmt::format("'{}' is not quantized: {}", io::printable(format::module_of(tensor.name)), plan.reason));
        return {};
      }
    }
    plan.action = Action::quantize;
    return {};
  }

  Status check_patterns() {
    for (const auto* list : {&options_.ignore, &options_.include})
      for (const std::string& pattern : *list)
        if (!matched_.contains(pattern))
          return invalid_problem(
              "{} {} matches no module of {}; 'kvant inspect' lists them (a module is a tensor's name "
              "without .weight)",
              list == &options_.ignore ? "--ignore" : "--include", io::printable(pattern),
              io::printable_path(checkpoint_.path()));
    return {};
  }

  Status check_fused() {
    for (const TensorPlan& tensor : plan_.tensors) {
      if (tensor.action != Action::quantize) continue;
      const std::string_view module = format::module_of(tensor.name);
      for (const std::string& other : model::fused_siblings(module)) {
        const TensorPlan* found = plan_of(other, ".weight");
        if (found == nullptr || found->action == Action::quantize) continue;
        return invalid_problem(
            "'{}' would be quantized and '{}' would not ({}), but loaders join them into one matrix: include or ignore "
            "both",
            io::printable(module), io::printable(other), found->reason);
      }
    }
    return {};
  }

  Result<model::SmoothGroups> groups() const {
    if (!options_.smooth_groups) return model::find_smooth_groups(facts_, modules_);
    // A file, or else the name of a family.
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(*options_.smooth_groups, ignored))
      return model::smooth_groups_of_family(*options_.smooth_groups, facts_, modules_);
    const auto text = io::read_text(*options_.smooth_groups, std::uint64_t{16} << 20);
    if (!text.ok()) return text.status();
    return model::parse_smooth_groups(*text, *options_.smooth_groups, facts_, modules_);
  }

  Status plan_smoothing() {
    if (!options_.smooth) return {};
    auto found = groups();
    if (!found.ok()) return found.status();
    if (!found->refusal.empty())
      return unsupported("{}: smoothing cannot be folded into this model: {}", io::printable_path(checkpoint_.path()),
                         found->refusal);
    if (!found->warning.empty()) plan_.warnings.push_back(found->warning);
    for (const auto& [norm, reason] : found->left_alone) leave_alone(norm, reason);
    plan_.alpha = options_.alpha.value_or(found->default_alpha);
    for (const model::SmoothGroup& group : found->groups) plan_group(group, options_.smooth_groups.has_value());
    if (plan_.smoothed.empty())
      return invalid_problem("{}: nothing can be smoothed: {}", io::printable_path(checkpoint_.path()),
                             plan_.warnings.empty() ? "no norm was found" : plan_.warnings.back());
    return {};
  }

  // Null: there is no such tensor. smooth_groups.h names modules that have a weight.
  const TensorPlan* plan_of(std::string_view module, std::string_view suffix) const {
    const auto found = by_name_.find(fmt::format("{}{}", module, suffix));
    return found == by_name_.end() ? nullptr : &plan_.tensors[found->second];
  }
  TensorPlan* plan_of(std::string_view module, std::string_view suffix) {
    return const_cast<TensorPlan*>(std::as_const(*this).plan_of(module, suffix));
  }

  void leave_alone(std::string_view norm, std::string_view reason) {
    plan_.warnings.push_back(fmt::format("'{}' is not smoothed: {}", io::printable(norm), reason));
  }

  void plan_group(const model::SmoothGroup& group, bool given) {
    const std::string reason = why_not(group);
    if (!reason.empty()) {
      leave_alone(group.norm, reason);
      return;
    }
    const bool any_quantized = std::any_of(group.readers.begin(), group.readers.end(), [&](const std::string& reader) {
      return plan_of(reader, ".weight")->action == Action::quantize;
    });
    if (!any_quantized) {
      if (given) leave_alone(group.norm, "none of the linears that read it is quantized");
      return;
    }
    const std::size_t index = plan_.smoothed.size();
    plan_.smoothed.push_back({group.norm, group.readers});
    for (const std::string_view suffix : {".weight", ".bias"}) {
      TensorPlan* plan = plan_of(group.norm, suffix);
      if (plan == nullptr) continue;
      plan->action = Action::fold_norm;
      plan->reason = fmt::format("divided by the smoothing of {} linears", group.readers.size());
      plan->smooth_group = index;
    }
    for (const std::string& reader : group.readers) {
      TensorPlan& plan = *plan_of(reader, ".weight");
      plan.smooth_group = index;
      if (plan.action == Action::quantize) {
        plan.reason += fmt::format(", smoothed after {}", io::printable(format::last_component(group.norm)));
      } else {
        plan.action = Action::smooth;
        plan.reason += fmt::format("; multiplied by the smoothing of {}", io::printable(group.norm));
      }
    }
  }

  // Empty: nothing speaks against it.
  std::string why_not(const model::SmoothGroup& group) const {
    const io::TensorInfo* norm = checkpoint_.find(group.norm + ".weight");
    if (norm == nullptr) return "it has no weight";
    if (!format::element_of(norm->dtype) || norm->shape.size() != 1)
      return fmt::format("its weight is {} with {} dimensions", io::name(norm->dtype), norm->shape.size());
    const std::uint64_t channels = norm->shape[0];
    if (const io::TensorInfo* bias = checkpoint_.find(group.norm + ".bias");
        bias != nullptr && (!format::element_of(bias->dtype) || bias->shape != norm->shape))
      return "its bias does not have the shape of its weight, or is not floating point";
    bool has_stats = false;
    for (const std::string& reader : group.readers) {
      const TensorPlan& plan = *plan_of(reader, ".weight");
      if (plan.shape.size() != 2 || !format::element_of(plan.dtype))
        return fmt::format("'{}', which reads it, is not a floating-point matrix", io::printable(reader));
      if (plan.shape[1] != channels)
        return fmt::format("'{}', which reads it, has {} input channels, but the norm has {}", io::printable(reader),
                           plan.shape[1], channels);
      if (plan.smooth_group) return fmt::format("'{}' is already smoothed", io::printable(reader));
      has_stats |= stats_->has_absmax(reader);
    }
    if (!has_stats)
      return fmt::format("the statistics have '{}.absmax' for none of its readers",
                         io::printable(group.readers.empty() ? std::string() : group.readers.front()));
    return {};
  }

  Status check_static() {
    if (!spec().needs_statistics()) return {};
    const std::string file = io::printable_path(stats_->file().file().path());
    for (const TensorPlan& tensor : plan_.tensors) {
      if (tensor.action != Action::quantize) continue;
      const std::string_view module = format::module_of(tensor.name);
      if (options_.scheme.asymmetric && !stats_->has_min_max(module))
        return invalid_problem("{}: has no '{}.min' and '.max', which asymmetric {} needs", file, io::printable(module),
                               spec().name);
      if (!options_.scheme.asymmetric && !stats_->has_absmax(module))
        return invalid_problem(
            "{}: has no '{}.absmax', which {} needs; collect it or leave the layer out with "
            "--ignore",
            file, io::printable(module), spec().name);
    }
    return {};
  }

  // Exact names of all that a loader takes for a Linear and that stays as it is.
  void fill_ignore() {
    bool has_head = false;
    for (const TensorPlan& tensor : plan_.tensors) {
      has_head |= tensor.role == model::Role::lm_head;
      if (model::is_linear_module(tensor.role) && tensor.action != Action::quantize)
        plan_.ignore.emplace_back(format::module_of(tensor.name));
    }
    // A head that shares the embedding's weight is a Linear all the same.
    if (!has_head) plan_.ignore.emplace_back("lm_head");
    std::sort(plan_.ignore.begin(), plan_.ignore.end());
  }

  void fill_sizes() {
    for (TensorPlan& tensor : plan_.tensors) {
      tensor.bytes_after = tensor.bytes_before;
      if (tensor.action == Action::quantize) {
        tensor.bytes_after = 0;
        for (const format::LayerOutput& output : format::layer_outputs(options_.scheme, format::module_of(tensor.name),
                                                                       tensor.dtype, tensor.shape[0], tensor.shape[1]))
          tensor.bytes_after += io::tensor_bytes(output.info.dtype, output.info.shape).value_or(0);
      }
      plan_.bytes_before += tensor.bytes_before;
      plan_.bytes_after += tensor.bytes_after;
    }
  }

  const io::Checkpoint& checkpoint_;
  const QuantizeOptions& options_;
  const format::ActivationStats* stats_;
  model::ModelFacts facts_;
  format::Patterns ignore_, include_;
  std::set<std::string> matched_;
  std::set<std::string, std::less<>> modules_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  CheckpointPlan plan_;
};

}  // namespace

Result<CheckpointPlan> decide(const io::Checkpoint& checkpoint, const QuantizeOptions& options,
                              const format::ActivationStats* stats) {
  return Decider(checkpoint, options, stats).decide();
}

}  // namespace kvant::quantize
