// Rounding a matrix column by column, where each column makes up for the errors of those before it (GPTQ: Frantar et al., 2022, in the form
// of QuIP's LDLQ: Chee et al., 2023). Loops in one order: equal inputs give equal bits on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace llmi {

// H = M D M^T with D diagonal and M upper triangular with ones on its diagonal.
struct ProductFactor {
  std::vector<float> upper;    // M, [size, size]
  std::vector<double> pivots;  // D
};
// H: `products` [size, size], of which the upper triangle is read, plus `damping` on its diagonal, rows and columns in this order (a
// permutation of [0, size)). Throws Error(kInvalidArgument): H is not positive definite.
ProductFactor FactorProducts(const float* products, std::span<const int64_t> order, double damping);

// Columns [begin, begin + count) of `targets` become codes: rint((target - low) / scale), within [least, most]; a code stands for
// scale * code + low, or with `levels` (ascending, as many as codes) for scale * level of the nearest level.
struct FeedbackArgs {
  int64_t num_rows;
  int64_t num_cols;
  const float* values;  // [num_rows, num_cols]
  float* targets;       // the same, and the errors of the columns before
  const float* upper;   // ProductFactor's, [num_cols, num_cols]
  int64_t begin;
  int64_t count;
  const float* scales;  // [num_rows]
  const float* lows;    // [num_rows]
  int32_t least;
  int32_t most;
  std::span<const float> levels;
  int16_t* codes;  // [num_rows, count]
};
// Adds the errors of these columns to the targets of those behind.
void FeedErrors(const FeedbackArgs& args);

// Columns [begin, begin + count) of `targets` become 0 where `kept` is false, and stay what they are where it is true (SparseGPT: Frantar
// and Alistarh, 2023); what that changes of `values` is made up for by the targets of the columns behind.
struct PruneArgs {
  int64_t num_rows;
  int64_t num_cols;
  const float* values;  // as FeedbackArgs has them
  float* targets;
  const float* upper;
  int64_t begin;
  int64_t count;
  const bool* kept;  // [num_rows, count]
};
void FeedPruned(const PruneArgs& args);

}  // namespace llmi
