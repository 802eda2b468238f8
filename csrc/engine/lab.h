// The lab: token sequences that user code extends, forks and rolls back while requests run. Their cache may be evicted at any time. It is
// computed again when it is needed, with the same bits.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/command_queue.h"
#include "engine/inbox.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"
#include "model/shortlist.h"
#include "model/steering.h"
#include "scheduler/scheduler.h"
#include "speculative/draft.h"

namespace llmi {

// Layers whose values are kept: 0 is the embedding's output, i that of layer i, before any norm.
struct LabCapture {
  std::vector<int> hidden_states;
  std::vector<int> layer_logits;  // through the final norm and the head
  std::vector<int> attention;     // weights; 1 is the first layer
  bool empty() const { return hidden_states.empty() && layer_logits.empty() && attention.empty(); }
};

// One sequence. While a call is under way, only the engine thread reads and writes it; between calls its owner may read `tokens`.
struct LabSequence {
  std::vector<int32_t> tokens;
  LabCapture capture;
  std::optional<Shortlist> shortlist;        // only these ids and those of its tokens have logits, the others -inf
  std::shared_ptr<const Steering> steering;  // null: none; kv.view is set, too, before the first call
  std::optional<size_t> second_text;         // where a second text begins, whose tokens are of type 1, if the model has types
  Draft tree;                                // nodes that wait for Commit or Rollback

  KvSequence kv;
  bool has_cache = false;  // kv is registered with the pool
  bool in_use = false;     // by the call under way: not to be evicted
};

struct LabExtension {
  std::shared_ptr<LabSequence> sequence;
  std::vector<int32_t> token_ids;
  std::vector<int32_t> parents;  // empty: a chain
  bool is_tree = false;          // the tokens are kept apart until Lab::Commit
  bool wants_last = false;       // if there are no new tokens: the result is the row of the last token
  bool wants_logits = true;      // false: only what is captured, for all extensions of the call
};

struct LabResult {
  int64_t num_rows = 0;
  std::vector<float> logits;                                 // [num_rows, vocab_size], raw
  std::map<int, std::vector<float>> hidden_states;           // {layer: [num_rows, hidden_size]}
  std::map<int, std::vector<float>> layer_logits;            // {layer: [vocab_size]}, of the last row; of all rows of a tree
  std::map<int, std::vector<std::vector<float>>> attention;  // {layer: num_rows of [num_heads, slots up to the row]}
};

// Rows for the head alone.
struct HeadQuery {
  std::span<const float> hidden;                  // [num_rows, hidden_size], after the final norm
  std::optional<std::vector<int32_t>> shortlist;  // the columns of the result, in this order; none: the whole vocabulary
  bool in_drafter = false;                        // the caller is a drafter, on the engine thread
};

struct LabLimits {
  int64_t max_model_len = 0;
  int64_t max_num_batched_tokens = 0;
};

class Lab {
 public:
  Lab(const KernelContext& context, Decoder& decoder, KvCache& cache, Scheduler& scheduler, CommandQueue& commands, Inbox& inbox,
      LabLimits limits);

  // --- Any thread but the engine's. Each call runs on the engine thread and throws like CommandQueue::Execute.
  // Computes all extensions in one forward, or in several if the new tokens exceed a step's budget. Returns results in their order.
  std::vector<LabResult> Extend(const std::vector<LabExtension>& extensions);
  // Makes `child`, a new sequence, a copy that shares the cache. Its owner closes it, also after an exception.
  void Fork(const std::shared_ptr<LabSequence>& sequence, const std::shared_ptr<LabSequence>& child);
  // Drops the last num_tokens tokens.
  void Rollback(const std::shared_ptr<LabSequence>& sequence, int64_t num_tokens);
  // Replaces its tokens by token_ids. Keeps the cache of the beginning that both share, and returns its length.
  int64_t Sync(const std::shared_ptr<LabSequence>& sequence, const std::vector<int32_t>& token_ids);
  // Keeps this path of tree nodes, root first, and frees the rest.
  void Commit(const std::shared_ptr<LabSequence>& sequence, const std::vector<int32_t>& path);
  // Hidden states after these layers, at every token of each prompt: {layer: [num_tokens, hidden_size]}. normed: after the final norm. No
  // head runs, and nothing comes from the prefix cache or stays in it. second_texts: LabSequence::second_text of each prompt; empty: none
  // has one.
  std::vector<std::map<int, std::vector<float>>> HiddenRows(const std::vector<std::vector<int32_t>>& prompts,
                                                            const std::vector<std::optional<size_t>>& second_texts,
                                                            const std::vector<int>& layers, bool normed, const SparseView& view = {});
  // The logits [num_rows, vocab_size or size of the shortlist] of rows, as a step computes them. A drafter may call it, too, while the
  // engine thread asks it.
  std::vector<float> Head(const HeadQuery& query);
  // Frees its cache soon. Any thread may call it, even after the engine has ended.
  void Close(const std::shared_ptr<LabSequence>& sequence);

  // --- The engine thread alone.
  // Sequences that hold cache, least recently used first.
  const std::vector<std::shared_ptr<LabSequence>>& sequences() const { return sequences_; }
  // Frees the cache of the least recently used sequence that no call uses; false if there is none.
  bool EvictOne();
  // Frees all caches.
  void End();
  // Gives the empty cache `kv` the source's cache of the tokens that both begin with, but never of the last of token_ids. Returns how many.
  int64_t ShareCache(const LabSequence& source, const std::vector<int32_t>& token_ids, KvSequence* kv);

 private:
  void ExtendNow(const std::vector<LabExtension>& extensions, std::vector<LabResult>* results);
  void Check(const LabExtension& extension) const;
  void Compute(const std::vector<LabExtension>& extensions, std::vector<LabResult>* results);
  std::vector<bool> Prepare(const std::vector<LabExtension>& extensions);
  void ComputeStep(const std::vector<LabExtension>& extensions, std::vector<bool>* done, std::vector<LabResult>* results);
  std::vector<float> Logits(const std::vector<LabExtension>& extensions, const std::vector<size_t>& owners, const ForwardResult& forward);
  void Collect(const std::vector<LabExtension>& extensions, const std::vector<size_t>& owners, const ForwardBatch& batch,
               const ForwardResult& forward, std::vector<LabResult>* results);
  void Reserve(LabSequence& sequence, int64_t num_new, int64_t num_drafted);
  void Truncate(LabSequence& sequence, int64_t num_tokens);
  void Free(LabSequence& sequence);

  const KernelContext& context_;
  Decoder& decoder_;
  KvCache& cache_;
  Scheduler& scheduler_;
  CommandQueue& commands_;
  Inbox& inbox_;
  const LabLimits limits_;
  std::vector<std::shared_ptr<LabSequence>> sequences_;
};

}  // namespace llmi
