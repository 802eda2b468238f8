// Times of steps and of drafters, which decide what drafts are worth.
//
// Under coupled verification tokens do not depend on drafts, so measured times may decide.
#pragma once

#include <cstdint>
#include <vector>

namespace llmi {

// The seconds that one unit of a drafter's work takes, learnt from measurements. One slow call on a busy machine must not end drafting: a
// measurement counts as at most twice the current price, and the price falls while nothing is drafted, so that it is measured again later.
class Price {
 public:
  void Learn(double seen);
  void Rest();
  double seconds() const { return seconds_; }  // 0: not measured yet

 private:
  double seconds_ = 0;
};

// The seconds that a step takes, by its number of rows, measured at a few sizes.
class CostCurve {
 public:
  struct Point {
    int64_t num_rows;
    double seconds;
  };
  CostCurve() = default;
  // points: ascending in num_rows. More rows never cost less, so a point below its left neighbour (noise) is raised to it.
  explicit CostCurve(std::vector<Point> points);
  bool empty() const { return points_.empty(); }
  const std::vector<Point>& points() const { return points_; }
  // Linear between points; past the last point it continues the last segment.
  double Seconds(int64_t num_rows) const;

 private:
  std::vector<Point> points_;
};

}  // namespace llmi
