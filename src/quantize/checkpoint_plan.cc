#include "quantize/checkpoint_plan.h"

namespace kvant::quantize {

std::string_view name(Action action) {
  switch (action) {
    case Action::copy: return "copy";
    case Action::quantize: return "quantize";
    case Action::fold_norm: return "fold";
    case Action::smooth: return "smooth";
  }
  return "unknown";
}

}  // namespace kvant::quantize
