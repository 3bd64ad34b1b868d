#include "quantize/decide.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "base/refuse.h"
#include "format/compressed_tensors.h"
#include "format/element_dtype.h"
#include "format/kv_cache.h"
#include "format/module_name.h"
#include "format/patterns.h"
#include "format/weight_form.h"
#include "io/json.h"
#include "model/families.h"
#include "model/input_tensors.h"
#include "model/smooth_groups.h"
#include "quantize/gather_warnings.h"
#include "quantize/static_activations.h"

namespace kvant::quantize {
namespace {

using base::invalid_problem;
using base::unsupported;

// Names that only quantized checkpoints have, and of dialects that kvant does not read: GPTQ and AWQ, bitsandbytes.
constexpr std::array<std::string_view, 6> kForeignSuffixes = {".qweight", ".qzeros", ".scales",
                                                              ".SCB",     ".g_idx",  ".weight.quant_map"};

bool has_quantized_name(std::string_view tensor) {
  for (const auto kind :
       {format::TensorKind::scales, format::TensorKind::packed_codes, format::TensorKind::zero_points})
    if (tensor.ends_with(format::spec_of(kind).suffix)) return true;
  return tensor.ends_with(".weight_scale_inv") ||
         std::any_of(kForeignSuffixes.begin(), kForeignSuffixes.end(),
                     [&](std::string_view suffix) { return tensor.ends_with(suffix); });
}

// Codes that nothing in config.json explains.
Status refuse_unexplained(const io::Checkpoint& checkpoint, const model::InputTensors& inputs) {
  if (checkpoint.config() && checkpoint.config()->contains("compression_config") &&
      !(*checkpoint.config())["compression_config"].is_null())
    return unsupported(
        "{}: is already quantized: its config.json has \"compression_config\"; give the original checkpoint",
        io::printable_path(checkpoint.path()));
  for (const model::InputTensor& tensor : inputs.tensors) {
    const std::string file = io::printable_path(checkpoint.shards()[tensor.shard].file().path());
    if (has_quantized_name(tensor.info.name))
      return unsupported(
          "{}: is already quantized: it has the tensor '{}', which quantization_config does not explain; "
          "give the original checkpoint",
          file, io::printable(tensor.info.name));
    if (io::bits(tensor.info.dtype) <= 8 && tensor.info.shape.size() == 2 && tensor.info.name.ends_with(".weight"))
      return unsupported(
          "{}: is already quantized: '{}' is {}, which quantization_config does not explain; give the "
          "original checkpoint",
          file, io::printable(tensor.info.name), io::name(tensor.info.dtype));
  }
  return {};
}

class Decider {
 public:
  Decider(const io::Checkpoint& checkpoint, const QuantizeOptions& options, const format::ActivationStats* stats)
      : checkpoint_(checkpoint), options_(options), stats_(stats), facts_(model::facts_of(checkpoint)) {}

  Result<CheckpointPlan> decide() {
    if (options_.conversion) return decide_conversion();
    for (const auto step :
         {&Decider::check_options, &Decider::judge_all, &Decider::choose_schemes, &Decider::check_patterns,
          &Decider::check_fused, &Decider::check_experts, &Decider::plan_smoothing, &Decider::check_static,
          &Decider::judge_static, &Decider::plan_feedback, &Decider::find_attentions})
      if (Status s = (this->*step)(); !s.ok()) return s;
    for (TensorPlan& tensor : plan_.tensors)
      if (tensor.action == Action::copy && made_.contains(tensor.name)) tensor.action = Action::decode;
    fill_scale_groups();
    fill_ignore();
    add_cache_scales();
    fill_sizes();
    plan_.warnings = gather_warnings(plan_.warnings);
    return std::move(plan_);
  }

