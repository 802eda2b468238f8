// The state of drafting for one continuation that lasts from step to step. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/contrast/contrast_record.h"
#include "speculative/draft.h"
#include "speculative/hidden_log.h"
#include "speculative/acceptance_record.h"
#include "speculative/seat.h"
#include "speculative/node_rates.h"

namespace llmi {

// The knowledge about drafts of one continuation whose lengths are chosen: by "auto", or by the user's policy.
struct LengthRecord {
  NodeRates rates;
  AcceptanceRecord by_depth;  // for policies
  std::unique_ptr<DraftWorth> worth;
  HeadRates head;
  DraftBudget budget;    // used where drafts may depend on this continuation alone
  double cost = 0;       // of the draft that was chosen last
  double head_cost = 0;  // what a trained drafter has spent on the draft that is made
  int64_t left_out = 0;  // steps in a row of which no node was worth its row
};

// A draft, or the number of the most nodes of one whose tokens are chosen when its step begins.
struct WaitingDraft {
  Draft draft;
  int64_t num_planned = 0;
};

class DraftRecord {
 public:
  // The drafter's memory of the sequence; null until it is first needed.
  DrafterState* state() const { return state_.get(); }
  void set_state(std::unique_ptr<DrafterState> state) { state_ = std::move(state); }

  // Whether the drafter was called for it.
  bool was_asked() const { return round_ > 0; }
  // Number of the latest proposal. It keys the noise of verification.
  uint32_t round() const { return round_; }
  void BeginRound() { ++round_; }

  // The draft that was proposed for the last token and waits for a step that has room for all of it. It may be empty: then none was
  // proposed, and none will be for this token.
  bool has_waiting() const { return waiting_.has_value(); }
  void SetWaiting(WaitingDraft waiting) { waiting_ = std::move(waiting); }
  WaitingDraft TakeWaiting() { return *std::exchange(waiting_, std::nullopt); }

  // Null until the first draft whose length is chosen.
  LengthRecord* lengths() const { return lengths_.get(); }
  void BeginLengths(std::unique_ptr<LengthRecord> record) { lengths_ = std::move(record); }

  // The target's hidden states of its tokens, as far as the drafter reads them.
  HiddenLog& hidden() { return hidden_; }
  const HiddenLog& hidden() const { return hidden_; }

  // The record of contrastive search, whose candidates wait as a draft; null without it.
  ContrastRecord* contrast() const { return contrast_.get(); }
  void BeginContrast() { contrast_ = std::make_unique<ContrastRecord>(); }

 private:
  std::unique_ptr<DrafterState> state_;
  uint32_t round_ = 0;
  std::optional<WaitingDraft> waiting_;
  std::unique_ptr<LengthRecord> lengths_;
  HiddenLog hidden_;
  std::unique_ptr<ContrastRecord> contrast_;
};

}  // namespace llmi
