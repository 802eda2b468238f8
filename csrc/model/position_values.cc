#include "model/position_values.h"

#include <algorithm>
#include <numeric>

#include "core/scalar_math.h"
#include "kernels/dispatch/device.h"
#include "model/workspace.h"

namespace llmi {
namespace {

constexpr int64_t kTablePositions = 4096;  // of the device's table, uploaded at once

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

PositionValues::PositionValues(const ModelSpec& spec) : width_(FloatsPerRow(spec)) {
  for (const RopeSpec& rope : spec.ropes) {
    ropes_.emplace_back(rope);
    sizes_.insert(sizes_.end(), 2, rope.rotary_dim / 2);
  }
  for (const LayerSpec& layer : spec.layers) factors_of_layer_.push_back(Find(layer.attention.query_temperature, &temperatures_));
  sizes_.insert(sizes_.end(), temperatures_.size(), 1);
}

int64_t PositionValues::FloatsPerRow(const ModelSpec& spec) {
  std::vector<QueryTemperatureSpec> temperatures;
  for (const LayerSpec& layer : spec.layers) Find(layer.attention.query_temperature, &temperatures);
  auto floats = static_cast<int64_t>(temperatures.size());
  for (const RopeSpec& rope : spec.ropes) floats += rope.rotary_dim;
  return floats;
}

// Part after part [positions, size].
void PositionValues::Compute(const KernelContext& context, const int32_t* positions, int64_t num_rows, float* out) const {
  for (const RopeTable& rope : ropes_) {
    const int64_t count = num_rows * rope.rotary_dim() / 2;
    rope.Compute(context, positions, num_rows, out, out + count);
    out += 2 * count;
  }
  for (const QueryTemperatureSpec& temperature : temperatures_) {
    for (int64_t row = 0; row < num_rows; ++row) *out++ = QueryFactor(temperature, positions[row]);
  }
}

void PositionValues::Reserve(const KernelContext& context, int64_t num_positions) {
  if (context.device == nullptr || width_ == 0 || num_positions <= num_positions_) return;
  std::vector<TableColumn> columns;
  for (const int64_t size : sizes_) {
    columns.insert(columns.end(), static_cast<size_t>(size), {static_cast<int32_t>(columns.size()), static_cast<int32_t>(size)});
  }
  columns_.Reserve(columns.size() * sizeof(TableColumn), "rotations", context.device);
  context.device->Upload(columns_.data(), columns.data(), columns.size() * sizeof(TableColumn));
  table_.Reserve(FloatBytes(num_positions * width_), "rotations", context.device);
  const KernelContext host = {context.table, context.pool, context.num_threads};
  for (int64_t begin = 0; begin < num_positions; begin += kTablePositions) {
    const int64_t count = std::min(kTablePositions, num_positions - begin);
    std::vector<int32_t> positions(static_cast<size_t>(count));
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(begin));
    std::vector<float> parts(static_cast<size_t>(count * width_));
    Compute(host, positions.data(), count, parts.data());
    std::vector<float> rows(parts.size());
    for (int64_t i = 0; i < width_; ++i) {
      const TableColumn column = columns[static_cast<size_t>(i)];
      const float* from = parts.data() + column.begin * count + i - column.begin;
      for (int64_t row = 0; row < count; ++row) rows[static_cast<size_t>(row * width_ + i)] = from[row * column.size];
    }
    context.device->Upload(table_.as<float>() + begin * width_, rows.data(), FloatBytes(count * width_));
  }
  num_positions_ = num_positions;
}

void PositionValues::Begin(const KernelContext& context, const std::vector<int32_t>& positions, AlignedBuffer& buffer) {
  num_rows_ = static_cast<int64_t>(positions.size());
  cosines_.clear();
  factors_.clear();
  if (width_ == 0 || num_rows_ == 0) return;
  values_ = Floats(context, buffer, num_rows_ * width_);
  const float* next = values_;
  for (const RopeTable& rope : ropes_) {
    cosines_.push_back(next);
    next += num_rows_ * rope.rotary_dim();
  }
  for (size_t i = 0; i < temperatures_.size(); ++i) factors_.push_back(next + static_cast<int64_t>(i) * num_rows_);
  if (context.device == nullptr) return Compute(context, positions.data(), num_rows_, values_);
  const int64_t end = int64_t{*std::ranges::max_element(positions)} + 1;
  if (end > num_positions_) Reserve(context, std::max(end, 2 * num_positions_));
}

void PositionValues::Read(const KernelContext& context, const int32_t* there) const {
  if (width_ == 0 || num_rows_ == 0) return;
  context.device->ReadTable(table_.as<float>(), columns_.as<TableColumn>(), width_, there, num_rows_, values_);
}

}  // namespace llmi
