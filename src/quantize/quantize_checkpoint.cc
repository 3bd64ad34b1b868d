#include "quantize/quantize_checkpoint.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <span>

#include "base/for_each_part.h"
#include "base/refuse.h"
#include "format/activation_stats.h"
#include "format/element_dtype.h"
#include "format/kv_cache.h"
#include "format/module_name.h"
#include "format/quantization_config.h"
#include "format/weight_form.h"
#include "io/atomic_file.h"
#include "io/checkpoint.h"
#include "io/json.h"
#include "kvant/stream.h"
#include "model/imatrix.h"
#include "model/model_facts.h"
#include "quantize/checksums.h"
#include "quantize/companion_files.h"
#include "quantize/decide.h"
#include "quantize/feedback_factors.h"
#include "quantize/manifest.h"
#include "quantize/memory_budget.h"
#include "quantize/output_folder.h"
#include "quantize/recode.h"
#include "quantize/shard_layout.h"
#include "quantize/smoothing_vectors.h"
#include "quantize/static_activations.h"
#include "quantize/tensor_ranges.h"
#include "quantize/tensor_stream.h"

namespace kvant::quantize {
namespace {

namespace fs = std::filesystem;
using base::invalid_problem;

constexpr std::string_view kSuffix = ".safetensors";

// Of a file that knows none of the modules, two names show what is different.
Status check_some_are_known(const format::ActivationStats& stats, const io::Checkpoint& checkpoint) {
  const std::vector<io::TensorInfo>& tensors = stats.tensors();
  if (tensors.empty() || stats.count_known(checkpoint) > 0) return {};
  for (const auto& [name, place] : checkpoint.tensors())
    if (const std::string_view module = format::module_of(name);
        !module.empty() && checkpoint.at(place).shape.size() == 2)
      return invalid_problem(
          "{}: has statistics of none of the checkpoint's modules: it has '{}', the checkpoint has '{}'; names must "
          "agree",
          io::printable_path(stats.path()), io::printable(tensors.front().name), io::printable(module));
  return {};
}

}  // namespace

struct CheckpointQuantizer::Impl {
  Impl(const QuantizeOptions& asked, io::Checkpoint opened)
      : options(asked),
        checkpoint(std::move(opened)),
        stream(asked.threads == 0 ? Stream::cpu() : Stream::cpu(asked.threads)),
        workers(static_cast<std::size_t>(std::max(stream.threads(), 1))) {}

  QuantizeOptions options;
  io::Checkpoint checkpoint;
  std::optional<format::ActivationStats> stats;
  CheckpointPlan plan;
  Stream stream;
  std::uint64_t tile_bytes = 0;
  std::vector<std::string> shard_names;
  std::vector<CompanionFile> files;  // to be copied
  SmoothingVectors vectors;
  std::vector<double> largest;      // of each of the plan's scale groups
  std::vector<TileWorker> workers;  // one for each thread
  QuantizeOutcome outcome;

  bool to_one_file() const { return !checkpoint.is_folder() && options.output.string().ends_with(kSuffix); }
  fs::path shard_path(std::size_t shard) const {
    return to_one_file() ? options.output : options.output / shard_names[shard];
  }

  Status prepare();
  Status check_names() const;
  Status find_files();
  Status check_stats() const;
  std::vector<fs::path> inputs() const;
  Status check_output_is_not_input() const;
  Result<OutputFolder::Request> request() const;

