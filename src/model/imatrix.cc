#include "model/imatrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/refuse.h"
#include "base/text.h"
#include "format/module_name.h"
#include "io/file.h"
#include "io/gguf.h"
#include "model/gguf_metadata.h"
#include "model/gguf_network.h"

namespace kvant::model {
namespace {

using base::invalid_problem;
using format::Statistic;
using io::printable;

constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts";

// A linear, or one expert of many: a row of a tensor of sums.
struct Source {
  const io::GgufTensor* sums;
  std::uint64_t row;
  std::int64_t count;
};

// Before it was a GGUF: a number of entries, then of each the length of a name, the name, and numbers. It says of how
// many calls its sums are, not of how many rows, and not how many experts an entry holds.
bool is_old_imatrix(const std::filesystem::path& path) {
  constexpr std::string_view kBegin = "blk.";
  std::array<char, 2 * sizeof(std::int32_t) + kBegin.size()> bytes{};
  const auto file = io::InputFile::open(path);
  if (!file.ok() || file->size() < bytes.size()) return false;
  return file->read(0, std::as_writable_bytes(std::span(bytes))).ok() &&
         std::string_view(bytes.data(), bytes.size()).ends_with(kBegin);
}

class ImatrixReader {
 public:
  ImatrixReader(io::GgufFile file, std::string_view model_type)
      : file_(std::make_shared<const io::GgufFile>(std::move(file))), model_type_(model_type) {}

  Result<format::ActivationStats> read() {
    const GgufMetadata metadata(*file_);
    const auto type = metadata.text("general.type");
    if (!type.ok()) return type.status();
    if (type->value_or("") != "imatrix")
      return invalid_problem(
          "{}: is a GGUF whose \"general.type\" is \"{}\"; of GGUF files, only an imatrix holds statistics", name(),
          printable(type->value_or("")));
    for (const io::GgufTensor& tensor : file_->tensors())
      if (tensor.name.ends_with(kSums))
        if (Status s = add(tensor, std::string_view(tensor.name).substr(0, tensor.name.size() - kSums.size())); !s.ok())
          return s;
    if (source_.tensors.empty())
      return invalid_problem("{}: is an imatrix without a linear of a Llama-like network; it has {} tensors", name(),
                             file_->tensors().size());
    source_.path = file_->file().path();
    source_.metadata = {{"made_by", "llama.cpp's imatrix"}};
    if (Status s = add_tokens(metadata); !s.ok()) return s;
    source_.read = [file = file_, sources = std::move(sources_)](std::size_t tensor, std::uint64_t offset,
                                                                 std::span<std::byte> to) {
      const Source& source = sources[tensor / 2];
      return tensor % 2 == 0 ? read_means(*file, source, offset, to) : read_count(source, offset, to);
    };
    return format::ActivationStats::make(std::move(source_));
  }

 private:
  std::string name() const { return io::printable_path(file_->file().path()); }

