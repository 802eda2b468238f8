// The states of sequences (kernels/ops/state.h): slots, each with one version of the states of all layers, and chunks of logs of inputs.
//
// A sequence holds the version that its next step reads, and the prefix tree holds versions at ends of blocks (snapshots). A version that
// somebody else holds is not written: the step writes another slot. So forks and hits copy nothing.
// Not thread-safe: the engine thread alone calls it.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/block_pool.h"
#include "kernels/ops/state.h"

namespace llmi {

// A sequence that goes back keeps the inputs of this many of its last tokens, and versions at multiples of kVersionTokens, from which it
// can go back by kVersionTokens at least.
constexpr int64_t kKeptInputs = 64;
constexpr int64_t kVersionTokens = 32;

// The sizes of a model's states, and of its pool. slot_bytes 0: the model has none.
struct StateSizes {
  int64_t slot_bytes = 0;
  int64_t log_row_bytes = 0;
  int64_t num_slots = 0;
  int64_t num_chunks = 0;

  int64_t chunk_bytes() const { return kLogRows * log_row_bytes; }
  uint64_t num_bytes() const { return static_cast<uint64_t>(num_slots * slot_bytes + num_chunks * chunk_bytes()); }
};

// A sequence's state after `len` of its tokens.
struct StateVersion {
  int64_t len;
  int32_t slot;
};

struct SequenceState {
  bool goes_back = false;    // set by its owner: TryRollback is to work (kKeptInputs)
  bool keeps_slot = false;   // set by its owner: the next step may be dropped after it ran, so it does not write the slot that it reads
  int64_t snapshot_at = 0;   // set by its owner: the prefix tree gets the version after this many tokens, an end of a block; 0: none
  int64_t shared_until = 0;  // likewise: another sequence had the same tokens so far, so a third one may have them, too
  int32_t slot = -1;         // the state after `len` tokens; -1: zeros, and len is 0. Inputs of later tokens are in the log
  int64_t len = 0;
  bool is_finite = true;            // false: a step found the state not finite; it leaves no snapshot
  std::vector<StateVersion> older;  // of a sequence that goes back, ascending
  int64_t log_begin = 0;            // the inputs of tokens from here on are logged
  std::vector<int32_t> log;         // chunks of positions from log_first * kLogRows on; -1: none
  int64_t log_first = 0;
  // Of the step under way.
  bool is_planned = false;
  int32_t next = -1;  // the slot that it writes
  std::vector<StateCapture> captures;
};

// Where a prompt's snapshot is taken: at the last end of a block before its last token, so that it serves the same prompt again, too.
inline int64_t SnapshotAt(const std::vector<int32_t>& prompt, int64_t block_size) {
  return prompt.empty() ? 0 : (static_cast<int64_t>(prompt.size()) - 1) / block_size * block_size;
}

class StatePool {
 public:
  StatePool(const StateSizes& sizes, Device* device);

  const StateSizes& sizes() const { return sizes_; }
  BlockPool& slots() { return slots_; }
  const BlockPool& slots() const { return slots_; }
  const BlockPool& chunks() const { return chunks_; }
  StateView View(int64_t slot_offset, int64_t log_offset);

  // Whether slots and chunks for a step are free: of a sequence of num_tokens tokens, and num_new rows of which the last num_drafted are a
  // draft's.
  struct Step {
    int64_t num_tokens;
    int64_t num_new;
    int64_t num_drafted;
    int64_t end() const { return num_tokens + num_new - num_drafted; }
  };
  bool LacksSlots(const SequenceState& state) const { return SlotsNeeded(state) > slots_.num_free(); }
  bool LacksChunks(const SequenceState& state, const Step& step) const;
  // Bytes of what Plan would take.
  int64_t BytesNeeded(const SequenceState& state, const Step& step) const;
  // Takes them. What an earlier plan took is used again.
  void Plan(SequenceState* state, const Step& step);
  // Takes a slot for the version after len tokens, of which the step makes a copy. There must be a free one.
  void AddCapture(SequenceState* state, int64_t len) { state->captures.push_back({len, slots_.Allocate()}); }
  // The step has run, and the sequence has num_tokens committed tokens, num_new of which are its. Returns the versions that it copied; the
  // caller holds a reference to each.
  std::vector<StateVersion> Finish(SequenceState* state, int64_t num_tokens, int64_t num_new);
  // Drops a plan, and the log from num_tokens on.
  void Trim(SequenceState* state, int64_t num_tokens);
  // Goes back to num_tokens tokens. Returns false and changes nothing if no version and log lead there.
  bool TryRollback(SequenceState* state, int64_t num_tokens);
  // Where the log has the input of a slot of the KV cache, and its copy to another place.
  struct LogPlace {
    int32_t chunk, row;
  };
  static LogPlace PlaceOf(const SequenceState& state, int64_t position);
  bool Has(const LogPlace& place) const;
  void CopyRow(const LogPlace& from, const LogPlace& to);
  void Fork(const SequenceState& parent, SequenceState* child);
  void Free(SequenceState* state);
  // Adds the sequence's references.
  void Count(const SequenceState& state, std::vector<int32_t>* slots, std::vector<int32_t>* chunks) const;

 private:
  int64_t SlotsNeeded(const SequenceState& state) const;
  // Calls visit(place of a chunk in the log) for each chunk in which the step writes.
  template <typename Visit>
  void VisitWritten(const SequenceState& state, const Step& step, const Visit& visit) const;
  void DropPlan(SequenceState* state);
  void DropChunks(SequenceState* state);
  uint8_t* Row(const LogPlace& place);

  StateSizes sizes_;
  BlockPool slots_;
  BlockPool chunks_;
};

}  // namespace llmi
