// Chooses how many tokens to draft: the number with the most expected tokens per second, which may be none.
//
// The rule knows the time of a step by its number of rows, c(M), and how often drafts of this sequence were accepted at each depth. Under
// coupled verification tokens do not depend on the draft's length, so measured times may decide here.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace llmi {

constexpr int64_t kMaxDraftDepth = 32;

// Rates of acceptance by depth. Each new draft reduces the weight of the earlier ones by a tenth.
class AcceptanceRecord {
 public:
  // expected: the expected rate of a draft's first token. It weighs more the further it is from one half.
  explicit AcceptanceRecord(double expected = 0.5) : expected_(expected) {}
  // Adds a draft of depth `depth` whose first num_accepted tokens were accepted.
  void Add(int64_t depth, int64_t num_accepted);
  // Whether no draft was added so far.
  bool empty() const { return tried_[0] == 0; }
  // Call it for a step without a draft: earlier drafts lose weight, so that drafting is tried again later.
  void Rest();
  // Probability that the token at depth i + 1 is accepted, given that those before it were. In [0, 1].
  std::array<double, kMaxDraftDepth> Rates() const;
  // The first record of a new sequence with the same drafter: the same rates, with the weight of a few drafts at most.
  AcceptanceRecord AsPrior() const;

 private:
  double expected_;
  std::array<double, kMaxDraftDepth> tried_{};
  std::array<double, kMaxDraftDepth> accepted_{};
};

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

// The step so far, and the cost of one more draft in it.
struct LengthQuestion {
  double expected_tokens = 0;          // expected tokens of the step without this draft
  int64_t num_rows = 0;                // rows of the step without this draft
  double draft_seconds_per_token = 0;  // time to draft one token
  int64_t max_length = 0;
  double drafted_ratio = 1;      // measured time over the curve's for steps with drafts, divided by the same ratio for steps without
  double start_seconds = 0;      // one-time cost to begin drafting for this sequence: a draft model reads its prompt
  int64_t remaining_tokens = 0;  // tokens that the sequence may still draw; used only if start_seconds > 0
};

// The length in [0, max_length] with the most expected tokens per second. 0 if that is less than 1 % better than no draft, or if drafting
// saves less over the rest of the sequence than start_seconds.
int64_t ChooseLength(const std::array<double, kMaxDraftDepth>& rates, const CostCurve& costs, const LengthQuestion& question);

}  // namespace llmi
