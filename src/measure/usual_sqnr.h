// What SQNR weights usually have in a scheme, so that a number can be read without another one beside it.
#pragma once

#include <cstdint>
#include <optional>

#include "kvant/element.h"
#include "measure/comparison.h"

namespace kvant::measure {

// In dB.
struct UsualSqnr {
  double least = 0;
  double most = 0;
};

// Of bell-shaped weights of which so many share a scale: those of a row, of a group, of a tensor. Nothing for codes
// that are not in the table.
std::optional<UsualSqnr> usual_sqnr_db(ElementKind code, bool asymmetric, std::uint64_t weights_per_scale);

// Of the layers of a checkpoint together: from the least of them to the most.
std::optional<UsualSqnr> usual_sqnr_db(const ModelLoss& loss);

}  // namespace kvant::measure
