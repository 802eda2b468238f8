#include "engine/contrast/cosine_index.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/errors.h"
#include "kernels/ops/linear.h"

namespace llmi {
namespace {

constexpr int64_t kChunkRows = 128;
constexpr size_t kChunksAtOnce = 8;  // parts of one linear layer

double Length(std::span<const float> row) {
  std::array<double, 16> lanes{};
  for (size_t i = 0; i < row.size(); ++i) lanes[i % 16] += static_cast<double>(row[i]) * static_cast<double>(row[i]);
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  const double length = std::sqrt(lanes[0]);
  if (!std::isfinite(length)) throw Error(ErrorKind::kNonFiniteLogits, "the model's hidden states hold NaN or infinity");
  return length;
}

}  // namespace

void CosineIndex::Add(std::span<const float> row) {
  row_size_ = row.size();
  const double length = Length(row);
  const int64_t place = size() % kChunkRows;
  if (place == 0) {
    chunks_.emplace_back(static_cast<size_t>(NumTiles(kChunkRows) * PackedTileBytes(PackedType::kF32, static_cast<int64_t>(row_size_))),
                         "hidden states");
  }
  float* tile = chunks_.back().as<float>() + static_cast<size_t>(place / kTileRows * kTileRows) * row_size_;
  for (size_t k = 0; k < row_size_; ++k) tile[static_cast<int64_t>(k) * kTileRows + place % kTileRows] = row[k];
  lengths_.push_back(length);
}

std::vector<double> CosineIndex::LargestCosines(const KernelContext& context, std::span<const float> others) const {
  const size_t num_others = others.size() / row_size_;
  std::vector<double> largest(num_others, -std::numeric_limits<double>::infinity());
  std::vector<double> other_lengths;
  for (size_t i = 0; i < num_others; ++i) other_lengths.push_back(Length(others.subspan(i * row_size_, row_size_)));
  std::vector<float> dots;
  for (size_t first = 0; first < chunks_.size(); first += kChunksAtOnce) {
    std::vector<LinearPart> parts;
    int64_t num_rows = 0;
    const auto begin = static_cast<int64_t>(first) * kChunkRows;
    for (size_t c = first; c < std::min(chunks_.size(), first + kChunksAtOnce); ++c) {
      const int64_t rows = std::min(kChunkRows, size() - begin - num_rows);
      parts.push_back({.weights = {PackedType::kF32, rows, static_cast<int64_t>(row_size_), chunks_[c].data()}, .out_column = num_rows});
      num_rows += rows;
    }
    dots.resize(num_others * static_cast<size_t>(num_rows));
    Linear(context, {.parts = parts.data(),
                     .num_parts = static_cast<int64_t>(parts.size()),
                     .num_rows = static_cast<int64_t>(num_others),
                     .x = others.data(),
                     .x_stride = static_cast<int64_t>(row_size_),
                     .out = dots.data(),
                     .out_stride = num_rows});
    for (size_t i = 0; i < num_others; ++i) {
      const float* row = dots.data() + i * static_cast<size_t>(num_rows);
      for (int64_t j = 0; j < num_rows; ++j) {
        const double length = lengths_[static_cast<size_t>(begin + j)];
        const double cosine = length == 0 || other_lengths[i] == 0 ? 0.0 : static_cast<double>(row[j]) / length / other_lengths[i];
        largest[i] = std::max(largest[i], cosine);
      }
    }
  }
  return largest;
}

}  // namespace llmi
