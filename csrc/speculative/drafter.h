// The drafter interface: between steps, it proposes tokens for sequences that are about to decode.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/errors.h"
#include "sampling/state.h"
#include "speculative/draft.h"
#include "speculative/hidden_rows.h"

namespace llmi {

// A drafter's memory of one sequence.
class DrafterState {
 public:
  virtual ~DrafterState() = default;
};

// A row of the target that a drafter learns from.
struct SeenRow {
  int32_t token = 0;                   // that the row belongs to
  int32_t node = -1;                   // of the sequence's draft; -1: the last committed token
  std::span<const int32_t> likeliest;  // the tokens with the largest logits behind it, before masks; the largest first
};

struct DraftContext;

// A node of a tree of fixed shape: its parent (-1: the root), and its rank among the tokens that may follow the parent. Nodes are in order
// of depth, then of their parents, then of rank; ranks of siblings are 0, 1 and so on.
struct TreeNode {
  int32_t parent;
  int32_t rank;
};
// Throws Error(kInvalidArgument) if the nodes are not in this order.
void CheckTreeNodes(std::span<const TreeNode> tree);
// The likeliest node of each depth: a chain.
std::vector<TreeNode> ChainOf(std::span<const TreeNode> tree);

// The forwards of a trained drafter: their time, and the rows of each that were run whole.
struct HeadWork {
  double seconds = 0;
  std::vector<int64_t> rows;
};

// The engine's part of a drafter that reads the target's last hidden row alone (model/medusa.h).
class LastRowHead {
 public:
  virtual ~LastRowHead() = default;
  // Fills `draft` of each context with the first nodes of the tree.
  virtual void Propose(std::span<DraftContext*> contexts, std::span<const TreeNode> tree) = 0;
};

// The engine's part of a drafter that reads the target's hidden rows and keeps K and V in the sequence's blocks (model/eagle.h).
class DraftHead {
 public:
  virtual ~DraftHead() = default;
  // Fills `draft` or `error` of each context with the first nodes of the tree.
  virtual void Propose(std::span<DraftContext*> contexts, std::span<const TreeNode> tree) = 0;
  // Its forwards since the last call.
  virtual HeadWork TakeWork() = 0;
  // The bytes of weights that one of its forwards reads over those of a step of the model: about the share of its time.
  virtual double Share() const = 0;
};

// Whether drafts that take time are worth it: asked before the time is spent, where the length is "auto".
class DraftWorth {
 public:
  virtual ~DraftWorth() = default;
  // Whether a trained drafter should draft for this sequence. others: what the others propose, with kinds.
  virtual bool RunsHead(const DraftContext& context, const Draft& others) = 0;
  // Whether it should run on, for a token behind the last of this path from the root; path: the kinds of its nodes. Call it for each node.
  virtual bool GoesOn(const DraftContext& context, std::span<const NodeKind> path) = 0;
};

// One sequence for which a drafter may propose tokens, and the proposal.
struct DraftContext {
  uint64_t request_id = 0;
  int64_t sample_index = 0;
  std::span<const int32_t> token_ids;  // prompt and output
  std::vector<int32_t> forced;         // tokens that the sequence's constraint lets follow alone, if its requests draft them
  int64_t prompt_len = 0;
  int64_t max_nodes = 0;     // at least 1
  uint32_t round = 0;        // the verification round, for the noise of drawn drafts
  bool wants_laws = false;   // Draft::laws is needed if the drafter draws its tokens, and the draft depends on this sequence alone
  bool wants_chain = false;  // the verification takes no trees
  bool greedy = false;       // temperature 0
  SamplerState sampler;      // the target's, after token_ids
  DrafterState* state = nullptr;
  // {layer: [hidden_size]}: hidden states of the row that the last token was drawn from, for the layers that some drafter of the step
  // needs.
  const std::map<int, std::vector<float>>* hidden_states = nullptr;
  // Hidden states of committed tokens, for the same layers: those that the drafter has not been given yet. The last token has none yet.
  // first_row: the position of the first of these rows, or that of the next one if there is none.
  const HiddenChunks* hidden_rows = nullptr;
  int64_t first_row = 0;
  DraftHead* head = nullptr;      // null: the model was loaded without one
  LastRowHead* medusa = nullptr;  // null: the model was loaded without Medusa heads
  void* owner = nullptr;          // the engine's record of the sequence, for `head`, `medusa` and `worth`
  DraftWorth* worth = nullptr;    // null: drafts are made whatever they cost
  int16_t first_kind = 0;         // of the drafter, in a union