  Result<QuantizeOutcome> run(base::Progress& progress);
  Status check_output() const;
  Status run_to_file(base::Progress& progress);
  Status run_to_folder(base::Progress& progress);
  Status smooth(base::Progress& progress);
  Status find_ranges(base::Progress& progress);
  Result<ShardLayout> lay_out(std::size_t shard) const { return lay_out_shard(checkpoint, shard, plan, to_one_file()); }
  Status write_shard(const ShardLayout& layout, std::size_t shard, bool overwrite, base::Progress& progress);
  Status run_tiles(std::span<TensorStream* const> tensors, io::AtomicFile& file, base::Progress& progress);
  Status run_with_feedback(std::span<TensorStream> tensors, const ShardLayout& layout, io::AtomicFile& file,
                           base::Progress& progress);
  Status write_small_tensors(const ShardLayout& layout, io::AtomicFile& file) const;
  Result<bool> is_whole(const ShardLayout& layout, std::size_t shard) const {
    return is_shard_there(shard_path(shard), layout.header, layout.file_bytes);
  }
  Result<bool> is_all_there(std::span<const std::string> names) const;
  Status copy_file(const CompanionFile& file);
  Status write_index(std::span<const ShardLayout> layouts);
  Status seal(Checksums checksums, std::span<const std::string> names);
  TensorStream stream_of(const ShardLayout::Entry& entry) const;
};

Status CheckpointQuantizer::Impl::prepare() {
  if (!stream.status().ok()) return stream.status();
  if (options.stats) {
    auto opened = model::open_statistics(*options.stats, model::facts_of(checkpoint).model_type);
    if (!opened.ok()) return opened.status();
    opened->find_prefix(checkpoint);
    if (Status s = check_some_are_known(*opened, checkpoint); !s.ok()) return s;
    stats = std::move(opened).value();
  }
  if (Status s = check_output_is_not_input(); !s.ok()) return s;
  auto decided = decide(checkpoint, options, stats ? &*stats : nullptr);
  if (!decided.ok()) return decided.status();
  plan = std::move(decided).value();
  for (std::size_t i = 0; i < checkpoint.shards().size(); ++i)
    shard_names.push_back(checkpoint.is_folder() ? checkpoint.shard_name(i) : std::string(io::kSingleName));
  if (Status s = check_names(); !s.ok()) return s;
  if (Status s = find_files(); !s.ok()) return s;
  const auto budget = memory_budget(checkpoint, plan, options, stream.threads());
  if (!budget.ok()) return budget.status();
  tile_bytes = budget->tile_bytes;
  plan.expected_memory = budget->expected;
  return check_stats();
}

// Looked at here to be refused before anything is written.
Status CheckpointQuantizer::Impl::check_stats() const {
  if (!stats) return {};
  for (const TensorPlan& tensor : plan.tensors) {
    const std::string_view module = format::module_of(tensor.name);
    if (tensor.action == Action::add_scale)
      if (const auto seen = cache_scale(*stats, *format::cache_scale_of(tensor.name), ElementKind::f32); !seen.ok())
        return seen.status();
    if (const format::Scheme* scheme = plan.scheme_of(tensor); scheme != nullptr && scheme->needs_statistics())
      if (const auto seen = static_activation(*stats, module, tensor.shape[1], {}, *scheme->activations,
                                              options.activation_range, ElementKind::f32);
          !seen.ok())
        return seen.status();
    if (const format::Scheme* scheme = plan.scheme_of(tensor); scheme != nullptr &&
                                                               scheme->scale_choice == format::ScaleChoice::search &&
                                                               stats->has(module, format::Statistic::mean_square))
      if (const auto seen = stats->channels(module, format::Statistic::mean_square, tensor.shape[1]); !seen.ok())
        return seen.status();
    const bool is_reader = tensor.smooth_group && tensor.action != Action::fold_norm;
    if (is_reader && stats->has_absmax(module))
      if (const auto seen = stats->absmax(module, tensor.shape[1]); !seen.ok()) return seen.status();
  }
  return {};
}

Status CheckpointQuantizer::Impl::check_names() const {
  if (checkpoint.is_folder() && options.output.string().ends_with(kSuffix))
    return invalid_problem(
        "{}: is the name of a file, but the input is a folder, so the output is a folder too; choose another name",
        io::printable_path(options.output));
  if (to_one_file() && options.smooth)
    return invalid_problem("{}: smoothing writes its vectors next to the checkpoint; give a folder as the output",
                           io::printable_path(options.output));
  for (std::size_t i = 0; i < checkpoint.shards().size(); ++i) {
    const auto layout = lay_out(i);
    if (!layout.ok()) return layout.status();
  }
  return {};
}

Status CheckpointQuantizer::Impl::find_files() {
  if (to_one_file() || !options.only.empty()) return {};
  auto found = find_companion_files(checkpoint);
  if (!found.ok()) return found.status();
  std::string left_out;
  for (const std::string& name : found->left_out) left_out += (left_out.empty() ? "" : ", ") + io::printable(name);
  if (!left_out.empty()) plan.warnings.push_back("not copied: " + left_out);
  files = std::move(found->copied);
  for (const CompanionFile& file : files) plan.files_copied.push_back(file.name);
  return {};
}

std::vector<fs::path> CheckpointQuantizer::Impl::inputs() const {
  std::vector<fs::path> paths;
  for (const io::SafetensorsFile& shard : checkpoint.shards()) paths.push_back(shard.file().path());
  for (const fs::path& path : checkpoint.other_files()) paths.push_back(path);
  for (const CompanionFile& file : files) paths.push_back(file.from);
  if (checkpoint.is_folder())
    for (const std::string_view name : {io::kConfigName, io::kIndexName}) paths.push_back(checkpoint.path() / name);
  if (options.stats) paths.push_back(*options.stats);
  if (options.smooth_groups) paths.emplace_back(*options.smooth_groups);
  return paths;
}

Status CheckpointQuantizer::Impl::check_output_is_not_input() const {
  if (options.output.empty()) return {};  // what is only planned has none; run() refuses
  std::vector<fs::path> all = inputs();
  all.push_back(options.input);
  // Its temporary file counts too: a run that goes on removes one that is left over.
  const fs::path partial = io::partial_of(options.output);
  for (const fs::path& output : {options.output, partial}) {
    const auto identity = identity_of(output);
    if (!identity) continue;
    for (const fs::path& path : all)
      if (identity_of(path) == identity)
        return invalid_problem("{}: the output {} the input {}; choose another name", io::printable_path(output),
                               output == partial ? "would replace" : "is", io::printable_path(path));
  }
  if (!checkpoint.is_folder()) return {};
  const auto input = identity_of(options.input);
  std::error_code ignored;
  for (fs::path above = fs::weakly_canonical(options.output, ignored).parent_path();; above = above.parent_path()) {
    if (identity_of(above) == input)
      return invalid_problem("{}: is inside the input {}, which is never changed; choose another folder",
                             io::printable_path(options.output), io::printable_path(options.input));
    if (above == above.parent_path()) return {};
  }
}

Result<OutputFolder::Request> CheckpointQuantizer::Impl::request() const {
  OutputFolder::Request request{.path = options.output,
                                .resume = options.resume,
                                .force = options.force,
                                .manifest = {},
                                .files = shard_names,
                                .protected_files = inputs()};
  for (const CompanionFile& file : files) request.files.push_back(file.name);
  if (checkpoint.index()) request.files.emplace_back(io::kIndexName);
  request.files.push_back(own_name(kChecksumsName));
  request.files.emplace_back(io::kConfigName);
  auto manifest = make_manifest(checkpoint, options, request.files);
  if (!manifest.ok()) return manifest.status();
  request.manifest = std::move(manifest).value();
  return request;
}

TensorStream CheckpointQuantizer::Impl::stream_of(const ShardLayout::Entry& entry) const {
  const TensorPlan& tensor = *entry.plan;
  TensorStream made(checkpoint, tensor, plan.scheme_of(tensor), smoothing_of(tensor, vectors), entry.places,
                    tile_bytes);
  if (tensor.scale_group) made.set_largest(largest[*tensor.scale_group]);
  if (stats) made.set_statistics(*stats);
  return made;
}

// What is one number, or two.
Status CheckpointQuantizer::Impl::write_small_tensors(const ShardLayout& layout, io::AtomicFile& file) const {
  const auto write_number = [&](std::uint64_t at, float value, ElementKind kind) {
    std::byte bytes[4];
    format::store(value, kind, bytes);
    return file.write_at(at, {bytes, static_cast<std::size_t>(row_bytes(kind, 1))});
  };
  for (const ShardLayout::Entry& entry : layout.entries) {
    const TensorPlan& tensor = *entry.plan;
    if (tensor.action == Action::add_scale) {
      const ElementKind kind = *format::element_of(tensor.dtype);
      const auto scale = cache_scale(*stats, *format::cache_scale_of(tensor.name), kind);
      if (!scale.ok()) return scale.status();
      if (Status done = write_number(entry.places.codes, *scale, kind); !done.ok()) return done;
    }
    const format::Scheme* const scheme = plan.scheme_of(tensor);
    if (scheme == nullptr) continue;
    if (tensor.action == Action::recode) {
      if (Status done = recode_parts(checkpoint, entry, *scheme, file); !done.ok()) return done;
      continue;
    }
    const std::string_view module = format::module_of(tensor.name);
    const std::span<const float> s = smoothing_of(tensor, vectors);
    const ElementKind number = *format::element_of(format::scale_dtype(*scheme, tensor.dtype));
    if (entry.weight_shape != 0) {
      const std::uint64_t shape[2] = {tensor.shape[0], tensor.shape[1]};
      if (Status done = file.write_at(entry.weight_shape, std::as_bytes(std::span(shape))); !done.ok()) return done;
    }
    if (scheme->weights.strategy == format::Strategy::tensor)
      if (Status done = write_number(entry.places.scales, stream_of(entry).tensor_scale(), number); !done.ok())
        return done;
    if (entry.global_scale != 0)
      if (Status done = write_number(entry.global_scale, stream_of(entry).tensor_scale(), ElementKind::f32); !done.ok())
        return done;
    if (entry.input_global_scale != 0) {
      const auto global = activation_global_scale(*stats, module, tensor.shape[1], s, *scheme->activations);
      if (!global.ok()) return global.status();
      if (Status done = write_number(entry.input_global_scale, *global, ElementKind::f32); !done.ok()) return done;
    }
    if (entry.input_scale == 0) continue;
    const auto activation =
        static_activation(*stats, module, tensor.shape[1], s, *scheme->activations, options.activation_range, number);
    if (!activation.ok()) return activation.status();
    if (Status done = write_number(entry.input_scale, activation->scale, number); !done.ok()) return done;
    if (entry.input_zero_point == 0) continue;
    const auto zero_point = static_cast<std::byte>(activation->zero_point);
    if (Status done = file.write_at(entry.input_zero_point, {&zero_point, 1}); !done.ok()) return done;
  }
  return {};
}

Status CheckpointQuantizer::Impl::write_shard(const ShardLayout& layout, std::size_t shard, bool overwrite,
                                              base::Progress& progress) {
  auto file = io::AtomicFile::create(shard_path(shard), options.resume || options.force);
  if (!file.ok()) return file.status();
  if (Status s = file->write_at(0, std::as_bytes(std::span(layout.header))); !s.ok()) return s;
  if (Status s = write_small_tensors(layout, *file); !s.ok()) return s;
  std::vector<TensorStream> tensors;
  for (const ShardLayout::Entry& entry : layout.entries) tensors.push_back(stream_of(entry));
  std::vector<TensorStream*> plain;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (!layout.entries[i].plan->has_feedback) plain.push_back(&tensors[i]);
  if (Status s = run_tiles(plain, *file, progress); !s.ok()) return s;
  if (Status s = run_with_feedback(tensors, layout, *file, progress); !s.ok()) return s;
  if (Status s = checkpoint.shards()[shard].file().check_unchanged(); !s.ok()) return s;
  if (Status s = file->commit(overwrite); !s.ok()) return s;
  ++outcome.shards_written;
  outcome.bytes_written += layout.file_bytes;
  for (const ShardLayout::Entry& entry : layout.entries) outcome.bytes_read += entry.plan->bytes_before;
  return {};
}

Status CheckpointQuantizer::Impl::run_tiles(std::span<TensorStream* const> tensors, io::AtomicFile& file,
                                            base::Progress& progress) {
  std::vector<std::uint64_t> begins;  // of each tensor, in tiles of all
  std::uint64_t tiles = 0;
  for (const TensorStream* tensor : tensors) {
    begins.push_back(tiles);
    tiles += tensor->tiles();
  }
  return base::for_each_part(stream, 0, tiles, [&](std::size_t worker, std::uint64_t tile) -> Status {
    const auto tensor =
        static_cast<std::size_t>(std::upper_bound(begins.begin(), begins.end(), tile) - begins.begin()) - 1;
    const std::uint64_t of_tensor = tile - begins[tensor];
    if (Status s = tensors[tensor]->run(of_tensor, workers[worker], file); !s.ok()) return s;
    progress.advance(tensors[tensor]->bytes_of(of_tensor));
    return {};
  });
}

// Input by input: its factors serve all weights that read it, and then make room for those of the next.
Status CheckpointQuantizer::Impl::run_with_feedback(std::span<TensorStream> tensors, const ShardLayout& layout,
                                                    io::AtomicFile& file, base::Progress& progress) {
  using Input = std::pair<const io::TensorInfo*, const float*>;  // its Hessian, and what smoothing divides it by
  std::vector<std::pair<Input, std::vector<std::size_t>>> inputs;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorPlan& tensor = *layout.entries[i].plan;
    if (!tensor.has_feedback) continue;
    const Input input = {stats->find(format::module_of(tensor.name), format::Statistic::hessian),
                         smoothing_of(tensor, vectors).data()};
    auto known = std::find_if(inputs.begin(), inputs.end(), [&](const auto& other) { return other.first == input; });
    if (known == inputs.end()) known = inputs.insert(known, {input, {}});
    known->second.push_back(i);
  }
  for (const auto& [input, readers] : inputs) {
    const TensorPlan& first = *layout.entries[readers.front()].plan;
    const std::string_view module = format::module_of(first.name);
    const auto factors = FeedbackFactors::make(
        stream, first.shape[1],
        [&](std::uint64_t row, std::span<float> to) { return stats->read_hessian(module, first.shape[1], row, to); },
        smoothing_of(first, vectors), *options.feedback);
    if (!factors.ok()) return factors.status();
    if (!*factors)
      return invalid_problem(
          "{}: the Hessian of '{}' is no sum of squares: with the mean of its diagonal added to it, a pivot is not "
          "positive",
          io::printable_path(stats->path()), io::printable(module));
    std::vector<TensorStream*> streams;
    for (const std::size_t i : readers) {
      tensors[i].set_feedback(**factors);
      streams.push_back(&tensors[i]);
    }
    if (Status s = run_tiles(streams, file, progress); !s.ok()) return s;
  }
  return {};
}

