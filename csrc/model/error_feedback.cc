#include "model/error_feedback.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/errors.h"

namespace llmi {
namespace {

constexpr int64_t kPanel = 32;  // columns that are eliminated at once
constexpr int64_t kLanes = 8;   // columns that one pass over a panel changes
constexpr int64_t kAhead = 16;  // columns behind a block that one pass over its errors changes

// The upper triangle of a symmetric matrix, filled up with zeros to whole panels.
struct Triangle {
  int64_t size;  // with the columns that fill it up
  std::vector<double> values;
  double* row(int64_t index) { return values.data() + index * size; }
};

Triangle Ordered(const float* products, std::span<const int64_t> order, double damping) {
  const auto size = static_cast<int64_t>(order.size());
  const int64_t padded = (size + kPanel - 1) / kPanel * kPanel;
  Triangle triangle = {padded, std::vector<double>(static_cast<size_t>(padded * padded))};
  for (int64_t i = 0; i < size; ++i) {
    const int64_t row = order[static_cast<size_t>(i)];
    for (int64_t j = i; j < size; ++j) {
      const int64_t column = order[static_cast<size_t>(j)];
      triangle.row(i)[j] = static_cast<double>(products[std::min(row, column) * size + std::max(row, column)]);
    }
    triangle.row(i)[i] += damping;
  }
  for (int64_t i = size; i < padded; ++i) triangle.row(i)[i] = 1.0;
  return triangle;
}

// Divides columns [begin, begin + kPanel) of a row by their pivots, the last column first, and takes each from those before it. undivided:
// the columns before their division.
void DivideRow(Triangle& triangle, int64_t begin, int64_t row, double* undivided) {
  double* values = triangle.row(row);
  for (int64_t k = begin + kPanel - 1; k >= begin; --k) {
    const double value = values[k];
    undivided[k - begin] = value;
    for (int64_t j = begin; j < k; ++j) values[j] -= value * triangle.row(j)[k];
    values[k] = value / triangle.row(k)[k];
  }
}

// Factors the block on the diagonal from `begin` on. Returns false if a pivot is not positive.
bool FactorBlock(Triangle& triangle, int64_t begin) {
  for (int64_t k = begin + kPanel - 1; k >= begin; --k) {
    const double pivot = triangle.row(k)[k];
    if (!(pivot > 0) || !std::isfinite(pivot)) return false;
    double column[kPanel];
    for (int64_t i = begin; i < k; ++i) {
      column[i - begin] = triangle.row(i)[k];
      triangle.row(i)[k] /= pivot;
    }
    for (int64_t i = begin; i < k; ++i) {
      for (int64_t j = i; j < k; ++j) triangle.row(i)[j] -= column[i - begin] * triangle.row(j)[k];
    }
  }
  return true;
}

// Takes the panel's part from all rows and columns before it. undivided [begin, kPanel], turned [kPanel, begin].
void TakePanel(Triangle& triangle, int64_t begin, const double* undivided, const double* turned) {
  for (int64_t row = 0; row < begin; row += 2) {
    const double *first = undivided + row * kPanel, *second = first + kPanel;
    for (int64_t column = row / kLanes * kLanes; column < begin; column += kLanes) {
      double *a = triangle.row(row) + column, *b = triangle.row(row + 1) + column;
      double sums_a[kLanes], sums_b[kLanes];
      std::copy_n(a, kLanes, sums_a);
      std::copy_n(b, kLanes, sums_b);
      for (int64_t k = 0; k < kPanel; ++k) {
        const double* other = turned + k * begin + column;
        for (int64_t lane = 0; lane < kLanes; ++lane) sums_a[lane] -= first[k] * other[lane];
        for (int64_t lane = 0; lane < kLanes; ++lane) sums_b[lane] -= second[k] * other[lane];
      }
      std::copy_n(sums_a, kLanes, a);
      std::copy_n(sums_b, kLanes, b);
    }
  }
}

// targets[behind the block] += errors x upper, by the block's columns in their order. args: FeedbackArgs or PruneArgs.
void FeedRow(const auto& args, const float* errors, float* targets) {
  const float* block = args.upper + args.begin * args.num_cols;
  int64_t column = args.begin + args.count;
  for (; column + kAhead <= args.num_cols; column += kAhead) {
    float sums[kAhead];
    std::copy_n(targets + column, kAhead, sums);
    for (int64_t k = 0; k < args.count; ++k) {
      const float* upper = block + k * args.num_cols + column;
      for (int64_t lane = 0; lane < kAhead; ++lane) sums[lane] += errors[k] * upper[lane];
    }
    std::copy_n(sums, kAhead, targets + column);
  }
  for (; column < args.num_cols; ++column) {
    for (int64_t k = 0; k < args.count; ++k) targets[column] += errors[k] * block[k * args.num_cols + column];
  }
}

int32_t NearestLevel(std::span<const float> levels, float value) {
  int32_t code = 0;
  while (static_cast<size_t>(code) + 1 < levels.size() &&
         value - levels[static_cast<size_t>(code)] > levels[static_cast<size_t>(code) + 1] - value) {
    ++code;
  }
  return code;
}

}  // namespace

ProductFactor FactorProducts(const float* products, std::span<const int64_t> order, double damping) {
  const auto size = static_cast<int64_t>(order.size());
  Triangle triangle = Ordered(products, order, damping);
  std::vector<double> undivided(static_cast<size_t>(triangle.size * kPanel)), turned(undivided.size());
  for (int64_t begin = triangle.size - kPanel; begin >= 0; begin -= kPanel) {
    if (!FactorBlock(triangle, begin)) {
      throw Error(ErrorKind::kInvalidArgument, "the products of the inputs are not positive definite: more damping, or more tokens",
                  "damping");
    }
    for (int64_t row = 0; row < begin; ++row) {
      DivideRow(triangle, begin, row, undivided.data() + row * kPanel);
      for (int64_t k = 0; k < kPanel; ++k) turned[static_cast<size_t>(k * begin + row)] = triangle.row(row)[begin + k];
    }
    TakePanel(triangle, begin, undivided.data(), turned.data());
  }
  ProductFactor factor = {std::vector<float>(static_cast<size_t>(size * size)), std::vector<double>(static_cast<size_t>(size))};
  for (int64_t i = 0; i < size; ++i) {
    factor.pivots[static_cast<size_t>(i)] = triangle.row(i)[i];
    factor.upper[static_cast<size_t>(i * size + i)] = 1.0f;
    for (int64_t j = i + 1; j < size; ++j) factor.upper[static_cast<size_t>(i * size + j)] = static_cast<float>(triangle.row(i)[j]);
  }
  return factor;
}

void FeedErrors(const FeedbackArgs& args) {
  std::vector<float> errors(static_cast<size_t>(args.count));
  const auto least = static_cast<float>(args.least), most = static_cast<float>(args.most);
  for (int64_t row = 0; row < args.num_rows; ++row) {
    float* targets = args.targets + row * args.num_cols;
    const float scale = args.scales[row], low = args.lows[row];
    const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    for (int64_t k = 0; k < args.count; ++k) {
      const int64_t column = args.begin + k;
      const float scaled = (targets[column] - low) * inverse;
      float level = 0;
      int32_t code = 0;
      if (args.levels.empty()) {
        level = std::min(most, std::max(least, std::nearbyint(scaled)));
        code = static_cast<int32_t>(level);
      } else {
        code = NearestLevel(args.levels, scaled);
        level = args.levels[static_cast<size_t>(code)];
      }
      args.codes[row * args.count + k] = static_cast<int16_t>(code);
      const float error = args.values[row * args.num_cols + column] - (scale * level + low);
      errors[static_cast<size_t>(k)] = error;
      const float* upper = args.upper + column * args.num_cols + args.begin;
      for (int64_t j = k + 1; j < args.count; ++j) targets[args.begin + j] += error * upper[j];
    }
    FeedRow(args, errors.data(), targets);
  }
}

void FeedPruned(const PruneArgs& args) {
  std::vector<float> errors(static_cast<size_t>(args.count));
  for (int64_t row = 0; row < args.num_rows; ++row) {
    float* targets = args.targets + row * args.num_cols;
    for (int64_t k = 0; k < args.count; ++k) {
      const int64_t column = args.begin + k;
      if (!args.kept[row * args.count + k]) targets[column] = 0.0f;
      const float error = args.values[row * args.num_cols + column] - targets[column];
      errors[static_cast<size_t>(k)] = error;
      const float* upper = args.upper + column * args.num_cols + args.begin;
      for (int64_t j = k + 1; j < args.count; ++j) targets[args.begin + j] += error * upper[j];
    }
    FeedRow(args, errors.data(), targets);
  }
}

}  // namespace llmi
