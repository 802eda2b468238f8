// What drafters have cost and brought so far, over all sequences. Engine thread only.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

#include "engine/running.h"
#include "speculative/drafter.h"
#include "speculative/length.h"

namespace llmi {

// One drafter's; times are smoothed.
struct DrafterHistory {
  explicit DrafterHistory(const Drafter& drafter);
  Price per_token;                              // proposed
  Price per_start_token;                        // of a sequence's tokens when its first draft is proposed
  std::array<AcceptanceRecords, 2> acceptance;  // [greedy]: greedy tokens are accepted more often
};

class DrafterHistories {
 public:
  // An empty history the first time. Valid until Bound.
  DrafterHistory& Of(Drafter* drafter);
  // Forgets all drafters when there are too many: they may be gone.
  void Bound();
  // Gives a sample without a draft so far what is known of its drafter.
  void TakePrior(Sample& sample);

 private:
  std::unordered_map<Drafter*, DrafterHistory> histories_;
};

}  // namespace llmi
