// Measures how a GPU's matrix instructions round and order sums: the properties on which the promise's rules for CUDA rest. Run once on a
// new kind of GPU, before anything is tuned for it (docs/decisions/0014).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace llmi::cuda {

constexpr int64_t kAskedRows = 64;      // of A: what a wgmma takes
constexpr int64_t kAskedDepth = 64;     // columns of A and of B, four calls of 16
constexpr int64_t kAskedColumns = 256;  // most rows of B, so columns of D
constexpr int64_t kCallDepth = 16;      // products that a call adds up

// D [kAskedRows, num_columns] = A [kAskedRows, kAskedDepth] B [num_columns, kAskedDepth]^T in bf16 with fp32 sums, all row by row: from
// zero, a call for each 16 columns of A and B in order.
using MatrixProduct = std::function<std::vector<float>(std::span<const uint16_t> a, std::span<const uint16_t> b)>;

struct MatrixInstruction {
  std::string name;
  int64_t num_columns;  // of one call
  MatrixProduct multiply;
};

struct MatrixAnswers {
  double error = 0;            // largest distance from float64, over the sum of the products' magnitudes, in 2^-24; NaN: some D is
  bool rows_apart = false;     // an output's bits do not depend on other rows of A
  bool columns_apart = false;  // nor on other rows of B
  bool zeros_neutral = false;  // the factor of a zero changes no bit
  bool order_free = false;     // nor does the order of a call's 16 products
};

MatrixAnswers AskMatrixInstruction(const MatrixInstruction& instruction);
// Empty if the promise holds on tensor cores that answer so; else what breaks it.
std::string WhyNoTensorCores(const MatrixAnswers& answers);
// Whether both give the same bits in the columns that both have.
bool GiveEqualBits(const MatrixInstruction& first, const MatrixInstruction& second);

// mma.sync of the first GPU.
MatrixInstruction CudaMatrixInstruction();
// Its instructions: mma.sync, then those of its kind. Throws Error(kDevice) with WhyNoCuda().
std::vector<MatrixInstruction> CudaMatrixInstructions();

}  // namespace llmi::cuda
