// Cosines and sines of the rotary embedding for the positions of one pass.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops/context.h"
#include "model/config.h"

namespace llmi {

class RopeTable {
 public:
  // Inverse frequencies by the reference's recipe, in fp32: 1 / theta^(2i / rotary_dim), then scaling.
  explicit RopeTable(const RopeConfig& config);

  int64_t rotary_dim() const { return static_cast<int64_t>(inverse_frequencies_.size()) * 2; }

  // cosine, sine [num_rows, rotary_dim / 2]: of fp32(position * inverse frequency), computed in fp64.
  void Compute(const KernelContext& context, const int32_t* positions, int64_t num_rows, float* cosine, float* sine) const;

  const std::vector<float>& inverse_frequencies() const { return inverse_frequencies_; }

 private:
  std::vector<float> inverse_frequencies_;
};

}  // namespace llmi
