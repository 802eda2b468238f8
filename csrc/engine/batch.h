// The one place where a ForwardBatch is filled, for prefill, decode, drafts, the lab and measurements; and a batch as bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "model/decoder.h"
#include "speculative/draft.h"

namespace llmi {

// Usage: for each sequence BeginSegment, then AddToken for each new token, then at most one AddDraft; at the end Take.
class BatchBuilder {
 public:
  // num_groups: of the KV cache.
  explicit BatchBuilder(size_t num_groups);

  // The rows that follow are new tokens of this sequence, on top of kv.num_tokens. Copies its block tables, so the slots of all these rows
  // are reserved before.
  void BeginSegment(const KvSequence& kv);
  // The sequence's next token. wanted: its final hidden state is an output of the forward.
  void AddToken(int32_t token_id, bool wanted);
  // Rows of a draft: node i is stored in the slot i places after the last token's next one, and its position is its depth. All are wanted.
  void AddDraft(const Draft& draft);

  // Outputs for the wanted rows (ForwardBatch::tap_layers, attention_layers); a layer named twice is kept once.
  void AddTaps(const std::vector<int>& layers);
  void AddAttention(const std::vector<int>& layers);

  // What was added so far.
  const ForwardBatch& batch() const { return batch_; }
  ForwardBatch Take();

 private:
  ForwardBatch batch_;
};

// The batch as bytes, for a process on a machine of the same byte order.
std::vector<uint8_t> ToBytes(const ForwardBatch& batch);
// The reverse. Throws Error(kInvalidArgument) for bytes that end too soon or too late, and for rows, segments or offsets out of range.
ForwardBatch BatchFromBytes(std::span<const uint8_t> bytes);

}  // namespace llmi
