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
#include "speculative/draft.h"

namespace llmi {

// A drafter's memory of one sequence.
class DrafterState {
 public:
  virtual ~DrafterState() = default;
};

// One sequence that may be drafted for, and what was proposed.
struct DraftContext {
  uint64_t request_id = 0;
  int64_t sample_index = 0;
  std::span<const int32_t> token_ids;  // prompt and output
  int64_t prompt_len = 0;
  int64_t max_nodes = 0;    // at least 1
  uint32_t round = 0;       // of verification, for the noise of drawn drafts
  bool wants_laws = false;  // the draft's laws, where its tokens are drawn
  DrafterState* state = nullptr;
  // {layer: [hidden_size]} of the row that the last token was drawn from; layers that some drafter of the step captures.
  const std::map<int, std::vector<float>>* hidden_states = nullptr;

  Draft draft;
  int32_t confidence = 0;      // what kind of draft it is, in [0, kNumConfidences), if the drafter tells kinds apart
  std::optional<Error> error;  // ends this request alone
};

// Drafts of one kind are about as often right: acceptance is learnt for each. 0: not told.
constexpr int32_t kNumConfidences = 6;

inline const std::vector<int> kNoLayers;

class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual std::string name() const = 0;
  virtual std::unique_ptr<DrafterState> NewState(uint64_t request_id, int64_t sample_index) = 0;
  // Probability that a first token is accepted, before any was seen: whether "auto" gives it a try.
  virtual double expected_acceptance(int32_t /*confidence*/) const { return 0.5; }
  // Proposals cost next to nothing and their confidence is told: "auto" looks at them before it chooses a length.
  virtual bool tells_confidence() const { return false; }
  // Layers whose hidden states it wants to see: 0 is the embedding's output, i that of layer i.
  virtual const std::vector<int>& hidden_layers() const { return kNoLayers; }
  // Fills draft, or error, of each context. Drafts are checked by the caller.
  virtual void Propose(std::span<DraftContext*> contexts) = 0;
  // After the walk over a draft: how deep it went, and the target's log-probability of each node (NaN for nodes that
  // the walk did not reach). Called only where wants_observe; an error ends this request alone.
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
  void Propose(std::span<DraftContext*> contexts) override;
  bool wants_observe() const override;
  void Observe(uint64_t request_id, int64_t sample_index, int64_t num_accepted, std::span<const float> target_logprobs) override;

 private:
  std::vector<std::shared_ptr<Drafter>> drafters_;
  std::vector<int> hidden_layers_;
};

}  // namespace llmi
