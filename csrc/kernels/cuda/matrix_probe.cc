#include "kernels/cuda/matrix_probe.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/bfloat16.h"
#include "core/errors.h"
#include "core/philox.h"

namespace llmi::cuda {
namespace {

using Matrix = std::vector<uint16_t>;

constexpr uint32_t kLarge = 10;

// Values of both signs and many magnitudes, 2^-4 to 2^4 and `scale` powers of two larger, so that sums round; `stream` picks others.
Matrix RandomMatrix(int64_t num_rows, uint32_t stream, uint32_t scale = 0) {
  Matrix matrix(static_cast<size_t>(num_rows * kAskedDepth));
  for (size_t i = 0; i < matrix.size(); ++i) {
    const uint32_t word = Philox4x32({static_cast<uint32_t>(i), stream, 0, 0}, 22)[0];
    matrix[i] = static_cast<uint16_t>((word & 0x807F) | ((123 + scale + (word >> 16) % 9) << 7));
  }
  return matrix;
}

Matrix A() { return RandomMatrix(kAskedRows, 1); }
Matrix B(int64_t num_columns) { return RandomMatrix(num_columns, 2); }

bool Same(const float* first, const float* second, int64_t count, int64_t stride = 1) {
  for (int64_t i = 0; i < count; ++i) {
    if (std::memcmp(first + i * stride, second + i * stride, sizeof(float)) != 0) return false;
  }
  return true;
}

bool Same(const std::vector<float>& first, const std::vector<float>& second) {
  return first.size() == second.size() && Same(first.data(), second.data(), static_cast<int64_t>(first.size()));
}

// All rows but `kept` from `others`.
Matrix WithOtherRows(const Matrix& matrix, const Matrix& others, int64_t kept) {
  Matrix changed = others;
  std::copy_n(matrix.begin() + kept * kAskedDepth, kAskedDepth, changed.begin() + kept * kAskedDepth);
  return changed;
}

// The odd places of each row from `others`.
Matrix WithOtherHalf(Matrix matrix, const Matrix& others) {
  for (size_t i = 1; i < matrix.size(); i += 2) matrix[i] = others[i];
  return matrix;
}

// Each call's 16 columns in another order.
Matrix Permuted(const Matrix& matrix) {
  Matrix permuted = matrix;
  for (size_t i = 0; i < matrix.size(); ++i) {
    const size_t place = i % kCallDepth;
    permuted[i - place + (place * 5 + 3) % kCallDepth] = matrix[i];
  }
  return permuted;
}

double LargestError(const Matrix& a, const Matrix& b, const std::vector<float>& d) {
  double largest = 0;
  const size_t num_columns = b.size() / kAskedDepth;
  for (size_t i = 0; i < d.size(); ++i) {
    const uint16_t* row = a.data() + i / num_columns * kAskedDepth;
    const uint16_t* column = b.data() + i % num_columns * kAskedDepth;
    double sum = 0;
    double magnitude = 0;
    for (int64_t k = 0; k < kAskedDepth; ++k) {
      const double product = static_cast<double>(Bfloat16ToFloat(row[k])) * static_cast<double>(Bfloat16ToFloat(column[k]));
      sum += product;
      magnitude += std::fabs(product);
    }
    if (std::isnan(d[i])) return std::nan("");
    largest = std::max(largest, std::fabs(static_cast<double>(d[i]) - sum) / magnitude);
  }
  return std::ldexp(largest, 24);
}

}  // namespace

MatrixAnswers AskMatrixInstruction(const MatrixInstruction& instruction) {
  const int64_t num_columns = instruction.num_columns;
  CheckArgument(num_columns >= 8 && num_columns <= kAskedColumns, "a matrix probe: 8 to 256 columns");
  const Matrix a = A();
  const Matrix b = B(num_columns);
  const auto multiply = [&](const Matrix& left, const Matrix& right) {
    std::vector<float> d = instruction.multiply(left, right);
    CheckArgument(d.size() == static_cast<size_t>(kAskedRows * num_columns), "a matrix probe: a product has 64 rows of all columns");
    return d;
  };
  const std::vector<float> d = multiply(a, b);
  MatrixAnswers answers;
  answers.error = LargestError(a, b, d);
  answers.rows_apart = answers.columns_apart = true;
  for (const int64_t row : {int64_t{0}, int64_t{13}, kAskedRows - 1}) {
    const std::vector<float> other = multiply(WithOtherRows(a, RandomMatrix(kAskedRows, 3, kLarge), row), b);
    answers.rows_apart = answers.rows_apart && Same(d.data() + row * num_columns, other.data() + row * num_columns, num_columns);
  }
  for (const int64_t column : {int64_t{0}, int64_t{5}, num_columns - 1}) {
    const std::vector<float> other = multiply(a, WithOtherRows(b, RandomMatrix(num_columns, 4, kLarge), column));
    answers.columns_apart = answers.columns_apart && Same(d.data() + column, other.data() + column, kAskedRows, num_columns);
  }
  const Matrix half_of_a = WithOtherHalf(a, Matrix(a.size(), 0));
  const std::vector<float> half = multiply(half_of_a, b);
  answers.zeros_neutral = Same(half, multiply(half_of_a, WithOtherHalf(b, RandomMatrix(num_columns, 5, kLarge)))) &&
                          Same(half, multiply(half_of_a, WithOtherHalf(b, Matrix(b.size(), 0))));
  answers.order_free = Same(d, multiply(Permuted(a), Permuted(b)));
  return answers;
}

std::string WhyNoTensorCores(const MatrixAnswers& answers) {
  if (!answers.rows_apart) return "an output's bits depend on other rows of A";
  if (!answers.columns_apart) return "an output's bits depend on other columns of B";
  if (!answers.zeros_neutral) return "the factor of a zero changes bits";
  return "";
}

bool GiveEqualBits(const MatrixInstruction& first, const MatrixInstruction& second) {
  const std::vector<float> d = first.multiply(A(), B(first.num_columns));
  const std::vector<float> other = second.multiply(A(), B(second.num_columns));
  const int64_t shared = std::min(first.num_columns, second.num_columns);
  for (int64_t row = 0; row < kAskedRows; ++row) {
    if (!Same(d.data() + row * first.num_columns, other.data() + row * second.num_columns, shared)) return false;
  }
  return true;
}

}  // namespace llmi::cuda
