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

  // fp32 values that Compute stores for each row.
  static int64_t FloatsPerRow(const ModelSpec& spec);

  // Computes the values of these rows on the host and stores them in `buffer`, where the ops run. They are valid until the next call.
  void Compute(const KernelContext& context, const std::vector<int32_t>& positions, AlignedBuffer& buffer);

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
  void CopyRotations(const KernelContext& context, size_t rope, const std::vector<int32_t>& positions, float* cosine, float* sine);

  std::vector<RopeTable> ropes_;
  std::vector<QueryTemperatureSpec> temperatures_;  // those that differ
  std::vector<int> factors_of_layer_;               // index into temperatures_; -1: none
  std::vector<const float*> cosines_, factors_;     // where the last Compute stored them
  int64_t num_rows_ = 0;
  // With a device: the values before they are uploaded, and for each table the rotations of the blocks of positions that were seen, of
  // which each is computed once: cosines, then sines. They take 4 rotary_dim bytes of the host a position.
  std::vector<float> host_;
  std::vector<std::vector<std::vector<float>>> kept_;
};

}  // namespace llmi
