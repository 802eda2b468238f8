// Cosines and sines of the rotary embedding for the positions of one pass.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops/context.h"
#include "model/config.h"

namespace llmi {

class RopeTable {
 public:
  // Computes the inverse frequencies 1 / theta^(2i / rotary_dim), then scales them: in fp32, in the steps of the families' reference code.
  explicit RopeTable(const RopeConfig& config);

  int64_t rotary_dim() const { return static_cast<int64_t>(inverse_frequencies_.size()) * 2; }

  // Writes cosine and sine [num_rows, rotary_dim / 2] of the angles fp32(position * inverse frequency); both are computed in fp64.
  void Compute(const KernelContext& context, const int32_t* positions, int64_t num_rows, float* cosine, float* sine) const;

  const std::vector<float>& inverse_frequencies() const { return inverse_frequencies_; }

 private:
  std::vector<float> inverse_frequencies_;
};

}  // namespace llmi