 private:
  // What stands for codes gets their values, or keeps them in another layout; all else is copied.
  Result<CheckpointPlan> decide_conversion() {
    if (Status s = find_inputs(); !s.ok()) return s;
    const std::string where = io::printable_path(checkpoint_.path());
    plan_.is_conversion = true;
    if (inputs_.quantized_as.empty())
      return invalid_problem("{}: is not quantized, there is nothing to convert; 'kvant quantize' makes codes", where);
    const bool keeps_codes = !options_.conversion->values;
    if (keeps_codes && inputs_.is_compressed_tensors)
      return invalid_problem("{}: is compressed-tensors already ({}); --to bf16, f16 or f32 gives its values", where,
                             inputs_.quantized_as);
    std::size_t left_out = 0;
    for (model::InputTensor& tensor : inputs_.tensors) {
      // Loaders have a place for them only where quantization_config speaks of them.
      if (!keeps_codes && format::cache_scale_of(tensor.info.name)) {
        ++left_out;
        plan_.bytes_before += tensor.stored_bytes;
        continue;
      }
      TensorPlan plan{.name = tensor.info.name,
                      .shard = tensor.shard,
                      .role = model::judge(tensor.info, facts_.model_type).role,
                      .dtype = tensor.info.dtype,
                      .shape = tensor.info.shape,
                      .bytes_before = tensor.stored_bytes};
      const bool is_decoded = tensor.is_decoded();
      const bool is_made = is_decoded || (tensor.source && checkpoint_.find(plan.name) == nullptr);
      plan.reason = is_decoded ? inputs_.quantized_as : is_made ? "a part of a stack of experts" : "not quantized";
      plan.source = std::move(tensor.source);
      if (is_made) plan.action = Action::decode;
      if (is_decoded && options_.conversion->values) plan.dtype = *options_.conversion->values;
      if (is_decoded && keeps_codes)
        if (Status s = plan_recoding(plan); !s.ok()) return s;
      plan_.tensors.push_back(std::move(plan));
    }
    fill_ignore();
    fill_sizes();
    if (left_out > 0) {
      plan_.fp8_kv_cache = false;
      plan_.warnings.push_back(
          fmt::format("{} scales of FP8 keys and values are left out: loaders have no place for them in a model that "
                      "is not quantized",
                      left_out));
    }
    if (inexact_ > 0)
      plan_.warnings.push_back(
          fmt::format("{} of {} layers have a global scale whose inverse is no f32: their codes stay, some of their "
                      "values change in the last bit",
                      inexact_, std::count_if(plan_.tensors.begin(), plan_.tensors.end(), [](const TensorPlan& tensor) {
                        return tensor.action == Action::recode;
                      })));
    return std::move(plan_);
  }

  Status plan_recoding(TensorPlan& plan) {
    const format::WeightSource& source = *plan.source;
    const format::QuantizedLayer& layer = *source.codes;
    const std::string where = io::printable_path(checkpoint_.path());
    if (source.turned_experts != 0)
      return unsupported(
          "{}: '{}' is a stack of experts, which has no place in compressed-tensors; --to bf16 decodes it", where,
          io::printable(plan.name));
    if (layer.group_of_column != nullptr)
      return unsupported(
          "{}: the groups of '{}' are no neighbours (GPTQ's desc_act), which kvant does not write as "
          "compressed-tensors; --to bf16 decodes them, 'kvant quantize' makes new codes",
          where, io::printable(layer.module));
    const std::int64_t unit = format::column_unit(layer.scheme.weights);
    if (layer.columns % static_cast<std::uint64_t>(unit) != 0)
      return unsupported("{}: '{}' has {} input channels, which are not a multiple of {}; --to bf16 decodes it", where,
                         io::printable(layer.module), layer.columns, unit);
    plan.action = Action::recode;
    if (!format::survives_dividing(layer)) ++inexact_;
    const auto known = std::find(plan_.schemes.begin(), plan_.schemes.end(), layer.scheme);
    plan.scheme = static_cast<std::size_t>(known - plan_.schemes.begin());
    if (known == plan_.schemes.end()) plan_.schemes.push_back(layer.scheme);
    return {};
  }

  Status find_inputs() {
    auto inputs = model::input_tensors(checkpoint_);
    if (!inputs.ok()) return inputs.status();
    inputs_ = std::move(inputs).value();
    if (Status s = refuse_unexplained(checkpoint_, inputs_); !s.ok()) return s;
    plan_.model_type = facts_.model_type;
    plan_.quantized_as = inputs_.quantized_as;
    plan_.fp8_kv_cache = inputs_.fp8_kv_cache;
    return {};
  }

