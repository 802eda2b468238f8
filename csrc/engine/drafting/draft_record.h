// The state of drafting for one continuation that lasts from step to step. Engine thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/contrast/contrast_record.h"
#include "speculative/draft.h"
#include "speculative/acceptance_record.h"
#include "speculative/seat.h"
#include "speculative/hidden_rows.h"
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

// The target's last hidden rows of a sequence, as its head reads them, that a drafter's own rows are still to be made of.
struct HeldRows {
  int64_t begin = 0;          // the position of the first
  std::vector<float> values;  // [num_rows, row_size]
  int64_t num_rows = 0;

  int64_t end() const { return begin + num_rows; }
  void Add(int64_t position, std::span<const float> row) {
    if (position != end()) *this = HeldRows{.begin = position, .values = {}};
    values.insert(values.end(), row.begin(), row.end());
    ++num_rows;
  }
  std::span<const float> Row(int64_t position) const {
    const size_t size = values.size() / static_cast<size_t>(num_rows);
    return std::span(values).subspan(static_cast<size_t>(position - begin) * size, size);
  }
  // Forgets the rows of positions below `position`.
  void DropBefore(int64_t position) {
    if (position <= begin || num_rows == 0) return;
    const int64_t count = std::min(position - begin, num_rows);
    const auto size = static_cast<int64_t>(values.size()) / num_rows;
    values.erase(values.begin(), values.begin() + count * size);
    begin += count;
    num_rows -= count;
  }
};

// The target's hidden row that the last token was drawn from, before the final norm.
struct LastRow {
  int64_t position = -1;      // of the row's token; -1: none is kept
  std::vector<float> values;  // [hidden_size]
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
  HeldRows& held() { return held_; }
  LastRow& last_row() { return last_row_; }
  WaitingDraft TakeWaiting() { return *std::exchange(waiting_, std::nullopt); }

  // Null until the first draft whose length is chosen.
  LengthRecord* lengths() const { return lengths_.get(); }
  void BeginLengths(std::unique_ptr<LengthRecord> record) { lengths_ = std::move(record); }

  // {layer: [hidden_size]} of the row that the last token was drawn from, for drafters that read them.
  const std::map<int, std::vector<float>>& hidden_states() const { return hidden_states_; }
  void KeepHiddenState(int layer, std::span<const float> values) { hidden_states_[layer].assign(values.begin(), values.end()); }

  // Hidden states of its tokens that the drafter has not been given yet.
  WaitingRows& rows() { return rows_; }
  const WaitingRows& rows() const { return rows_; }

  // The record of contrastive search, whose candidates wait as a draft; null without it.
  ContrastRecord* contrast() const { return contrast_.get(); }
  void BeginContrast() { contrast_ = std::make_unique<ContrastRecord>(); }

 private:
  std::unique_ptr<DrafterState> state_;
  uint32_t round_ = 0;
  std::optional<WaitingDraft> waiting_;
  HeldRows held_;
  LastRow last_row_;
  std::unique_ptr<LengthRecord> lengths_;
  std::map<int, std::vector<float>> hidden_states_;
  WaitingRows rows_;
  std::unique_ptr<ContrastRecord> contrast_;
};

}  // namespace llmi
