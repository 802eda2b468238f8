// Mixers that have a state: which states their layers keep, where these lie in slots and logs, and how a layer runs.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/state_pool.h"
#include "model/forward_batch.h"
#include "model/layer_pass.h"

namespace llmi {

// One state of a layer. What is logged of a row is the input of the op that advances it.
struct StateShape {
  int64_t state_floats;
  int64_t input_floats;
};

// The states of a layer, in the order in which its ops run; none: its mixer is attention.
std::vector<StateShape> StatesOf(const ModelSpec& spec, const LayerSpec& layer);
// What a mixer's layer keeps of a row in Workspace::projected and in Workspace::attended; 0: its mixer is attention.
int64_t MixerProjectedSize(const ModelSpec& spec, const LayerSpec& layer);
int64_t MixerOutputSize(const ModelSpec& spec, const LayerSpec& layer);

// The states of all layers, one after the other.
class StateLayout {
 public:
  explicit StateLayout(const ModelSpec& spec);

  // Without the numbers of slots and chunks.
  const StateSizes& sizes() const { return sizes_; }
  // State `index` of a layer.
  StateView View(StatePool& pool, int64_t layer, size_t index) const;

 private:
  struct Place {
    int64_t slot_offset;
    int64_t log_offset;
  };
  std::vector<std::vector<Place>> places_;  // by layer
  StateSizes sizes_;
};

// The states of the sequences of one step.
struct StepStates {
  StatePool* pool;
  const StateLayout& layout;
  const std::vector<StateSegment>& segments;
  std::vector<uint8_t>* faults;  // by segment

  // The rows of state `index` of a layer, without inputs and out.
  StateRows Rows(int64_t layer, size_t index) const;
};

// Adds what the layer's mixer makes of the rows to the residual stream. normed_at: as for AttentionLayer. The mixer is not attention.
void MixerLayer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at, const StepStates& states);

}  // namespace llmi
