// How many tokens to draft: as many as raise the expected tokens per second, down to none.
//
// The rule sees what the machine's step costs by number of rows, c(M), and how often drafts of this sequence were
// accepted at each depth. Under coupled verification tokens do not depend on the length, so a clock may enter here.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace llmi {

constexpr int64_t kMaxDraftDepth = 32;

// Acceptance by depth, older steps forgotten by a tenth each.
class AcceptanceRecord {
 public:
  // expected: the rate of a first token, before anything was seen. The further from one half, the more it weighs.
  explicit AcceptanceRecord(double expected = 0.5) : expected_(expected) {}
  // A draft `depth` deep had its first num_accepted tokens accepted.
  void Add(int64_t depth, int64_t num_accepted);
  // Nothing was seen so far.
  bool empty() const { return tried_[0] == 0; }
  // A step without a draft: what was learnt fades, so that a sequence is tried again some time.
  void Rest();
  // Probability that the token at depth i + 1 is accepted, given that those before it were. In [0, 1].
  std::array<double, kMaxDraftDepth> Rates() const;
  // The record of a new sequence whose drafter has this history: weighs as much as a few drafts.
  AcceptanceRecord AsPrior() const;

 private:
  double expected_;
  std::array<double, kMaxDraftDepth> tried_{};
  std::array<double, kMaxDraftDepth> accepted_{};
};

// Seconds a unit of a drafter's work, learnt from what was seen. One slow call on a busy machine must not end drafting: one
// measurement counts up to twice the price, and the price fades while nothing is drafted, so that it is measured again later.
class Price {
 public:
  void Learn(double seen);
  void Rest();
  double seconds() const { return seconds_; }  // 0: nothing seen

 private:
  double seconds_ = 0;
};

// Seconds of a step by its number of rows, measured at a few sizes.
class CostCurve {
 public:
  struct Point {
    int64_t num_rows;
    double seconds;
  };
  CostCurve() = default;
  // points: ascending num_rows; a dip (noise) is filled from the left, since more rows never cost less.
  explicit CostCurve(std::vector<Point> points);
  bool empty() const { return points_.empty(); }
  const std::vector<Point>& points() const { return points_; }
  // Linear between points, along the last segment past them.
  double Seconds(int64_t num_rows) const;

 private:
  std::vector<Point> points_;
};

// What a step holds so far, and what one more draft would add.
struct LengthQuestion {
  double expected_tokens = 0;          // of the step without this draft
  int64_t num_rows = 0;                // likewise
  double draft_seconds_per_token = 0;  // what drafting itself costs
  int64_t max_length = 0;
  double drafted_ratio = 1;      // what steps with drafts take over what the curve says, relative to steps without
  double start_seconds = 0;      // once, to begin drafting for this sequence: a draft model reads its prompt
  int64_t remaining_tokens = 0;  // that the sequence may still draw; counts where there is a start to pay for
};

// The length in [0, max_length] with the most expected tokens per second; 0 unless it beats no draft by 1 %, and saves
// more over the sequence's rest than the start costs.
int64_t ChooseLength(const std::array<double, kMaxDraftDepth>& rates, const CostCurve& costs, const LengthQuestion& question);

}  // namespace llmi
