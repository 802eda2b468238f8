// Forced tokens as drafts: what a constraint lets follow alone (SeatText::forced), joined to the drafts of the user's drafter.
//
// They are proposed and verified like any others, so under coupled verification no token changes, and rejection keeps the law: a forced
// token is a point mass that the target has, too.
#pragma once

#include <memory>
#include <span>

#include "speculative/drafter.h"

namespace llmi {

class ForcedDrafter : public Drafter {
 public:
  // drafter: the user's; null: none.
  explicit ForcedDrafter(std::shared_ptr<Drafter> drafter);
  // The one drafter of forced tokens that goes with this drafter, so that all its requests are drafted for in one call.
  static std::shared_ptr<Drafter> With(const std::shared_ptr<Drafter>& drafter);

  std::unique_ptr<DrafterState> NewState(const SequenceKey& sequence, HeadSource& heads) override;
  double expected_rate(int32_t kind, bool greedy) const override;
  void Learn(DrafterState& state, const SeenRow& row, bool shares) override { drafter_->Learn(state, row, shares); }
  // Forced tokens come first; of the user's draft, what agrees with them follows. A drafter that gives laws or observes keeps its drafts as
  // they are, unless it has none.
  void Propose(std::span<Seat> seats) override;
  void Observe(const SequenceKey& sequence, int64_t num_accepted, std::span<const float> target_logprobs) override {
    drafter_->Observe(sequence, num_accepted, target_logprobs);
  }

 private:
  const std::shared_ptr<Drafter> drafter_;
};

}  // namespace llmi
