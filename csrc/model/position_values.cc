#include "model/position_values.h"

#include <algorithm>
#include <numeric>

#include "core/scalar_math.h"
#include "kernels/dispatch/transfer.h"
#include "model/workspace.h"

namespace llmi {
namespace {

constexpr int32_t kKeptPositions = 64;  // computed together

// Index of the layer's temperature among those so far, which it joins if it is new; -1: it has none.
int Find(const QueryTemperatureSpec& wanted, std::vector<QueryTemperatureSpec>* temperatures) {
  if (wanted.beta == 0) return -1;
  for (size_t i = 0; i < temperatures->size(); ++i) {
    const QueryTemperatureSpec& known = (*temperatures)[i];
    if (known.beta == wanted.beta && known.original == wanted.original) return static_cast<int>(i);
  }
  temperatures->push_back(wanted);
  return static_cast<int>(temperatures->size()) - 1;
}

// Computed in fp64 and rounded once.
float QueryFactor(const QueryTemperatureSpec& temperature, int32_t position) {
  const int64_t passed = position / temperature.original;
  return static_cast<float>(1.0 + temperature.beta * LogF64(static_cast<double>(1 + passed)));
}

}  // namespace

PositionValues::PositionValues(const ModelSpec& spec) : kept_(spec.ropes.size()) {
  for (const RopeSpec& rope : spec.ropes) ropes_.emplace_back(rope);
  for (const LayerSpec& layer : spec.layers) factors_of_layer_.push_back(Find(layer.attention.query_temperature, &temperatures_));
}

int64_t PositionValues::FloatsPerRow(const ModelSpec& spec) {
  std::vector<QueryTemperatureSpec> temperatures;
  for (const LayerSpec& layer : spec.layers) Find(layer.attention.query_temperature, &temperatures);
  auto floats = static_cast<int64_t>(temperatures.size());
  for (const RopeSpec& rope : spec.ropes) floats += rope.rotary_dim;
  return floats;
}

void PositionValues::Compute(const KernelContext& context, const std::vector<int32_t>& positions, AlignedBuffer& buffer) {
  num_rows_ = static_cast<int64_t>(positions.size());
  int64_t count = num_rows_ * static_cast<int64_t>(temperatures_.size());
  for (const RopeTable& rope : ropes_) count += num_rows_ * rope.rotary_dim();
  cosines_.clear();
  factors_.clear();
  if (count == 0) return;
  float* there = Floats(context, buffer, count);
  if (context.device != nullptr) host_.resize(static_cast<size_t>(count));
  float* const here = context.device != nullptr ? host_.data() : there;
  int64_t place = 0;
  for (size_t r = 0; r < ropes_.size(); ++r) {
    const int64_t half = num_rows_ * ropes_[r].rotary_dim() / 2;
    if (context.device != nullptr) {
      CopyRotations(context, r, positions, here + place, here + place + half);
    } else {
      ropes_[r].Compute(context, positions.data(), num_rows_, here + place, here + place + half);
    }
    cosines_.push_back(there + place);
    place += 2 * half;
  }
  for (const QueryTemperatureSpec& temperature : temperatures_) {
    for (int64_t row = 0; row < num_rows_; ++row) here[place + row] = QueryFactor(temperature, positions[static_cast<size_t>(row)]);
    factors_.push_back(there + place);
    place += num_rows_;
  }
  if (context.device != nullptr) ToDevice(context, there, here, FloatBytes(count));
}

// Those of all positions, from the blocks that are kept.
void PositionValues::CopyRotations(const KernelContext& context, size_t rope, const std::vector<int32_t>& positions, float* cosine,
                                   float* sine) {
  const int64_t half = ropes_[rope].rotary_dim() / 2;
  std::vector<std::vector<float>>& blocks = kept_[rope];
  for (const int32_t position : positions) {
    const auto index = static_cast<size_t>(position / kKeptPositions);
    if (index >= blocks.size()) blocks.resize(index + 1);
    std::vector<float>& block = blocks[index];
    if (block.empty()) {
      int32_t all[kKeptPositions];
      std::iota(all, all + kKeptPositions, position / kKeptPositions * kKeptPositions);
      block.resize(static_cast<size_t>(2 * kKeptPositions * half));
      ropes_[rope].Compute(context, all, kKeptPositions, block.data(), block.data() + kKeptPositions * half);
    }
    const float* from = block.data() + position % kKeptPositions * half;
    cosine = std::copy_n(from, half, cosine);
    sine = std::copy_n(from + kKeptPositions * half, half, sine);
  }
}

}  // namespace llmi
