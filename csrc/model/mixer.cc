#include "model/mixer.h"

#include "core/errors.h"
#include "model/recurrence_layer.h"
#include "model/short_conv_layer.h"

namespace llmi {

std::vector<StateShape> StatesOf(const ModelSpec& spec, const LayerSpec& layer) {
  switch (layer.mixer) {
    case MixerKind::kAttention: return {};
    case MixerKind::kShortConv: return {{ConvStateFloats(spec.hidden_size, layer.short_conv.conv.length), spec.hidden_size}};
    case MixerKind::kGatedDelta:
    case MixerKind::kMamba2: {
      const RecurrenceShape shape = ShapeOf(layer);
      return {{ConvStateFloats(shape.channels(), layer.recurrence.conv.length), shape.channels()},
              {shape.state_floats(), shape.input_floats()}};
    }
  }
  return {};
}

int64_t MixerProjectedSize(const ModelSpec& spec, const LayerSpec& layer) {
  switch (layer.mixer) {
    case MixerKind::kAttention: return 0;
    case MixerKind::kShortConv: return 3 * spec.hidden_size;
    case MixerKind::kGatedDelta:
    case MixerKind::kMamba2: return RecurrenceProjectedSize(ShapeOf(layer));
  }
  return 0;
}

int64_t MixerOutputSize(const ModelSpec& spec, const LayerSpec& layer) {
  switch (layer.mixer) {
    case MixerKind::kAttention: return 0;
    case MixerKind::kShortConv: return spec.hidden_size;
    case MixerKind::kGatedDelta:
    case MixerKind::kMamba2: return ShapeOf(layer).value_floats();
  }
  return 0;
}

StateLayout::StateLayout(const ModelSpec& spec) {
  int64_t slot_floats = 0;
  int64_t row_floats = 0;
  for (const LayerSpec& layer : spec.layers) {
    std::vector<Place>& places = places_.emplace_back();
    for (const StateShape& shape : StatesOf(spec, layer)) {
      places.push_back({slot_floats * static_cast<int64_t>(sizeof(float)), row_floats * static_cast<int64_t>(sizeof(float))});
      slot_floats += shape.state_floats;
      row_floats += shape.input_floats;
    }
  }
  sizes_.slot_bytes = slot_floats * static_cast<int64_t>(sizeof(float));
  sizes_.log_row_bytes = row_floats * static_cast<int64_t>(sizeof(float));
}

StateView StateLayout::View(StatePool& pool, int64_t layer, size_t index) const {
  const Place& place = places_[static_cast<size_t>(layer)][index];
  return pool.View(place.slot_offset, place.log_offset);
}

StateRows StepStates::Rows(int64_t layer, size_t index) const {
  StateRows rows = {};
  rows.view = layout.View(*pool, layer, index);
  rows.segments = segments.data();
  rows.num_segments = static_cast<int64_t>(segments.size());
  rows.faults = faults->data();
  return rows;
}

void MixerLayer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at, const StepStates& states) {
  CheckInternal(states.pool != nullptr, "a layer with a state runs without a pool of states");
  switch (pass.spec.layers[static_cast<size_t>(layer)].mixer) {
    case MixerKind::kAttention: return;
    case MixerKind::kShortConv: return ShortConvLayer(pass, layer, weights, normed_at, states);
    case MixerKind::kGatedDelta:
    case MixerKind::kMamba2: return RecurrenceLayer(pass, layer, weights, normed_at, states);
  }
}

}  // namespace llmi
