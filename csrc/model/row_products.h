// Products of the columns of two matrices, summed over rows in one order: equal inputs give equal bits on every machine.
#pragma once

#include <cstdint>

namespace llmi {

struct RowProductsArgs {
  int64_t num_rows;
  int64_t num_first;
  int64_t num_second;
  const float* first;   // [num_rows, num_first]
  const float* second;  // [num_rows, num_second]
  double* sums;         // [num_first, num_second]
};
// sums += first^T second: pieces of 64 rows in fp32, the sum of pieces in fp64.
void AddRowProducts(const RowProductsArgs& args);

}  // namespace llmi