  Status check_options() {
    if (Status s = find_inputs(); !s.ok()) return s;
    if (options_.smooth && stats_ == nullptr)
      return invalid_problem("--smooth needs activation statistics; give them with --stats FILE");
    if (options_.fp8_kv_cache && stats_ == nullptr)
      return invalid_problem("--kv-fp8 needs activation statistics; give them with --stats FILE");
    if (options_.feedback && stats_ == nullptr)
      return invalid_problem(
          "--method gptq needs the Hessians of activation statistics; 'kvant calibrate --hessian' collects them, "
          "--stats "
          "FILE gives them");
    plan_.schemes.push_back(options_.scheme);
    std::vector<std::string> patterns;
    for (const SchemeOverride& override : options_.overrides) {
      patterns.push_back(override.pattern);
      if (override.scheme &&
          std::find(plan_.schemes.begin(), plan_.schemes.end(), *override.scheme) == plan_.schemes.end())
        plan_.schemes.push_back(*override.scheme);
    }
    for (const format::Scheme& scheme : plan_.schemes)
      if (scheme.needs_statistics() && stats_ == nullptr)
        return invalid_problem("{} needs activation statistics; give them with --stats FILE", format::describe(scheme));
    const auto needs = std::find_if(plan_.schemes.begin(), plan_.schemes.end(),
                                    [](const format::Scheme& scheme) { return scheme.needs_statistics(); });
    if (stats_ != nullptr && (options_.smooth || needs != plan_.schemes.end()) && !stats_->has_ranges())
      return invalid_problem(
          "{}: has no absmax, min or max of activations (an imatrix has none), which {} needs; 'kvant calibrate' "
          "collects them",
          io::printable_path(stats_->path()), options_.smooth ? std::string("--smooth") : format::describe(*needs));
    auto overridden = format::Patterns::parse(patterns);
    if (!overridden.ok()) return overridden.status();
    overridden_ = std::move(overridden).value();
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
    for (model::InputTensor& tensor : inputs_.tensors) {
      if (!tensor.info.name.starts_with(options_.only)) continue;
      TensorPlan plan{.name = tensor.info.name,
                      .shard = tensor.shard,
                      .dtype = tensor.info.dtype,
                      .shape = tensor.info.shape,
                      .bytes_before = tensor.stored_bytes};
      if (Status s = judge_one(tensor.info, plan); !s.ok()) return s;
      // What is not a tensor of the input cannot be copied.
      const bool is_made = tensor.source && (tensor.source->codes || checkpoint_.find(plan.name) == nullptr);
      plan.source = std::move(tensor.source);
      if (is_made) made_.insert(plan.name);
      if (const std::string_view module = format::module_of(plan.name); !module.empty()) modules_.emplace(module);
      by_name_.emplace(plan.name, plan_.tensors.size());
      plan_.tensors.push_back(std::move(plan));
    }
    if (options_.only.empty() && std::none_of(plan_.tensors.begin(), plan_.tensors.end(),
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
    if (!module.empty() && possible && ignored == nullptr)
      if (const std::string* pattern = overridden_.match(module))
        if (const SchemeOverride& override = override_of(*pattern); !override.scheme) {
          matched_.insert(*pattern);
          plan.reason = fmt::format("matches --override {}=none", io::printable(*pattern));
          return {};
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

  const SchemeOverride& override_of(const std::string& pattern) const {
    return *std::find_if(options_.overrides.begin(), options_.overrides.end(),
                         [&](const SchemeOverride& o) { return o.pattern == pattern; });
  }

  // The scheme may still say no.
  Status want_quantized(const io::TensorInfo& tensor, TensorPlan& plan) {
    if (tensor.shape[0] == 0 || tensor.shape[1] == 0) {
      plan.reason = "has no elements";
      return {};
    }
    plan.action = Action::quantize;
    const std::string* const pattern = overridden_.match(format::module_of(tensor.name));
    if (pattern == nullptr) return {};
    matched_.insert(*pattern);
    const SchemeOverride& override = override_of(*pattern);
    if (!override.scheme) return {};  // --include counts more
    plan.reason += fmt::format(", --override {}", io::printable(*pattern));
    plan.scheme = static_cast<std::size_t>(std::find(plan_.schemes.begin(), plan_.schemes.end(), *override.scheme) -
                                           plan_.schemes.begin());
    return {};
  }

  // Leaves out what does not fit its scheme, after the group size that is to fit all is found.
  Status choose_schemes() {
    if (options_.fits_group_size)
      if (Status s = find_group_size(); !s.ok()) return s;
    std::size_t wanted = 0;
    for (TensorPlan& tensor : plan_.tensors) {
      if (tensor.action != Action::quantize) continue;
      ++wanted;
      if (const std::string reason = why_unfit(tensor); !reason.empty()) leave_out(tensor, reason);
    }
    leave_out_broken_blocks();
    leave_out_torn_experts();
    if (2 * left_out_.size() <= wanted || !options_.only.empty()) return {};
    const TensorPlan& first = *left_out_.front();
    return invalid_problem("{}: {} would leave {} of {} layers as they are, the first is '{}': {}",
                           io::printable_path(checkpoint_.path()), format::describe(plan_.schemes[first.scheme]),
                           left_out_.size(), wanted, io::printable(format::module_of(first.name)), first.reason);
  }

  void leave_out(TensorPlan& tensor, const std::string& reason) {
    tensor.action = Action::copy;
    tensor.reason = reason;
    left_out_.push_back(&tensor);
    plan_.warnings.push_back(
        fmt::format("'{}' is not quantized: {}", io::printable(format::module_of(tensor.name)), reason));
  }

  static constexpr std::array<std::int64_t, 3> kGroupSizes = {128, 64, 32};

  // The largest that all layers of the first scheme are multiples of.
  Status find_group_size() {
    format::Scheme& scheme = plan_.schemes[0];
    for (const std::int64_t size : kGroupSizes) {
      const TensorPlan* unfit = nullptr;
      for (const TensorPlan& tensor : plan_.tensors)
        if (tensor.action == Action::quantize && tensor.scheme == 0 &&
            tensor.shape[1] % static_cast<std::uint64_t>(size) != 0)
          unfit = &tensor;
      if (unfit == nullptr) {
        scheme.weights.group_size = size;
        return {};
      }
      if (size == kGroupSizes.back())
        return invalid_problem(
            "--group-size auto: the {} input channels of '{}' are a multiple of none of 128, 64 and 32; leave it out "
            "with "
            "--ignore, or use --group-size -1",
            unfit->shape[1], io::printable(format::module_of(unfit->name)));
    }
    return {};
  }

  // Empty: the weight fits.
  std::string why_unfit(const TensorPlan& tensor) const {
    const format::Scheme& scheme = plan_.schemes[tensor.scheme];
    const format::WeightScheme& weights = scheme.weights;
    const auto unit = static_cast<std::uint64_t>(format::column_unit(weights));
    const std::uint64_t columns = tensor.shape[1];
    // Blocks of weights may be cut short; loaders refuse to do so with groups of activations.
    const auto together = static_cast<std::uint64_t>(scheme.activations ? scheme.activations->group_size : 0);
    if (columns % unit == 0 && (together == 0 || columns % together == 0)) return {};
    if (columns % unit == 0)
      return fmt::format("{} input channels are not a multiple of the {} activations that share a scale", columns,
                         together);
    if (!weights.has_groups()) return fmt::format("{} input channels are not a multiple of {}", columns, unit);
    std::string reason = fmt::format("{} input channels are not a multiple of the group size {}", columns, unit);
    // --group-size is the first scheme's.
    if (tensor.scheme != 0 || weights.strategy != format::Strategy::group || weights.scale_code) return reason;
    for (const std::int64_t size : kGroupSizes)
      if (columns % static_cast<std::uint64_t>(size) == 0)
        return reason + fmt::format("; --group-size {} fits, auto finds one for all layers", size);
    return reason;
  }

  // Loaders join the rows of scales of fused parts: blocks must end where a part does, but for the last.
  void leave_out_broken_blocks() {
    for (TensorPlan& tensor : plan_.tensors) {
      const format::Scheme* const scheme = plan_.scheme_of(tensor);
      if (scheme == nullptr || scheme->weights.strategy != format::Strategy::block) continue;
      const auto rows = static_cast<std::uint64_t>(scheme->weights.block_rows);
      const std::vector<std::string> parts = model::fused_parts(format::module_of(tensor.name));
      if (parts.empty() || parts.back() == format::module_of(tensor.name) || tensor.shape[0] % rows == 0) continue;
      const std::string reason = fmt::format(
          "loaders join {}, and the {} rows of '{}' are not a multiple of the {} of a block", base::joined(parts, ", "),
          tensor.shape[0], format::last_component(format::module_of(tensor.name)), rows);
      for (const std::string& part : parts)
        if (TensorPlan* plan = plan_of(part, ".weight"); plan != nullptr && plan->action == Action::quantize)
          leave_out(*plan, reason);
    }
  }

  // Loaders join the experts of a layer into one stack: all of them stay if one does not fit.
  void leave_out_torn_experts() {
    std::map<std::string, std::string, std::less<>> torn;  // the first that is left out, by its experts
    for (const TensorPlan* tensor : left_out_)
      if (const std::string_view module = format::module_of(tensor->name), experts = format::experts_of(module);
          !experts.empty())
        torn.emplace(experts, module);
    for (TensorPlan& tensor : plan_.tensors) {
      const auto found = torn.find(format::experts_of(format::module_of(tensor.name)));
      if (found == torn.end() || tensor.action != Action::quantize) continue;
      leave_out(tensor, fmt::format("loaders join the experts of a layer into one stack, and '{}' is not quantized",
                                    io::printable(found->second)));
    }
  }

  Status check_patterns() {
    if (!options_.only.empty()) return {};
    for (const auto* list : {&options_.ignore, &options_.include})
      for (const std::string& pattern : *list)
        if (!matched_.contains(pattern))
          return invalid_problem(
              "{} {} matches no module of {}; 'kvant inspect' lists them (a module is a tensor's name "
              "without .weight)",
              list == &options_.ignore ? "--ignore" : "--include", io::printable(pattern),
              io::printable_path(checkpoint_.path()));
    for (const SchemeOverride& override : options_.overrides)
      if (!matched_.contains(override.pattern))
        return invalid_problem("--override {} matches no Linear of {} that another option leaves",
                               io::printable(override.pattern), io::printable_path(checkpoint_.path()));
    return {};
  }

  Status check_fused() {
    for (const TensorPlan& tensor : plan_.tensors) {
      if (tensor.action != Action::quantize) continue;
      const std::string_view module = format::module_of(tensor.name);
      for (const std::string& other : model::fused_siblings(module)) {
        const TensorPlan* found = plan_of(other, ".weight");
        if (found == nullptr || (found->action == Action::quantize && found->scheme == tensor.scheme)) continue;
        if (found->action == Action::quantize)
          return invalid_problem("'{}' would be {} and '{}' {}, but loaders join them into one matrix: use one scheme",
                                 io::printable(module), format::describe(plan_.schemes[tensor.scheme]),
                                 io::printable(other), format::describe(plan_.schemes[found->scheme]));
        return invalid_problem(
            "'{}' would be quantized and '{}' would not ({}), but loaders join them into one matrix: include or ignore "
            "both",
            io::printable(module), io::printable(other), found->reason);
      }
    }
    return {};
  }

  // What an expert becomes, in words.
  std::string fate_of(const TensorPlan& tensor) const {
    return tensor.action == Action::quantize ? format::describe(plan_.schemes[tensor.scheme])
                                             : fmt::format("not quantized ({})", tensor.reason);
  }

  // The experts of a layer are one stack to loaders: they need one scheme, and one that loaders have for them.
  Status check_experts() {
    std::map<std::string_view, const TensorPlan*> first_of;
    for (const TensorPlan& tensor : plan_.tensors) {
      const std::string_view module = format::module_of(tensor.name), experts = format::experts_of(module);
      if (experts.empty() || !model::is_linear_module(tensor.role)) continue;
      const TensorPlan& first = *first_of.emplace(experts, &tensor).first->second;
      const format::Scheme* const scheme = plan_.scheme_of(tensor);
      if (scheme != plan_.scheme_of(first))
        return invalid_problem(
            "'{}' would be {} and '{}' {}, but loaders join the experts of a layer into one stack: use one scheme for "
            "all of them",
            io::printable(format::module_of(first.name)), fate_of(first), io::printable(module), fate_of(tensor));
      if (scheme == nullptr || format::against_experts(*scheme).empty()) continue;
      return unsupported(
          "'{}' is an expert and would be {}, but {}: take another scheme, or leave experts as they are with "
          "--override 're:.*experts.*=none'",
          io::printable(module), format::describe(*scheme), format::against_experts(*scheme));
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
    for (const model::SmoothGroup& group : found->groups)
      if (group.norm.starts_with(options_.only)) plan_group(group, options_.smooth_groups.has_value());
    if (plan_.smoothed.empty() && options_.only.empty())
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
    for (const TensorPlan& tensor : plan_.tensors) {
      const format::Scheme* const scheme = plan_.scheme_of(tensor);
      if (scheme == nullptr || !scheme->needs_statistics()) continue;
      const std::string file = io::printable_path(stats_->path());
      const std::string_view module = format::module_of(tensor.name);
      if (scheme->has_asymmetric_activations() && !stats_->has_min_max(module))
        return invalid_problem("{}: has no '{}.min' and '.max', which {} needs", file, io::printable(module),
                               format::describe(*scheme));
      if (!scheme->has_asymmetric_activations() && !stats_->has_absmax(module))
        return invalid_problem(
            "{}: has no '{}.absmax', which {} needs; collect it or leave the layer out with "
            "--ignore",
            file, io::printable(module), format::describe(*scheme));
    }
    return {};
  }

  // A stored scale that makes zeros of most of what a layer reads spoils the model, and nobody sees it from the
  // weights.
  static constexpr double kUsualInputDb = 12;

  Status judge_static() {
    for (TensorPlan& tensor : plan_.tensors) {
      const format::Scheme* const scheme = plan_.scheme_of(tensor);
      const std::string_view module = format::module_of(tensor.name);
      if (scheme == nullptr || !scheme->has_static_integers() || tensor.smooth_group ||
          !stats_->has(module, format::Statistic::histogram))
        continue;
      const auto saved = static_activation(*stats_, module, tensor.shape[1], {}, *scheme->activations,
                                           options_.activation_range, ElementKind::f32);
      if (!saved.ok()) return saved.status();
      const auto usual = usual_inputs(*stats_, module, scheme->activations->code, *saved);
      if (!usual.ok()) return usual.status();
      if (usual->sqnr_db >= options_.least_input_db.value_or(kUsualInputDb)) continue;
      const auto absmax = stats_->absmax(module, tensor.shape[1]);
      if (!absmax.ok()) return absmax.status();
      const std::string reason = fmt::format(
          "one scale for all its inputs keeps {:.1f} dB of the usual ones, which reach {:.3g}; the largest is {:.3g}",
          usual->sqnr_db, usual->largest, *std::ranges::max_element(*absmax));
      if (options_.least_input_db)
        leave_out(tensor, reason);
      else
        plan_.warnings.push_back(fmt::format(
            "'{}': {}; --min-input-sqnr {:g} leaves such layers as they are, w8a8 has a scale for each token",
            io::printable(module), reason, kUsualInputDb));
    }
    return {};
  }

  // GPTQ of the layers whose input the statistics know.
  Status plan_feedback() {
    if (!options_.feedback) return {};
    const std::string file = io::printable_path(stats_->path());
    std::size_t known = 0;
    std::vector<std::string> unknown;
    for (TensorPlan& tensor : plan_.tensors) {
      const format::Scheme* const scheme = plan_.scheme_of(tensor);
      // A scale over many rows is not theirs alone.
      if (scheme == nullptr || !format::has_scale_of_row(scheme->weights)) continue;
      const std::string_view module = format::module_of(tensor.name);
      const io::TensorInfo* const hessian = stats_->find(module, format::Statistic::hessian);
      if (hessian == nullptr) {
        unknown.push_back(fmt::format("'{}' is rounded to nearest: the statistics have no Hessian of its input",
                                      io::printable(module)));
        continue;
      }
      if (hessian->shape[0] != tensor.shape[1])
        return invalid_problem("{}: the Hessian of '{}' has {} channels, its weight has {}", file,
                               io::printable(module), hessian->shape[0], tensor.shape[1]);
      tensor.has_feedback = true;
      ++known;
    }
    if (known == 0 && !options_.only.empty()) return {};
    if (known == 0 && unknown.empty())
      return unsupported("--method gptq: {} has scales that rows share; GPTQ takes a scale for each channel or group",
                         format::describe(options_.scheme));
    if (known == 0)
      return invalid_problem(
          "{}: has no Hessians, which --method gptq needs; 'kvant calibrate --hessian' collects them", file);
    plan_.warnings.insert(plan_.warnings.end(), unknown.begin(), unknown.end());
    return {};
  }

  // Those that --kv-fp8 gives scales: whose keys and values the statistics must know.
  Status find_attentions() {
    if (!options_.fp8_kv_cache) return {};
    const std::string where = io::printable_path(checkpoint_.path()), file = io::printable_path(stats_->path());
    if (const std::string reason = model::against_cache_scales(facts_.model_type); !reason.empty())
      return unsupported("{}: --kv-fp8: {}", where, reason);
    for (const TensorPlan& tensor : plan_.tensors) {
      const std::string_view module = format::module_of(tensor.name);
      const std::string_view attention = format::cached_attention_of(tensor.name);
      if (module.empty() || attention.empty() || tensor.shape.size() != 2 || !format::element_of(tensor.dtype))
        continue;
      // Beside the keys' own weight, where they have one.
      const auto [place, is_new] = attentions_.try_emplace(std::string(attention), tensor.name);
      if (!is_new && module == format::cache_projection(attention, format::CacheHalf::keys))
        place->second = tensor.name;
    }
    if (attentions_.empty())
      return unsupported("{}: --kv-fp8: no attention layer of it is called '{}', so loaders would find no scales",
                         where, format::kCachedAttention);
    const auto has = [&](const std::string& attention, format::CacheHalf half) {
      return stats_->has_absmax(format::cache_statistics_module(attention, half));
    };
    if (std::none_of(attentions_.begin(), attentions_.end(),
                     [&](const auto& each) { return has(each.first, format::CacheHalf::keys); }))
      return invalid_problem(
          "{}: has nothing of keys and values, such as '{}', which --kv-fp8 needs; 'kvant calibrate' of this version "
          "collects them",
          file, cache_statistic(attentions_.begin()->first, format::CacheHalf::keys));
    for (const auto& [attention, beside] : attentions_)
      for (const format::CacheHalf half : format::kCacheHalves) {
        if (!has(attention, half))
          return invalid_problem("{}: has no '{}', which --kv-fp8 needs for the {} of '{}'", file,
                                 cache_statistic(attention, half), format::name(half), io::printable(attention));
        const std::string projection = format::cache_projection(attention, half);
        const TensorPlan* const weight = plan_of(projection, ".weight");
        const std::uint64_t channels = *stats_->in_features(format::cache_statistics_module(attention, half));
        if (weight != nullptr && weight->shape.size() == 2 && weight->shape[0] != channels)
          return invalid_problem("{}: '{}' has {} values, '{}.weight' has {} rows", file,
                                 cache_statistic(attention, half), channels, io::printable(projection),
                                 weight->shape[0]);
      }
    return {};
  }

  static std::string cache_statistic(std::string_view attention, format::CacheHalf half) {
    return io::printable(
        format::statistic_name(format::cache_statistics_module(attention, half), format::Statistic::absmax));
  }

  // New scales, in place of those that the input has. Last: indices and pointers into the list end here.
  void add_cache_scales() {
    if (!options_.fp8_kv_cache) return;
    plan_.fp8_kv_cache = true;
    std::vector<TensorPlan> tensors;
    std::size_t replaced = 0;
    for (TensorPlan& tensor : plan_.tensors) {
      if (format::cache_scale_of(tensor.name)) {
        ++replaced;
        plan_.bytes_before += tensor.bytes_before;
        continue;
      }
      tensors.push_back(std::move(tensor));
      const TensorPlan beside = tensors.back();
      const std::string attention(format::cached_attention_of(beside.name));
      if (const auto found = attentions_.find(attention); found == attentions_.end() || found->second != beside.name)
        continue;
      for (const format::CacheHalf half : format::kCacheHalves)
        tensors.push_back({.name = format::cache_scale_name(attention, half),
                           .shard = beside.shard,
                           .action = Action::add_scale,
                           .reason = fmt::format("--kv-fp8, by '{}'", cache_statistic(attention, half)),
                           .dtype = format::scale_dtype(options_.scheme, beside.dtype),
                           .shape = {1}});
    }
    plan_.tensors = std::move(tensors);
    if (replaced > 0)
      plan_.warnings.push_back(
          fmt::format("{} scales of keys and values that the input has are replaced by those of --kv-fp8", replaced));
  }

  // Weights with one scale for all of them share it where loaders join them: vLLM would take the largest for all.
  void fill_scale_groups() {
    for (TensorPlan& tensor : plan_.tensors) {
      const format::Scheme* const scheme = plan_.scheme_of(tensor);
      if (scheme == nullptr || !scheme->weights.has_tensor_scale() || tensor.scale_group) continue;
      tensor.scale_group = plan_.scale_groups++;
      for (const std::string& sibling : model::fused_siblings(format::module_of(tensor.name)))
        if (TensorPlan* const other = plan_of(sibling, ".weight"))
          if (other->action == Action::quantize) other->scale_group = tensor.scale_group;
    }
  }

  // Exact names of all that a loader takes for a Linear and that stays as it is.
  void fill_ignore() {
    bool has_head = false;
    for (const TensorPlan& tensor : plan_.tensors) {
      has_head |= tensor.role == model::Role::lm_head;
      if (model::is_linear_module(tensor.role) && !has_codes(tensor.action))
        plan_.ignore.emplace_back(format::module_of(tensor.name));
    }
    // A head that shares the embedding's weight is a Linear all the same.
    if (!has_head) plan_.ignore.emplace_back("lm_head");
    std::sort(plan_.ignore.begin(), plan_.ignore.end());
  }

  void fill_sizes() {
    for (TensorPlan& tensor : plan_.tensors) {
      tensor.bytes_after = io::tensor_bytes(tensor.dtype, tensor.shape).value_or(tensor.bytes_before);
      if (has_codes(tensor.action)) {
        tensor.bytes_after = 0;
        for (const format::LayerOutput& output :
             format::layer_outputs(plan_.schemes[tensor.scheme], format::module_of(tensor.name), tensor.dtype,
                                   tensor.shape[0], tensor.shape[1]))
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
  format::Patterns ignore_, include_, overridden_;
  std::set<std::string> matched_;
  std::set<std::string, std::less<>> modules_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  CheckpointPlan plan_;
  model::InputTensors inputs_;
  std::set<std::string, std::less<>> made_;  // weights that are no tensors of the input
  std::vector<const TensorPlan*> left_out_;  // of plan_, by the scheme
  // Layers of attention that get scales, and the weight that these are put beside.
  std::map<std::string, std::string, std::less<>> attentions_;
  std::size_t inexact_ = 0;  // layers whose values do not survive their new layout
};

}  // namespace

Result<CheckpointPlan> decide(const io::Checkpoint& checkpoint, const QuantizeOptions& options,
                              const format::ActivationStats* stats) {
  return Decider(checkpoint, options, stats).decide();
}

}  // namespace kvant::quantize