  Status add(const io::GgufTensor& sums, std::string_view gguf_name) {
    if (model_type_.empty() && needs_model_type(gguf_name))
      return invalid_problem(
          "{}: is an imatrix with experts ('{}'), whose names depend on the model; 'kvant stats merge {} --model-type "
          "TYPE -o FILE' makes statistics of it, where TYPE is {}",
          name(), printable(gguf_name), name(), base::joined(model_types_with_experts(), " or "));
    const auto [weight, holds_experts] = name_of_gguf_linear(gguf_name, model_type_);
    if (weight.empty()) return {};
    const io::GgufTensor* const counts = file_->find_tensor(base::text("{}{}", gguf_name, kCounts));
    if (counts == nullptr)
      return invalid_problem("{}: has '{}' but not '{}{}'", name(), printable(sums.name), printable(gguf_name),
                             kCounts);
    for (const io::GgufTensor* const tensor : {&sums, counts})
      if (tensor->type != io::GgufType::f32 || tensor->shape.empty())
        return invalid_problem("{}: '{}' is {} {}, must be F32 with a row for each matrix", name(),
                               printable(tensor->name), io::info(tensor->type).name, base::bracketed(tensor->shape));
    const std::uint64_t columns = sums.shape.back();
    const std::uint64_t rows = columns == 0 ? 0 : sums.bytes() / sizeof(float) / columns;
    if (rows < 1 || rows > (holds_experts ? kMaxGgufExperts : 1) || counts->bytes() / sizeof(float) != rows)
      return invalid_problem("{}: '{}' is {} and '{}' {}; must be a row of channels and a count for {}", name(),
                             printable(sums.name), base::bracketed(sums.shape), printable(counts->name),
                             base::bracketed(counts->shape), holds_experts ? "each expert" : "one matrix");
    std::vector<float> seen(static_cast<std::size_t>(rows));
    if (Status s = file_->read(*counts, 0, std::as_writable_bytes(std::span(seen))); !s.ok()) return s;
    const std::string_view module = format::module_of(weight);
    for (std::uint64_t row = 0; row < rows; ++row) {
      const float count = seen[row];
      // Below 2^53 all whole numbers that it can be are exact in f64 too.
      if (!(count >= 0 && count < 0x1p53F && count == std::floor(count)))
        return invalid_problem("{}: '{}' is {} at {}, must be a whole number below 2^53", name(),
                               printable(counts->name), count, row);
      if (count == 0) continue;  // an expert that no token was sent to
      std::string numbered(module);
      if (holds_experts) numbered.replace(numbered.find("{}"), 2, std::to_string(row));
      add_tensor(numbered, Statistic::mean_square, columns);
      add_tensor(numbered, Statistic::count, columns);
      sources_.push_back({&sums, row, static_cast<std::int64_t>(count)});
    }
    return {};
  }

  void add_tensor(const std::string& module, Statistic statistic, std::uint64_t columns) {
    io::TensorInfo tensor = format::statistic_tensor(module, statistic, columns, 0);
    tensor.end = io::tensor_bytes(tensor.dtype, tensor.shape).value_or(0);
    source_.tensors.push_back(std::move(tensor));
  }

  // As `kvant calibrate` notes them.
  Status add_tokens(const GgufMetadata& metadata) {
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
    const auto chunks = metadata.count_or("imatrix.chunk_count", 0, 0, kMost);
    if (!chunks.ok()) return chunks.status();
    const auto size = metadata.count_or("imatrix.chunk_size", 0, 0, kMost);
    if (!size.ok()) return size.status();
    if (*chunks * *size > 0) source_.metadata["tokens"] = std::to_string(*chunks * *size);
    return {};
  }

  static Status read_means(const io::GgufFile& file, const Source& source, std::uint64_t offset,
                           std::span<std::byte> to) {
    const std::uint64_t row_bytes = source.sums->shape.back() * sizeof(float);
    if (Status s = file.read(*source.sums, source.row * row_bytes + offset, to); !s.ok()) return s;
    for (std::size_t at = 0; at + sizeof(float) <= to.size(); at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, to.data() + at, sizeof value);
      value = static_cast<float>(static_cast<double>(value) / static_cast<double>(source.count));
      std::memcpy(to.data() + at, &value, sizeof value);
    }
    return {};
  }

  static Status read_count(const Source& source, std::uint64_t offset, std::span<std::byte> to) {
    const auto bytes = std::as_bytes(std::span(&source.count, 1)).subspan(static_cast<std::size_t>(offset), to.size());
    std::ranges::copy(bytes, to.begin());
    return {};
  }

  std::shared_ptr<const io::GgufFile> file_;
  std::string_view model_type_;
  format::StatisticsSource source_;  // of every source its means and its count
  std::vector<Source> sources_;
};

}  // namespace

Result<format::ActivationStats> open_statistics(const std::filesystem::path& path, std::string_view model_type) {
  if (is_old_imatrix(path))
    return base::unsupported(
        "{}: is an imatrix in llama.cpp's old format, which does not say how many rows it has seen; 'llama-imatrix "
        "--in-file {} -o imatrix.gguf' makes a GGUF of it",
        io::printable_path(path), io::printable_path(path));
  if (!io::is_gguf(path)) return format::ActivationStats::open(path);
  auto file = io::GgufFile::open(path);
  if (!file.ok()) return file.status();
  return ImatrixReader(std::move(file).value(), model_type).read();
}

}  // namespace kvant::model
