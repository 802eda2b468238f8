// Forced tokens as drafts: what a constraint lets follow alone (DraftContext::forced), joined to the drafts of the user's drafter.
//
// They are proposed and verified like any others, so under coupled verification no token changes, and rejection keeps the law: a forced
// token is a point mass that the target has, too.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "speculative/drafter.h"

namespace llmi {

class ForcedDrafter : public Drafter {
 public:
  // drafter: the user's; null: none.
  explicit ForcedDrafter(std::shared_ptr<Drafter> drafter) : drafter_(std::move(drafter)) {}
  // The one drafter of forced tokens that goes with this drafter, so that all its requests are drafted for in one call.
  static std::shared_ptr<Drafter> With(const std::shared_ptr<Drafter>& drafter);

  std::string name() const override;
  std::unique_ptr<DrafterState> NewState(uint64_t request_id, int64_t sample_index) override;
  double expected_acceptance(int32_t confidence) const override;
  bool tells_confidence() const override { return drafter_ == nullptr || drafter_->tells_confidence(); }
  bool tells_kinds() const override { return drafter_ != nullptr && drafter_->tells_kinds(); }
  double expected_rate(int32_t kind, bool greedy) const override;
  const std::vector<int>& hidden_layers() const override { return drafter_ == nullptr ? kNoLayers : drafter_->hidden_layers(); }
  int64_t num_likeliest() const override { return drafter_ == nullptr ? 0 : drafter_->num_likeliest(); }
  void Learn(DrafterState& state, const SeenRow& row, bool shares) override { drafter_->Learn(state, row, shares); }
  bool needs_head() const override { return drafter_ != nullptr && drafter_->needs_head(); }
  bool needs_last_row() const override { return drafter_ != nullptr && drafter_->needs_last_row(); }
  // Forced tokens come first; of the user's draft, what agrees with them follows. A drafter that gives laws or observes keeps its drafts as
  // they are, unless it has none.
  void Propose(std::span<DraftContext*> contexts) override;
  bool wants_observe() const override { return drafter_ != nullptr && drafter_->wants_observe(); }
  void Observe(uint64_t request_id, int64_t sample_index, int64_t num_accepted, std::span<const float> target_logprobs) override;

 private:
  const std::shared_ptr<Drafter> drafter_;
};

}  // namespace llmi