// Has nothing been taken away from a run that had finished?
Result<bool> CheckpointQuantizer::Impl::is_all_there(std::span<const std::string> names) const {
  std::error_code error;
  for (const std::string& name : names)
    if (!fs::exists(options.output / name, error)) return false;
  for (std::size_t i = 0; i < shard_names.size(); ++i) {
    const auto layout = lay_out(i);
    if (!layout.ok()) return layout.status();
    auto whole = is_whole(*layout, i);
    if (!whole.ok() || !*whole) return whole;
  }
  return true;
}

Status CheckpointQuantizer::Impl::smooth(base::Progress& progress) {
  auto made = make_smoothing_vectors(checkpoint, plan, *stats, stream, tile_bytes, progress);
  if (!made.ok()) return made.status();
  vectors = std::move(made).value();
  return {};
}

Status CheckpointQuantizer::Impl::find_ranges(base::Progress& progress) {
  auto found = find_tensor_ranges(checkpoint, plan, vectors, stream, workers, tile_bytes, progress);
  if (!found.ok()) return found.status();
  largest = std::move(found).value();
  return {};
}

Status CheckpointQuantizer::Impl::check_output() const {
  if (!to_one_file()) {
    const auto wanted = request();
    return wanted.ok() ? OutputFolder::look(*wanted).status() : wanted.status();
  }
  std::error_code error;
  if (fs::exists(fs::symlink_status(options.output, error)) && !options.force)
    return invalid_problem("{}: already exists; choose another name, or use --force to replace it",
                           io::printable_path(options.output));
  const fs::path partial = io::partial_of(options.output);
  if (fs::exists(fs::symlink_status(partial, error)) && !options.force && !options.resume)
    return invalid_problem("{}: a run is writing it, or was killed; --resume or --force replaces it",
                           io::printable_path(partial));
  return {};
}

