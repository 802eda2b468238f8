// The drafter interface: between steps, it proposes tokens for sequences that are about to decode.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "speculative/draft.h"
#include "speculative/seat.h"
#include "speculative/trained_head.h"

namespace llmi {

// A row of the target that a drafter learns from.
struct SeenRow {
  int32_t token = 0;                   // that the row belongs to
  int32_t node = -1;                   // of the sequence's draft; -1: the last committed token
  std::span<const int32_t> likeliest;  // the tokens with the largest logits behind it, before masks; the largest first
};

// What a drafter needs and tells. It does not change.
struct DrafterTraits {
  std::string name;
  // The rate at which its tokens are accepted, before any was seen, where it does not tell their kinds.
  double expected_acceptance = 0.5;
  // Proposals cost almost nothing, depend on the sequence alone and tell the kind of each node (Draft::kinds). Then "auto" gets them first
  // and picks the nodes that pay. Else all nodes have kind 0, and "auto" chooses how many are requested.
  bool tells_kinds = false;
  // The layers whose hidden states it needs: 0 is the embedding's output, i the output of layer i.
  std::vector<int> hidden_layers = {};
  int64_t num_likeliest = 0;    // how many of the likeliest tokens behind each row it learns from
  bool observes = false;        // Observe is wanted
  bool needs_layer = false;     // it proposes by HeadKind::kLayer. Then the slots of its draft are reserved before it is asked.
  bool needs_last_row = false;  // it proposes by HeadKind::kLastRow
  int64_t most_nodes = std::numeric_limits<int64_t>::max();  // of a draft
};

class Drafter {
 public:
  explicit Drafter(DrafterTraits traits) : traits_(std::move(traits)) {}
  virtual ~Drafter() = default;
  const DrafterTraits& traits() const { return traits_; }

  virtual std::unique_ptr<DrafterState> NewState(const SequenceKey& /*sequence*/, HeadSource& /*heads*/) {
    return std::make_unique<DrafterState>();
  }
  // The rate at which nodes of this kind are accepted where the node before them is, before any was seen. greedy: at temperature 0.
  virtual double expected_rate(int32_t /*kind*/, bool /*greedy*/) const { return traits_.expected_acceptance; }
  // Called for each row that a token or a draft may follow, before the token is drawn. shares: no token depends on drafts, so what is
  // learnt may serve other sequences.
  virtual void Learn(DrafterState& /*state*/, const SeenRow& /*row*/, bool /*shares*/) {}
  // Memory of its tables and weights, which all sequences share, outside the KV cache. Any thread may ask.
  virtual int64_t num_bytes() const { return 0; }
  // Fills `draft` or `error` of each seat. The caller checks the drafts.
  virtual void Propose(std::span<Seat> seats) = 0;
  // Called after the walk over a draft, if the drafter observes. num_accepted: how many of its tokens were accepted. target_logprobs: the
  // target's log-probability of each node; NaN for nodes that the walk did not reach. An error ends this request alone.
  virtual void Observe(const SequenceKey& /*sequence*/, int64_t /*num_accepted*/, std::span<const float> /*target_logprobs*/) {}

 private:
  const DrafterTraits traits_;
};

// Several drafters that propose one tree; earlier ones come first.
class UnionDrafter : public Drafter {
 public:
  explicit UnionDrafter(std::vector<std::shared_ptr<Drafter>> drafters, bool tells_kinds = false);
  std::unique_ptr<DrafterState> NewState(const SequenceKey& sequence, HeadSource& heads) override;
  void Learn(DrafterState& state, const SeenRow& row, bool shares) override;
  void Propose(std::span<Seat> seats) override;
  void Observe(const SequenceKey& sequence, int64_t num_accepted, std::span<const float> target_logprobs) override;

 protected:
  const std::vector<std::shared_ptr<Drafter>>& drafters() const { return drafters_; }
  // The drafts of one drafter for some of the seats, or none where it has set an error. first_kind: as in Seat.
  std::vector<Draft> AskPart(size_t part, std::span<Seat> seats, std::span<const size_t> asked, int16_t first_kind) const;

 private:
  std::vector<std::shared_ptr<Drafter>> drafters_;
};

}  // namespace llmi
