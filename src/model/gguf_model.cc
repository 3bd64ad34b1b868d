#include "model/gguf_model.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/refuse.h"
#include "base/text.h"
#include "format/gguf_blocks.h"
#include "io/json.h"
#include "model/gguf_network.h"
#include "model/gguf_tokenizer.h"

namespace kvant::model {
namespace {

using base::invalid_problem;
using Tensor = GgufModel::Tensor;

// Read at once.
constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 18;

// Llama.cpp has element i of the first half of a head at 2i and that of the second half at 2i + 1.
std::uint64_t row_in_file(std::uint64_t row, std::uint64_t rows, std::uint64_t heads) {
  const std::uint64_t head = rows / heads, half = head / 2;
  const std::uint64_t in_head = row % head;
  return row - in_head + in_head % half * 2 + in_head / half;
}

// `index` in place of "{}".
std::string with_index(const std::string& name, std::uint64_t index) {
  const std::size_t at = name.find("{}");
  return base::text("{}{}{}", name.substr(0, at), index, name.substr(at + 2));
}

class TensorFinder {
 public:
  explicit TensorFinder(const io::GgufFile& file) : file_(file), name_(io::printable_path(file.file().path())) {}

  Result<std::vector<Tensor>> find_all(const GgufNetwork& network) {
    std::vector<Tensor> tensors;
    std::set<std::string_view> known = {kRopeFactorsName};
    const std::vector<GgufTensorRule> rules = tensor_rules(network);
    for (const GgufTensorRule& rule : rules) {
      known.insert(rule.gguf_name);
      if (Status s = add(rule, tensors); !s.ok()) return s;
    }
    for (const io::GgufTensor& tensor : file_.tensors())
      if (!known.contains(tensor.name))
        return base::unsupported("{}: tensor \"{}\" has no place in such a model ({} layers)", name_,
                                 io::printable(tensor.name), network.layers);
    return tensors;
  }

 private:
  Status add(const GgufTensorRule& rule, std::vector<Tensor>& tensors) const {
    const io::GgufTensor* const found = file_.find_tensor(rule.gguf_name);
    if (found == nullptr) return invalid_problem("{}: tensor \"{}\" is missing", name_, rule.gguf_name);
    std::vector<std::uint64_t> wanted = rule.shape;
    if (rule.experts > 0) wanted.insert(wanted.begin(), rule.experts);
    if (found->shape != wanted)
      return invalid_problem("{}: tensor \"{}\": shape [{}] is not the [{}] that the metadata say", name_,
                             rule.gguf_name, base::joined(found->shape, ", "), base::joined(wanted, ", "));
    if (!format::can_decode(found->type))
      return base::unsupported("{}: tensor \"{}\": type {} is not decoded, only {}", name_, rule.gguf_name,
                               info(found->type).name, format::names_of_decoded_types());
    Tensor tensor{.name = rule.name,
                  .shape = rule.shape,
                  .type = found->type,
                  .source = static_cast<std::size_t>(found - file_.tensors().data()),
                  .first_row = 0,
                  .heads = rule.heads};
    if (rule.experts == 0) {
      tensors.push_back(std::move(tensor));
      return {};
    }
    for (std::uint64_t i = 0; i < rule.experts; ++i) {
      tensors.push_back(tensor);
      tensors.back().name = with_index(rule.name, i);
      tensors.back().first_row = i * tensor.rows();
    }
    return {};
  }

  const io::GgufFile& file_;
  std::string name_;
};

}  // namespace

std::uint64_t GgufModel::Tensor::bytes() const {
  const io::GgufTypeInfo& of_type = info(type);
  return rows() * columns() / of_type.block_elements * of_type.block_bytes;
}

Result<GgufModel> GgufModel::open(const std::filesystem::path& path) {
  auto file = io::GgufFile::open(path);
  if (!file.ok()) return file.status();
  auto network = read_gguf_network(*file);
  if (!network.ok()) return network.status();
  auto tensors = TensorFinder(*file).find_all(*network);
  if (!tensors.ok()) return tensors.status();
  GgufModel model(std::move(*file));
  model.tensors_ = std::move(*tensors);
  if (const io::GgufTensor* const source = model.file_.find_tensor(kRopeFactorsName)) {
    const std::string name = io::printable_path(path);
    if (source->type != io::GgufType::f32 || source->bytes() > kChunkBytes)
      return invalid_problem("{}: tensor \"{}\": {} of {} bytes must be F32 of at most {}", name, kRopeFactorsName,
                             info(source->type).name, source->bytes(), kChunkBytes);
    std::vector<float> factors(source->bytes() / sizeof(float));
    if (Status s = model.read_elements(*source, 0, factors.size(), factors.data()); !s.ok()) return s;
    if (Status s = set_llama3_scaling(*network, factors, name); !s.ok()) return s;
  }
  model.config_ = std::make_shared<const io::Json>(config_of(*network, model.file_));
  auto tokenizer = gguf_tokenizer(model.file_, network->size(Size::vocabulary));
  if (tokenizer.ok())
    model.tokenizer_ = std::make_shared<const io::Json>(std::move(tokenizer).value());
  else
    model.tokenizer_problem_ = tokenizer.status().message();
  model.tokenizer_config_ = std::make_shared<const io::Json>(gguf_tokenizer_config(model.file_, network->context));
  return model;
}

Status GgufModel::read_elements(const io::GgufTensor& source, std::uint64_t first, std::uint64_t count,
                                float* out) const {
  const io::GgufTypeInfo& type = info(source.type);
  std::uint64_t block = first / type.block_elements;
  const std::uint64_t end = block + count / type.block_elements;
  const std::uint64_t chunk = kChunkBytes / type.block_bytes;
  std::vector<std::byte> bytes;
  while (block < end) {
    const std::uint64_t blocks = std::min(end - block, chunk);
    bytes.resize(blocks * type.block_bytes);
    if (Status s = file_.read(source, block * type.block_bytes, bytes); !s.ok()) return s;
    format::decode_gguf_blocks(source.type, bytes, out);
    out += blocks * type.block_elements;
    block += blocks;
  }
  return {};
}

Status GgufModel::read_rows(const Tensor& tensor, std::uint64_t first_row, std::uint64_t rows, float* out) const {
  if (first_row > tensor.rows() || rows > tensor.rows() - first_row)
    return invalid_problem("{}: tensor \"{}\": has {} rows, wanted {} from {}", io::printable_path(file_.file().path()),
                           tensor.name, tensor.rows(), rows, first_row);
  const io::GgufTensor& source = file_.tensors()[tensor.source];
  const std::uint64_t columns = tensor.columns();
  if (tensor.heads == 0) return read_elements(source, (tensor.first_row + first_row) * columns, rows * columns, out);
  if (tensor.shape.size() == 1) {
    // The elements of a bias are in the order of the rows that they belong to.
    std::vector<float> values(rows * columns);
    if (Status s = read_elements(source, 0, values.size(), values.data()); !s.ok()) return s;
    for (std::uint64_t i = 0; i < values.size(); ++i) out[i] = values[row_in_file(i, columns, tensor.heads)];
    return {};
  }
  for (std::uint64_t r = 0; r < rows; ++r) {
    const std::uint64_t row = row_in_file(first_row + r, tensor.rows(), tensor.heads);
    if (Status s = read_elements(source, row * columns, columns, out + r * columns); !s.ok()) return s;
  }
  return {};
}

}  // namespace kvant::model