Status CheckpointQuantizer::Impl::run_to_file(base::Progress& progress) {
  if (Status s = check_output(); !s.ok()) return s;
  const auto layout = lay_out(0);
  if (!layout.ok()) return layout.status();
  if (Status s = find_ranges(progress); !s.ok()) return s;
  progress.begin(plan.is_conversion ? "converting" : "quantizing", plan.bytes_before);
  return write_shard(*layout, 0, options.force, progress);
}

Status CheckpointQuantizer::Impl::run_to_folder(base::Progress& progress) {
  const auto wanted = request();
  if (!wanted.ok()) return wanted.status();
  auto state = OutputFolder::look(*wanted);
  if (!state.ok()) return state.status();
  if (*state == OutputFolder::State::finished) {
    const auto whole = is_all_there(wanted->files);
    if (!whole.ok()) return whole.status();
    if (*whole) {
      outcome.shards_kept = shard_names.size();
      return {};
    }
  }
  // Before the folder is made: a fold that overflows must not leave one.
  if (options.smooth && *state == OutputFolder::State::fresh)
    if (Status s = smooth(progress); !s.ok()) return s;
  const auto folder = OutputFolder::open(*wanted);
  if (!folder.ok()) return folder.status();
  if (options.smooth) {
    const fs::path path = folder->own(kSmoothingName);
    std::error_code error;
    if (folder->state() == OutputFolder::State::unfinished && fs::exists(path, error)) {
      auto read = read_smoothing_vectors(path, checkpoint, plan);
      if (!read.ok()) return read.status();
      vectors = std::move(read).value();
    } else {
      if (vectors.empty())
        if (Status s = smooth(progress); !s.ok()) return s;
      if (Status s = write_smoothing_vectors(path, plan, vectors); !s.ok()) return s;
    }
  }
  std::vector<ShardLayout> layouts;
  std::vector<bool> whole;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < shard_names.size(); ++i) {
    auto layout = lay_out(i);
    if (!layout.ok()) return layout.status();
    bool is_there = false;
    if (folder->state() == OutputFolder::State::unfinished) {
      const auto found = is_whole(*layout, i);
      if (!found.ok()) return found.status();
      is_there = *found;
    }
    if (is_there)
      ++outcome.shards_kept;
    else
      for (const ShardLayout::Entry& entry : layout->entries) bytes += entry.plan->bytes_before;
    whole.push_back(is_there);
    layouts.push_back(std::move(layout).value());
  }
  if (bytes > 0)
    if (Status s = find_ranges(progress); !s.ok()) return s;
  progress.begin(plan.is_conversion ? "converting" : "quantizing", bytes);
  Checksums checksums;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    if (!whole[i]) {
      if (Status s = write_shard(layouts[i], i, options.resume || options.force, progress); !s.ok()) return s;
      progress.note(fmt::format("wrote {}", io::printable_path(shard_path(i))));
    }
    // Now, while the system has it in memory.
    if (Status s = add_checksum(options.output, shard_names[i], stream, checksums); !s.ok()) return s;
  }
  for (const CompanionFile& file : files)
    if (Status s = copy_file(file); !s.ok()) return s;
  if (checkpoint.index())
    if (Status s = write_index(layouts); !s.ok()) return s;
  return seal(std::move(checksums), wanted->files);
}

