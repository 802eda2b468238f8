// Cosines and sines of the rotary embedding for the positions of one pass.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops/context.h"
#include "model/spec.h"

namespace llmi {

class RopeTable {
 public:
  // Computes the inverse frequencies 1 / theta^(2i / rotary_dim), then divides and blends them: in fp32, in the steps of the families'
  // reference code. Where the spec's divisors are in a tensor, they must have been read (LoadWeights).
  explicit RopeTable(const RopeSpec& spec);

  int64_t rotary_dim() const { return static_cast<int64_t>(inverse_frequencies_.size()) * 2; }

  // Writes cosine and sine [num_rows, rotary_dim / 2] of the angles fp32(position * inverse frequency): computed in fp64, rounded to fp32,
  // then times the magnitude, if that is not 1. A reversed table has the sines of the negative angles.
  void Compute(const KernelContext& context, const int32_t* positions, int64_t num_rows, float* cosine, float* sine) const;

  const std::vector<float>& inverse_frequencies() const { return inverse_frequencies_; }

 private:
  std::vector<float> inverse_frequencies_;
  float cosine_factor_;
  float sine_factor_;  // below zero for a reversed table
};

}  // namespace llmi
