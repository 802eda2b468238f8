// A seat: what a drafter knows of one sequence that is about to decode, and the draft that it proposes for it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/errors.h"
#include "sampling/params.h"
#include "sampling/state.h"
#include "speculative/draft.h"
#include "speculative/hidden_view.h"

namespace llmi {

// A drafter's memory of one sequence.
class DrafterState {
 public:
  virtual ~DrafterState() = default;
};

struct SequenceKey {
  uint64_t request_id = 0;
  int64_t sample_index = 0;
};

struct SeatText {
  std::span<const int32_t> token_ids;  // prompt and output
  int64_t prompt_len = 0;
  std::vector<int32_t> forced;  // tokens that the sequence's constraint lets follow alone, if its requests draft them
};

// How the target draws behind the text.
struct SeatSampling {
  const SamplingParams* params = nullptr;  // null: nothing is drawn
  SamplerState state;                      // after the text
  int64_t rank = 0;                        // TokenHistory::sample_index
  uint32_t round = 0;                      // of verification, for the noise of drawn drafts

  bool greedy() const { return params != nullptr && params->greedy(); }
};

// What the verification takes.
struct SeatWants {
  bool laws = false;   // Draft::laws is needed if the drafter draws its tokens, and the draft depends on this sequence alone
  bool chain = false;  // no trees
};

// Whether drafts of one sequence that take time are worth it: asked before the time is spent, where the length is "auto".
class DraftWorth {
 public:
  virtual ~DraftWorth() = default;
  // Whether a trained drafter should draft for at most max_nodes nodes. others: what the others propose, with kinds.
  virtual bool RunsHead(int64_t max_nodes, const Draft& others) = 0;
  // Whether it should run on, for a token behind the last of this path from the root; path: the kinds of its nodes. Call it for each node.
  virtual bool GoesOn(std::span<const NodeKind> path) = 0;
};

struct SeatBudget {
  int64_t max_nodes = 0;        // at least 1
  int64_t max_depth = 0;        // deeper nodes have no use: the sequence ends before
  DraftWorth* worth = nullptr;  // null: drafts are made whatever they cost
};

struct Seat {
  SequenceKey sequence;
  SeatText text;
  HiddenView hidden;
  SeatSampling sampling;
  SeatWants wants;
  SeatBudget budget;
  DrafterState* state = nullptr;
  int16_t first_kind = 0;  // of the drafter, in a union

  Draft draft;
  std::optional<Error> error;  // ends this request alone
};

}  // namespace llmi
