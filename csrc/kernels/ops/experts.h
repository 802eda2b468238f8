// The steps by which a layer's experts run. A pair is a row and an expert that it uses; pairs are sorted by expert, then by row, so that
// the rows of one expert follow each other. How rows are grouped changes no bit: each pair is a row of a linear layer (linear.h).
#pragma once

#include <stdint.h>

#include "core/host_device.h"
#include "kernels/ops/context.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/linear_input.h"

namespace llmi {

// experts  [num_rows, num_used], ascending in a row, as Route stores them
// first    [num_experts + 1]: the pairs of expert e are [first[e], first[e + 1])
// rows     [num_rows * num_used]: the row of each pair
// places   [num_rows, num_used]: the pair of each row and expert
// The heads of a layer are such experts too, where each head has a matrix of its own and each row uses all of them: HeadPairs, which have
// none of these arrays, as expert_linear needs none.
struct ExpertPairs {
  int64_t num_experts;
  int64_t num_used;
  int64_t num_rows;
  const int32_t* experts;
  int32_t* first;
  int32_t* rows;
  int32_t* places;

  LLMI_HD int64_t num_pairs() const { return num_rows * num_used; }
  LLMI_HD int64_t First(int64_t expert) const { return first != nullptr ? first[expert] : expert * num_rows; }
};
inline ExpertPairs HeadPairs(int64_t num_heads, int64_t num_rows) {
  return {num_heads, num_heads, num_rows, nullptr, nullptr, nullptr, nullptr};
}
void SortPairs(const KernelContext& context, const ExpertPairs& pairs);

// A row of `to` is that of `from` which the pair has, in each form that `to` wants. from_x, to_x: the fp32 rows of num_cols columns; to_x
// null: not wanted.
void GatherPairs(const KernelContext& context, const ExpertPairs& pairs, const float* from_x, const LinearInput& from, int64_t num_cols,
                 float* to_x, const LinearInput& to);

// Linear (linear.h) whose rows are pairs, each multiplied with its own expert's matrix. A part's weights are the experts' matrices of
// part.weights.num_rows rows, one after the other, each filled up to whole tiles; so is its bias. Where a device rounds x for layers of
// bf16 or fp16, it does not so here.
// Errors (kInvalidArgument): those of Linear; other rows than the pairs; accumulate.
void ExpertLinear(const KernelContext& context, const ExpertPairs& pairs, const LinearArgs& args);

// out [num_rows, size] = the sum of weight * values of the row's pairs, in ascending order of experts: sum = fma(weight, value, sum) from
// zero. weights [num_rows, num_used]; values [pairs, size].
void MixPairs(const KernelContext& context, const ExpertPairs& pairs, const float* weights, const float* values, int64_t size, float* out);

// out = fma(sigmoid(gate), x, out), row by row; gates [num_rows], null: out = out + x. x, out [num_rows, size].
void AddGated(const KernelContext& context, const float* x, const float* gates, int64_t num_rows, int64_t size, float* out);

}  // namespace llmi