  Draft draft;
  int32_t confidence = 0;      // the kind of the draft, in [0, kNumConfidences); 0 if the drafter does not tell kinds apart
  std::optional<Error> error;  // ends this request alone
};

// Drafts of one kind are accepted about equally often, so acceptance is learnt separately for each kind. Kind 0: unknown.
constexpr int32_t kNumConfidences = 7;
constexpr int32_t kForcedConfidence = 6;  // of forced tokens (forced_drafter.h)

inline const std::vector<int> kNoLayers;

class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual std::string name() const = 0;
  virtual std::unique_ptr<DrafterState> NewState(uint64_t request_id, int64_t sample_index) = 0;
  // The probability that a draft's first token is accepted, before any was seen. "auto" uses it to decide whether to try the drafter.
  virtual double expected_acceptance(int32_t /*confidence*/) const { return 0.5; }
  // Whether proposals cost almost nothing and set `confidence`. Then "auto" gets them first and chooses a length afterwards.
  virtual bool tells_confidence() const { return false; }
  // Whether proposals cost almost nothing, depend on the sequence alone and tell the kind of each node (Draft::kinds). Then "auto" gets
  // them first and picks the nodes that pay, whatever the verification.
  virtual bool tells_kinds() const { return false; }
  // The rate at which nodes of this kind are accepted where the node before them is, before any was seen. greedy: at temperature 0.
  virtual double expected_rate(int32_t kind, bool /*greedy*/) const { return expected_acceptance(kind); }
  // The layers whose hidden states it needs: 0 is the embedding's output, i the output of layer i.
  virtual const std::vector<int>& hidden_layers() const { return kNoLayers; }
  // How many of the likeliest tokens behind each row it learns from; 0: it does not.
  virtual int64_t num_likeliest() const { return 0; }
  // Called for each row that a token or a draft may follow, before the token is drawn. shares: no token depends on drafts, so what is
  // learnt may serve other sequences.
  virtual void Learn(DrafterState& /*state*/, const SeenRow& /*row*/, bool /*shares*/) {}
  // Memory of its tables and weights, which all sequences share, outside the KV cache. Any thread may ask.
  virtual int64_t num_bytes() const { return 0; }
  // Whether it proposes through DraftContext::head. Then the slots of its draft must be reserved before it is asked.
  virtual bool needs_head() const { return false; }
  // Whether it proposes through DraftContext::medusa. Then the hidden row that the last token was drawn from is kept.
  virtual bool needs_last_row() const { return false; }
  // The most nodes of a draft where `wanted` are wanted.
  virtual int64_t MostNodes(int64_t wanted) const { return wanted; }
  // Fills `draft` or `error` of each context. The caller checks the drafts.
  virtual void Propose(std::span<DraftContext*> contexts) = 0;
  // Called after the walk over a draft, only if wants_observe(). num_accepted: how many of its tokens were accepted. target_logprobs: the
  // target's log-probability of each node; NaN for nodes that the walk did not reach. An error ends this request alone.
  virtual bool wants_observe() const { return false; }
  virtual void Observe(uint64_t /*request_id*/, int64_t /*sample_index*/, int64_t /*num_accepted*/,
                       std::span<const float> /*target_logprobs*/) {}
};

// Several drafters that propose one tree; earlier ones come first.
class UnionDrafter : public Drafter {
 public:
  explicit UnionDrafter(std::vector<std::shared_ptr<Drafter>> drafters);
  std::string name() const override;
  std::unique_ptr<DrafterState> NewState(uint64_t request_id, int64_t sample_index) override;
  double expected_acceptance(int32_t confidence) const override;
  const std::vector<int>& hidden_layers() const override { return hidden_layers_; }
  int64_t num_likeliest() const override;
  void Learn(DrafterState& state, const SeenRow& row, bool shares) override;
  bool needs_head() const override;
  bool needs_last_row() const override;
  void Propose(std::span<DraftContext*> contexts) override;
  bool wants_observe() const override;
  void Observe(uint64_t request_id, int64_t sample_index, int64_t num_accepted, std::span<const float> target_logprobs) override;

 protected:
  const std::vector<std::shared_ptr<Drafter>>& drafters() const { return drafters_; }
  // The drafts of one drafter, or none where it has set an error. first_kind: as in DraftContext.
  std::vector<Draft> AskPart(size_t part, std::span<DraftContext*> contexts, int16_t first_kind) const;

 private:
  std::vector<std::shared_ptr<Drafter>> drafters_;
  std::vector<int> hidden_layers_;
};

}  // namespace llmi
