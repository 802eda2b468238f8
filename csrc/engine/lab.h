// Sequences of the lab: token sequences that user code extends, forks and rolls back by hand, beside running
// requests. Their cache may be evicted at any time and is computed again when it is needed; bits do not change.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "cache/kv_cache.h"
#include "model/shortlist.h"
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
  Draft tree;                          // nodes that wait for LabCommit or LabRollback

  KvSequence kv;
  bool has_cache = false;  // kv is registered with the pool
  bool in_use = false;     // by the call under way: not to be evicted
};

struct LabExtension {
  std::shared_ptr<LabSequence> sequence;
  std::vector<int32_t> token_ids;
  std::vector<int32_t> parents;  // empty: a chain
  bool is_tree = false;          // keeps the tokens apart until LabCommit
  bool wants_last = false;       // without new tokens: the row of the last token
};

struct LabResult {
  int64_t num_rows = 0;
  std::vector<float> logits;                                 // [num_rows, vocab_size], raw
  std::map<int, std::vector<float>> hidden_states;           // {layer: [num_rows, hidden_size]}
  std::map<int, std::vector<float>> layer_logits;            // {layer: [vocab_size]}, of the last row; of all rows of a tree
  std::map<int, std::vector<std::vector<float>>> attention;  // {layer: num_rows of [num_heads, slots up to the row]}
};

}  // namespace llmi
