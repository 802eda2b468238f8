#include "speculative/cost_curve.h"

#include <algorithm>
#include <utility>

namespace llmi {
namespace {

constexpr double kPriceFade = 0.999;  // a drafter that is too slow is tried about every 200 steps

}  // namespace

void Price::Learn(double seen) { seconds_ = seconds_ == 0 ? seen : 0.8 * seconds_ + 0.2 * std::min(seen, 2 * seconds_); }

void Price::Rest() { seconds_ *= kPriceFade; }

CostCurve::CostCurve(std::vector<Point> points) : points_(std::move(points)) {
  for (size_t i = 1; i < points_.size(); ++i) points_[i].seconds = std::max(points_[i].seconds, points_[i - 1].seconds);
}

double CostCurve::Seconds(int64_t num_rows) const {
  if (points_.empty()) return 0;
  if (points_.size() == 1 || num_rows <= points_.front().num_rows) return points_.front().seconds;
  size_t right = 1;
  while (right + 1 < points_.size() && points_[right].num_rows < num_rows) ++right;
  const Point& a = points_[right - 1];
  const Point& b = points_[right];
  const double slope = (b.seconds - a.seconds) / static_cast<double>(b.num_rows - a.num_rows);
  return a.seconds + slope * static_cast<double>(num_rows - a.num_rows);
}

}  // namespace llmi
