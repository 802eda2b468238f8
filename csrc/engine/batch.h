// The one place where a ForwardBatch is filled, for prefill, decode, drafts, the lab and measurements.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "cache/kv_cache.h"
#include "model/decoder.h"
#include "model/steering.h"
#include "speculative/draft.h"

namespace llmi {

// Usage: for each sequence call BeginSegment, then AddToken for each new token, then AddDraft at most once. At the end call Take.
class BatchBuilder {
 public:
  // num_groups: KV groups of the cache.
  explicit BatchBuilder(size_t num_groups);

  // The rows that follow are new tokens of this sequence, on top of kv.num_tokens. Copies its block tables, so reserve the slots of all
  // these rows first.
  void BeginSegment(const KvSequence& kv);
  // The sequence's next token. wanted: its final hidden state is an output of the forward.
  void AddToken(int32_t token_id, bool wanted);
  // The type of that token, of a model that has types (ForwardBatch::token_types).
  void AddTokenType(int32_t type);
  // Adds a row for each node of a draft. All of them are wanted. Node i is stored i slots after the slot that follows the last token; its
  // position follows from its depth.
  void AddDraft(const Draft& draft);

  // Outputs for the wanted rows (ForwardBatch::tap_layers, attention_layers); a layer named twice is kept once.
  void AddTaps(const std::vector<int>& layers);
  void AddAttention(const std::vector<int>& layers);
  // The decoder keeps the hidden states after these layers (ForwardBatch::kept_layers).
  void KeepLayers(const std::vector<int>& layers);

  // Steers all rows of the segment. steering: null: it is not steered; else it outlives the builder.
  void Steer(const Steering* steering);

  // The batch so far.
  const ForwardBatch& batch() const { return batch_; }
  ForwardBatch Take();

 private:
  void AddState(const SequenceState& state);

  ForwardBatch batch_;
  std::map<const Steering*, int64_t> steering_begins_;  // of its first vector in ForwardBatch::steering
};

}  // namespace llmi
