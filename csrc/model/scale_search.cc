#include "model/scale_search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/half.h"

namespace llmi {
namespace {

constexpr int kFirstFactor = 20, kLastFactor = 36;  // in 32nds, of a block's own scale
constexpr int kRefits = 4;                          // of the best one

struct ScaleAndLow {
  float scale = 0, low = 0;
};

// A sum in one order: halves are added to halves.
float SumOfHalves(float* values, int64_t size) {
  for (int64_t half = size / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) values[i] += values[i + half];
  }
  return values[0];
}

class SearchedBlock {
 public:
  SearchedBlock(const ScaleSearch& search, int64_t index)
      : search_(search),
        size_(search.size),
        values_(search.values + index * search.size),
        weights_(search.weights + index % search.num_weights * search.size) {}

  ScaleAndLow Search() {
    float smallest = values_[0], largest = values_[0];
    for (int64_t i = 1; i < size_; ++i) {
      smallest = std::min(smallest, values_[i]);
      largest = std::max(largest, values_[i]);
    }
    if (search_.has_minimum) {
      Try((largest - Low(smallest)) / static_cast<float>(search_.most), Low(smallest));
    } else {
      const float extreme = largest > -smallest ? largest : smallest;
      if (!search_.levels.empty()) {
        Try(extreme / search_.levels.front(), 0);
        Try(extreme / search_.levels.back(), 0);
      } else {
        Try(search_.least == -search_.most ? std::fabs(extreme) / static_cast<float>(search_.most)
                                           : extreme / static_cast<float>(search_.least),
            0);
      }
    }
    for (int i = 0; i < kRefits; ++i) {
      const ScaleAndLow before = best_;
      Judge(best_);  // makes its codes
      Judge(Fitted(best_));
      if (best_.scale == before.scale && best_.low == before.low) break;
    }
    return best_;
  }

 private:
  float Low(float low) const { return search_.below_zero ? std::min(low, 0.0f) : low; }
  float Stored(float value) const { return search_.in_halves ? HalfToFloat(FloatToHalf(value)) : value; }

  void Try(float scale, float low) {
    if (first_) best_ = {Stored(scale), Stored(low)};
    first_ = false;
    for (int factor = kFirstFactor; factor <= kLastFactor; ++factor) {
      const float share = static_cast<float>(factor) / 32.0f;
      const ScaleAndLow grid = {Stored(scale * share), Stored(low * std::min(share, 1.0f))};
      Judge(grid);
      Judge(Fitted(grid));
    }
  }

  // Makes the levels of the nearest codes, and keeps the grid if its error is the least so far.
  void Judge(const ScaleAndLow& grid) {
    const float inverse = grid.scale != 0.0f ? 1.0f / grid.scale : 0.0f;
    float errors[ScaleSearch::kMostSize] = {};
    if (search_.levels.empty()) {
      const auto least = static_cast<float>(search_.least), most = static_cast<float>(search_.most);
      for (int64_t i = 0; i < size_; ++i) {
        levels_[i] = std::min(most, std::max(least, std::nearbyint((values_[i] - grid.low) * inverse)));
      }
    } else {
      for (int64_t i = 0; i < size_; ++i) levels_[i] = NearestLevel(values_[i] * inverse);
    }
    for (int64_t i = 0; i < size_; ++i) {
      const float gap = values_[i] - (grid.scale * levels_[i] + grid.low);
      errors[i] = weights_[i] * gap * gap;
    }
    const float error = SumOfHalves(errors, size_);
    if (error < error_) {
      error_ = error;
      best_ = grid;
    }
  }

  // Of two that are equally near the lower one.
  float NearestLevel(float value) const {
    size_t code = 0;
    for (size_t i = 0; i + 1 < search_.levels.size(); ++i) {
      code += static_cast<size_t>(value > (search_.levels[i] + search_.levels[i + 1]) * 0.5f);
    }
    return search_.levels[code];
  }

  // What fits the levels best; `now` where nothing is determined.
  ScaleAndLow Fitted(const ScaleAndLow& now) const {
    float squares[ScaleSearch::kMostSize] = {}, products[ScaleSearch::kMostSize] = {};
    for (int64_t i = 0; i < size_; ++i) {
      const float weighted = weights_[i] * levels_[i];
      squares[i] = weighted * levels_[i];
      products[i] = weighted * values_[i];
    }
    const float square = SumOfHalves(squares, size_), product = SumOfHalves(products, size_);
    const ScaleAndLow alone = {square > 0 ? Stored(product / square) : now.scale, 0};
    if (!search_.has_minimum) return alone;
    float totals[ScaleSearch::kMostSize] = {}, means[ScaleSearch::kMostSize] = {}, firsts[ScaleSearch::kMostSize] = {};
    for (int64_t i = 0; i < size_; ++i) {
      totals[i] = weights_[i];
      means[i] = weights_[i] * values_[i];
      firsts[i] = weights_[i] * levels_[i];
    }
    const float total = SumOfHalves(totals, size_), mean = SumOfHalves(means, size_), first = SumOfHalves(firsts, size_);
    const float determinant = total * square - first * first;
    if (!(determinant > 1e-6f * total * square)) return now;
    const float low = (square * mean - first * product) / determinant;
    if (search_.below_zero && low > 0) return alone;
    return {Stored((total * product - first * mean) / determinant), Stored(low)};
  }

  const ScaleSearch& search_;
  const int64_t size_;
  const float* values_;
  const float* weights_;
  float levels_[ScaleSearch::kMostSize] = {};
  ScaleAndLow best_;
  float error_ = std::numeric_limits<float>::infinity();
  bool first_ = true;
};

}  // namespace

void SearchScales(const ScaleSearch& search) {
  for (int64_t i = 0; i < search.num_blocks; ++i) {
    const ScaleAndLow grid = SearchedBlock(search, i).Search();
    search.scales[i] = grid.scale;
    search.lows[i] = grid.low;
  }
}

}  // namespace llmi