Status CheckpointQuantizer::Impl::copy_file(const CompanionFile& file) {
  const auto input = io::InputFile::open(file.from);
  if (!input.ok()) return input.status();
  if (Status s = make_folders_of(options.output, file.name); !s.ok()) return s;
  auto output = io::AtomicFile::create(options.output / file.name, options.resume || options.force);
  if (!output.ok()) return output.status();
  std::vector<std::byte>& buffer = workers.front().weights;
  for (std::uint64_t at = 0; at < input->size(); at += tile_bytes) {
    buffer.resize(std::min(tile_bytes, input->size() - at));
    if (Status s = input->read(at, buffer); !s.ok()) return s;
    if (Status s = output->write(buffer); !s.ok()) return s;
  }
  outcome.bytes_written += input->size();
  return output->commit(options.resume || options.force);
}

Status CheckpointQuantizer::Impl::write_index(std::span<const ShardLayout> layouts) {
  io::Json index = *checkpoint.index();
  std::uint64_t total = 0;
  std::map<std::string, std::string> map;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    total += layouts[i].tensor_bytes;
    for (const std::string& tensor : layouts[i].names) map.emplace(tensor, shard_names[i]);
  }
  if (!index.contains("metadata") || !index["metadata"].is_object()) index["metadata"] = io::Json::object();
  index["metadata"]["total_size"] = total;
  // Straight into the vector that the object is made of: operator[] looks through all keys, each time.
  auto& members = (index["weight_map"] = io::Json::object()).get_ref<io::Json::object_t&>();
  for (const auto& [tensor, shard] : map) members.Container::emplace_back(tensor, shard);
  return io::write_file(options.output / io::kIndexName, index.dump(2) + "\n", options.resume || options.force);
}

