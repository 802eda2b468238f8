// How often drafts of a sequence were accepted at each depth: what length policies of users are told.
#pragma once

#include <array>
#include <cstdint>

namespace llmi {

constexpr int64_t kMaxDraftDepth = 32;

// Rates of acceptance by depth. Each new draft reduces the weight of the earlier ones by a tenth.
class AcceptanceRecord {
 public:
  // expected: the expected rate of a draft's first token. It weighs more the further it is from one half.
  explicit AcceptanceRecord(double expected = 0.5) : expected_(expected) {}
  // Adds a draft of depth `depth` whose first num_accepted tokens were accepted.
  void Add(int64_t depth, int64_t num_accepted);
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

}  // namespace llmi
