#include "model/row_products.h"

#include <algorithm>
#include <vector>

namespace llmi {
namespace {

constexpr int64_t kRows = 64;   // of a piece
constexpr int64_t kLanes = 16;  // columns of the second matrix at once

// panel: kLanes columns of the piece, row by row. turned: the first matrix's piece, column by column.
void AddPanel(const RowProductsArgs& args, const float* turned, const float* panel, int64_t begin) {
  const int64_t count = std::min(kLanes, args.num_second - begin);
  for (int64_t column = 0; column < args.num_first; ++column) {
    float products[kLanes] = {};
    for (int64_t row = 0; row < kRows; ++row) {
      const float value = turned[column * kRows + row];
      for (int64_t lane = 0; lane < kLanes; ++lane) products[lane] += value * panel[row * kLanes + lane];
    }
    double* sums = args.sums + column * args.num_second + begin;
    for (int64_t lane = 0; lane < count; ++lane) sums[lane] += static_cast<double>(products[lane]);
  }
}

}  // namespace

void AddRowProducts(const RowProductsArgs& args) {
  std::vector<float> turned(static_cast<size_t>(args.num_first * kRows));
  for (int64_t first_row = 0; first_row < args.num_rows; first_row += kRows) {
    const int64_t count = std::min(kRows, args.num_rows - first_row);
    std::ranges::fill(turned, 0.0f);  // rows that are missing
    for (int64_t row = 0; row < count; ++row) {
      const float* values = args.first + (first_row + row) * args.num_first;
      for (int64_t column = 0; column < args.num_first; ++column) turned[static_cast<size_t>(column * kRows + row)] = values[column];
    }
    for (int64_t begin = 0; begin < args.num_second; begin += kLanes) {
      float panel[kRows * kLanes] = {};
      for (int64_t row = 0; row < count; ++row) {
        const float* values = args.second + (first_row + row) * args.num_second + begin;
        std::copy_n(values, std::min(kLanes, args.num_second - begin), panel + row * kLanes);
      }
      AddPanel(args, turned.data(), panel, begin);
    }
  }
}

}  // namespace llmi