// What says that all is there: the checksums, then config.json.
Status CheckpointQuantizer::Impl::seal(Checksums checksums, std::span<const std::string> names) {
  std::vector<std::string> others;
  if (options.smooth) others.push_back(own_name(kSmoothingName));
  for (const std::string& name : names)
    if (name != io::kConfigName && name != own_name(kChecksumsName) && !checksums.contains(name))
      others.push_back(name);
  for (const std::string& name : others)
    if (Status s = add_checksum(options.output, name, stream, checksums); !s.ok()) return s;
  io::Json config = checkpoint.config() ? *checkpoint.config() : io::Json::object();
  if (!plan.schemes.empty())
    config["quantization_config"] = format::quantization_json(quantization_config(plan));
  else
    config.erase("quantization_config");
  if (options.conversion && options.conversion->values)
    for (const std::string_view key : {"dtype", "torch_dtype"})
      if (const auto said = config.find(key); said != config.end()) *said = io::torch_name(*options.conversion->values);
  const std::string text = config.dump(2) + "\n";
  const bool overwrite = options.resume || options.force;
  if (Status s = write_checksums(options.output, std::move(checksums), text, overwrite); !s.ok()) return s;
  return io::write_file(options.output / io::kConfigName, text, overwrite);
}

Result<QuantizeOutcome> CheckpointQuantizer::Impl::run(base::Progress& progress) {
  const auto begin = std::chrono::steady_clock::now();
  outcome = {};
  if (options.output.empty()) return invalid_problem("the output has no name");
  if (Status s = to_one_file() ? run_to_file(progress) : run_to_folder(progress); !s.ok()) return s;
  for (const TileWorker& worker : workers) {
    outcome.non_finite += worker.non_finite;
    outcome.rounded += worker.rounded;
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return outcome;
}

Result<CheckpointQuantizer> CheckpointQuantizer::plan(const QuantizeOptions& options) {
  auto checkpoint = io::Checkpoint::open(options.input);
  if (!checkpoint.ok()) return checkpoint.status();
  if (Status s = check_names_fit(*checkpoint, options); !s.ok()) return s;
  auto impl = std::make_unique<Impl>(options, std::move(checkpoint).value());
  if (Status s = impl->prepare(); !s.ok()) return s;
  return CheckpointQuantizer(std::move(impl));
}

const CheckpointPlan& CheckpointQuantizer::what() const { return impl_->plan; }
const format::ActivationStats* CheckpointQuantizer::statistics() const {
  return impl_->stats ? &*impl_->stats : nullptr;
}
Status CheckpointQuantizer::check_output() const { return impl_->check_output(); }
Result<QuantizeOutcome> CheckpointQuantizer::run(base::Progress& progress) { return impl_->run(progress); }

CheckpointQuantizer::CheckpointQuantizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointQuantizer::CheckpointQuantizer(CheckpointQuantizer&&) noexcept = default;
CheckpointQuantizer& CheckpointQuantizer::operator=(CheckpointQuantizer&&) noexcept = default;
CheckpointQuantizer::~CheckpointQuantizer() = default;

}  // namespace kvant::quantize
