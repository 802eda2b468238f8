// The drafters that were trained for a model and are loaded with it. They belong to who runs them: the model's decoder knows none, and
// gives them what they read of it by calls (its embedding, final norm and head, and the hidden states of its layers).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/decoder.h"
#include "model/eagle.h"
#include "model/medusa.h"

namespace llmi {

struct DraftHeads {
  std::unique_ptr<EagleDecoder> eagle;  // null: none
  std::unique_ptr<MedusaHeads> medusa;  // null: none

  uint64_t num_bytes() const {
    return (eagle == nullptr ? 0 : eagle->weights().num_bytes()) + (medusa == nullptr ? 0 : medusa->num_bytes());
  }
  // The layers of the target whose hidden states they read, each once.
  std::vector<int> TargetLayers(const Decoder& target) const {
    std::vector<int> layers = eagle == nullptr ? std::vector<int>{} : eagle->TargetLayers(target);
    const auto last = static_cast<int>(target.spec().num_layers());
    if (medusa != nullptr && std::ranges::find(layers, last) == layers.end()) layers.push_back(last);
    return layers;
  }
};

}  // namespace llmi
