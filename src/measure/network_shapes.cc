#include "measure/network_shapes.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>

#include "base/text.h"
#include "format/module_name.h"
#include "io/file.h"
#include "io/json.h"
#include "model/network.h"

namespace kvant::measure {
namespace {

using Shape = std::vector<std::uint64_t>;

}  // namespace

void check_network_shapes(const io::Checkpoint& checkpoint, const std::vector<format::QuantizedLayer>& layers,
                          Verification& verification) {
  const auto left_out = [&](std::string_view why) {
    verification.not_checked.push_back(base::text("shapes against config.json: {}", why));
  };
  if (checkpoint.config() == nullptr) return left_out("there is none");
  model::Modules modules;
  std::map<std::string, Shape, std::less<>> shapes;  // of weights, by module
  for (const auto& [name, place] : checkpoint.tensors())
    if (const std::string_view module = format::module_of(name); !module.empty()) {
      modules.emplace(module);
      shapes.emplace(module, checkpoint.at(place).shape);
    }
  for (const format::QuantizedLayer& layer : layers) {
    modules.insert(layer.module);
    shapes.insert_or_assign(layer.module, Shape{layer.rows, layer.columns});
  }
  const auto network = model::make_network(*checkpoint.config(), modules);
  if (!network.ok()) return left_out(network.status().message());

  std::size_t checked = 0;
  const auto check = [&](const std::string& module, const Shape& wanted) {
    const auto found = shapes.find(module);
    if (found == shapes.end()) return;  // its tensors are wrong in another way, which was said
    ++checked;
    if (found->second != wanted)
      verification.problems.push_back(base::text("{}: the weight of '{}' is {}, by config.json it must be {}",
                                                 io::printable_path(checkpoint.path()), io::printable(module),
                                                 base::bracketed(found->second), base::bracketed(wanted)));
  };
  for (const model::Block& block : network->blocks)
    for (const model::Step& step : block.steps) {
      if (const auto* norm = std::get_if<model::NormStep>(&step))
        check(norm->module, {static_cast<std::uint64_t>(network->hidden)});
      for (const model::LinearModule* linear : model::linears_of(step)) {
        const auto in = static_cast<std::uint64_t>(linear->in), out = static_cast<std::uint64_t>(linear->out);
        check(linear->module, linear->is_conv1d ? Shape{in, out} : Shape{out, in});
      }
    }
  verification.checks.push_back(base::text("shapes of {} modules against config.json", checked));
}

}  // namespace kvant::measure
