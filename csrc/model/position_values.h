// The values that the positions of a pass determine before any layer runs: cosines and sines of the rotary tables, factors of queries.
#pragma once

#include <cstdint>
#include <vector>

#include "core/aligned.h"
#include "kernels/ops/context.h"
#include "model/rope_table.h"
#include "model/spec.h"

namespace llmi {

class PositionValues {
 public:
  explicit PositionValues(const ModelSpec& spec);

  // fp32 values of a position.
  static int64_t FloatsPerRow(const ModelSpec& spec);

  // On a device the values of all positions below num_positions are computed once and stay in its memory: FloatsPerRow for each. A table
  // that is too short for Begin grows.
  void Reserve(const KernelContext& context, int64_t num_positions);

  // Finds room for the values of these rows in `buffer`, where the ops run. Without a device it computes them there; with one, Read does.
  // They are valid until the next call.
  void Begin(const KernelContext& context, const std::vector<int32_t>& positions, AlignedBuffer& buffer);
  // On a device: an op. there: the positions, on the device.
  void Read(const KernelContext& context, const int32_t* there) const;

  int64_t rotary_dim(int rope) const { return ropes_[static_cast<size_t>(rope)].rotary_dim(); }
  // [rows, rotary_dim / 2]
  const float* cosine(int rope) const { return cosines_[static_cast<size_t>(rope)]; }
  const float* sine(int rope) const { return cosine(rope) + num_rows_ * rotary_dim(rope) / 2; }
  // [rows]: the factors of a layer's queries; null: none.
  const float* query_factors(int64_t layer) const {
    const int index = factors_of_layer_[static_cast<size_t>(layer)];
    return index < 0 ? nullptr : factors_[static_cast<size_t>(index)];
  }

 private:
  void Compute(const KernelContext& context, const int32_t* positions, int64_t num_rows, float* out) const;

  std::vector<RopeTable> ropes_;
  std::vector<QueryTemperatureSpec> temperatures_;  // those that differ
  std::vector<int> factors_of_layer_;               // index into temperatures_; -1: none
  std::vector<int64_t> sizes_;                      // of the parts of a position's values: cosines and sines of each rope, each factor
  int64_t width_ = 0;                               // of all parts
  // Where the last Begin has found room: part after part [rows, size].
  float* values_ = nullptr;
  std::vector<const float*> cosines_, factors_;
  int64_t num_rows_ = 0;
  // On a device.
  int64_t num_positions_ = 0;
  AlignedBuffer table_;    // [num_positions_, width_]
  AlignedBuffer columns_;  // [width_] TableColumn
};

}  // namespace llmi
