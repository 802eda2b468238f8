#include "model/steering.h"

#include <algorithm>
#include <cmath>

#include "core/errors.h"

namespace llmi {

void CheckSteering(const Steering& steering, int64_t num_layers, int64_t hidden_size) {
  const auto check = [](bool holds, const std::string& problem) {
    if (!holds) throw Error(ErrorKind::kInvalidArgument, "steering " + problem, "steering");
  };
  check(!steering.layers.empty(), "names no layer");
  for (size_t i = 0; i < steering.layers.size(); ++i) {
    check(steering.layers[i] >= 0 && steering.layers[i] <= num_layers,
          "names layer " + std::to_string(steering.layers[i]) + ", outside [0, " + std::to_string(num_layers) + "]");
    check(i == 0 || steering.layers[i] > steering.layers[i - 1], "names layers that do not ascend");
  }
  check(steering.values.size() == steering.layers.size() * static_cast<size_t>(hidden_size),
        "has vectors of another size than hidden_size = " + std::to_string(hidden_size));
  check(std::all_of(steering.values.begin(), steering.values.end(), [](float value) { return std::isfinite(value); }),
        "holds NaN or infinity");
  check(steering.digest.size() == Steering::kDigestLen, "has no digest");
}

}  // namespace llmi
