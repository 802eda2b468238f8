// The lab: token sequences that user code extends, forks and rolls back by hand, while requests run. Their cache may be evicted at any time
// and is computed again when it is needed; bits do not change.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/inbox.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"
#include "model/shortlist.h"
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

// One sequence. The engine thread alone reads and writes it while a call is under way; between calls its owner may
// read tokens.
struct LabSequence {
  std::vector<int32_t> tokens;
  LabCapture capture;
  std::optional<Shortlist> shortlist;  // its logits are over these ids and those of its tokens; -inf elsewhere
  Draft tree;                          // nodes that wait for Commit or Rollback

  KvSequence kv;
  bool has_cache = false;  // kv is registered with the pool
  bool in_use = false;     // by the call under way: not to be evicted
};

struct LabExtension {
  std::shared_ptr<LabSequence> sequence;
  std::vector<int32_t> token_ids;
  std::vector<int32_t> parents;  // empty: a chain
  bool is_tree = false;          // keeps the tokens apart until Lab::Commit
  bool wants_last = false;       // without new tokens: the row of the last token
};

struct LabResult {
  int64_t num_rows = 0;
  std::vector<float> logits;                                 // [num_rows, vocab_size], raw
  std::map<int, std::vector<float>> hidden_states;           // {layer: [num_rows, hidden_size]}
  std::map<int, std::vector<float>> layer_logits;            // {layer: [vocab_size]}, of the last row; of all rows of a tree
  std::map<int, std::vector<std::vector<float>>> attention;  // {layer: num_rows of [num_heads, slots up to the row]}
};

struct LabLimits {
  int64_t max_model_len = 0;
  int64_t max_num_batched_tokens = 0;
};

class Lab {
 public:
  Lab(const KernelContext& context, Decoder& decoder, KvCache& cache, Scheduler& scheduler, Inbox& inbox, LabLimits limits);

  // Calls from any other thread. Each runs on the engine thread and throws like Engine::Execute.
  // One forward for all (more if the new tokens exceed a step's budget); results in the order of `extensions`.
  std::vector<LabResult> Extend(const std::vector<LabExtension>& extensions);
  std::shared_ptr<LabSequence> Fork(const std::shared_ptr<LabSequence>& sequence);
  // Drops the last num_tokens tokens.
  void Rollback(const std::shared_ptr<LabSequence>& sequence, int64_t num_tokens);
  // Makes token_ids its content, keeping the cache of the common beginning; returns that beginning's length.
  int64_t Sync(const std::shared_ptr<LabSequence>& sequence, const std::vector<int32_t>& token_ids);
  // Keeps the path of tree nodes (root first), frees the rest.
  void Commit(const std::shared_ptr<LabSequence>& sequence, const std::vector<int32_t>& path);
  // Gives its cache back, soon; may be called from anywhere, also after the engine has ended.
  void Close(const std::shared_ptr<LabSequence>& sequence);

  // The rest is called on the engine thread alone.
  // Sequences that hold cache, least recently used first.
  const std::vector<std::shared_ptr<LabSequence>>& sequences() const { return sequences_; }
  // Frees the cache of the least recently used sequence that no call uses; false if there is none.
  bool EvictOne();
  // Frees all caches.
  void End();
  // Gives an empty sequence the source's cache of the tokens that both begin with, all but the last of token_ids at most; returns how many.
  int64_t ShareCache(const LabSequence& source, const std::vector<int32_t>& token_ids, KvSequence* kv);

 private:
  void Check(const LabExtension& extension) const;
  void Compute(const std::vector<LabExtension>& extensions, std::vector<LabResult>* results);
  std::vector<bool> Prepare(const std::vector<LabExtension>& extensions);
  void ComputeStep(const std::vector<LabExtension>& extensions, std::vector<bool>* done, std::vector<LabResult>* results);
  std::vector<float> Logits(const std::vector<LabExtension>& extensions, const std::vector<size_t>& owners, const ForwardResult& forward);
  void Collect(const std::vector<LabExtension>& extensions, const std::vector<size_t>& owners, const ForwardBatch& batch,
               const ForwardResult& forward, std::vector<LabResult>* results);
  void Reserve(LabSequence& sequence, int64_t num_new);
  void Truncate(LabSequence& sequence, int64_t num_tokens);
  void Free(LabSequence& sequence);

  const KernelContext& context_;
  Decoder& decoder_;
  KvCache& cache_;
  Scheduler& scheduler_;
  Inbox& inbox_;
  const LabLimits limits_;
  std::vector<std::shared_ptr<LabSequence>> sequences_;
};

}  // namespace llmi
