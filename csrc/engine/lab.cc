#include "engine/lab.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "core/errors.h"
#include "engine/batch.h"
#include "engine/request_limits.h"
#include "model/sparse_attention.h"

namespace llmi {
namespace {

int64_t Missing(const LabExtension& extension) {
  return static_cast<int64_t>(extension.sequence->tokens.size()) - extension.sequence->kv.num_tokens;
}

bool Has(const std::vector<int>& layers, int layer) { return std::find(layers.begin(), layers.end(), layer) != layers.end(); }

}  // namespace

Lab::Lab(const KernelContext& context, Decoder& decoder, KvCache& cache, Scheduler& scheduler, CommandQueue& commands, Inbox& inbox,
         LabLimits limits)
    : context_(context), decoder_(decoder), cache_(cache), scheduler_(scheduler), commands_(commands), inbox_(inbox), limits_(limits) {}

void Lab::Free(LabSequence& sequence) {
  if (!sequence.has_cache) return;
  cache_.Free(&sequence.kv);
  sequence.has_cache = false;
  std::erase_if(sequences_, [&](const auto& entry) { return entry.get() == &sequence; });
}

void Lab::Reserve(LabSequence& sequence, int64_t num_new, int64_t num_drafted) {
  while (!cache_.TryReserve(&sequence.kv, num_new, KvCache::Reclaim::kAll, num_drafted)) {
    if (scheduler_.PreemptOne()) continue;
    const uint64_t needed = cache_.BytesNeeded(sequence.kv, num_new, num_drafted);
    const auto free = static_cast<uint64_t>(cache_.pool().num_free() * cache_.groups().page_bytes());
    throw Error::OutOfMemory("the sequences of this call need " + std::to_string(needed) + " bytes more of KV cache, " +
                                 std::to_string(free) + " are free: extend fewer at once, or raise kv_cache_memory_bytes",
                             needed, free, Fault::kRequest);
  }
}

void Lab::Check(const LabExtension& extension) const {
  const LabSequence& sequence = *extension.sequence;
  if (sequence.tree.size() > 0) {
    throw Error(ErrorKind::kInvalidArgument, "a tree is pending: commit a path or roll it back first", "tokens");
  }
  for (const int layer : sequence.capture.attention) {
    if (decoder_.spec().layers[static_cast<size_t>(layer - 1)].has_attention()) continue;
    throw Error(ErrorKind::kInvalidArgument, "attention: layer " + std::to_string(layer) + " has no attention, but a state", "attention");
  }
  if (sequence.kv.view.picks() && extension.is_tree) {
    throw Error(ErrorKind::kInvalidArgument,
                "sparse_attention: a sequence that picks blocks takes no tree: fork() it, and extend each fork by a path",
                "sparse_attention");
  }
  CheckView(sequence.kv.view, decoder_.spec(), context_.device != nullptr, decoder_.ranks() != nullptr);
  if (sequence.steering != nullptr) CheckSteering(*sequence.steering, decoder_.spec().num_layers(), decoder_.spec().hidden_size);
  if (sequence.tokens.empty() && extension.token_ids.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "an empty sequence has no logits: give it a prompt, or extend it", "tokens");
  }
  // Checks the ids that it was opened with. Ids that were computed were checked before.
  const int64_t num_computed = sequence.has_cache ? sequence.kv.num_tokens : 0;
  CheckTokens(
      {sequence.tokens.begin() + std::min<int64_t>(num_computed, static_cast<int64_t>(sequence.tokens.size())), sequence.tokens.end()},
      decoder_.spec().vocab_size);
  Draft draft = {extension.token_ids, extension.parents, {}};
  CheckTree(&draft, decoder_.spec().vocab_size);
  int64_t length = static_cast<int64_t>(sequence.tokens.size());
  if (extension.is_tree) {
    const std::vector<int32_t> depths = draft.Depths();
    if (!depths.empty()) length += *std::max_element(depths.begin(), depths.end());
  } else {
    length += draft.size();
  }
  if (decoder_.spec().two_sided && length > limits_.max_num_batched_tokens) {
    throw Error(ErrorKind::kInvalidArgument,
                "the tokens of a text see each other, so they run in one step: " + std::to_string(length) +
                    " tokens exceed max_num_batched_tokens = " + std::to_string(limits_.max_num_batched_tokens) + "; raise it",
                "max_num_batched_tokens");
  }
  if (length > limits_.max_model_len) {
    throw Error(ErrorKind::kInvalidArgument,
                std::to_string(length) + " tokens exceed max_model_len = " + std::to_string(limits_.max_model_len), "tokens");
  }
}

std::vector<LabResult> Lab::Extend(const std::vector<LabExtension>& extensions) {
  CheckGenerates(decoder_.spec());
  std::vector<LabResult> results(extensions.size());
  commands_.Execute([&] { ExtendNow(extensions, &results); });
  return results;
}

void Lab::ExtendNow(const std::vector<LabExtension>& extensions, std::vector<LabResult>* results) {
  for (const LabExtension& extension : extensions) {
    Check(extension);
    if (extension.sequence->kv.view.picks()) cache_.MakeBounds();
  }
  std::vector<size_t> old_sizes;  // restored after a failure
  for (const LabExtension& extension : extensions) {
    LabSequence& sequence = *extension.sequence;
    old_sizes.push_back(sequence.tokens.size());
    if (!sequence.has_cache) {
      cache_.Init(&sequence.kv);
      sequence.kv.state.goes_back = true;
      sequence.has_cache = true;
    }
    std::erase(sequences_, extension.sequence);
    sequences_.push_back(extension.sequence);
    sequence.in_use = true;
    if (!extension.is_tree) sequence.tokens.insert(sequence.tokens.end(), extension.token_ids.begin(), extension.token_ids.end());
  }
  const auto release = [&] {
    for (const LabExtension& extension : extensions) extension.sequence->in_use = false;
  };
  try {
    Compute(extensions, results);
  } catch (...) {
    for (size_t i = 0; i < extensions.size(); ++i) {
      LabSequence& sequence = *extensions[i].sequence;
      sequence.tokens.resize(old_sizes[i]);
      sequence.tree = {};
      if (sequence.kv.num_tokens > static_cast<int64_t>(old_sizes[i])) Free(sequence);
      if (sequence.has_cache) cache_.Trim(&sequence.kv);
    }
    release();
    throw;
  }
  release();
}

// Finds the extensions that have nothing to compute, and gives the others what the prefix cache holds.
std::vector<bool> Lab::Prepare(const std::vector<LabExtension>& extensions) {
  std::vector<bool> done(extensions.size(), false);
  for (size_t i = 0; i < extensions.size(); ++i) {
    const LabExtension& extension = extensions[i];
    if (!extension.token_ids.empty() || !extension.wants_last) {
      done[i] = extension.token_ids.empty() && Missing(extension) == 0;
    } else if (Missing(extension) == 0 && !cache_.TryRollback(&extension.sequence->kv, 1)) {
      cache_.Free(&extension.sequence->kv);
      cache_.Init(&extension.sequence->kv);
    }
  }
  for (size_t i = 0; i < extensions.size(); ++i) {
    LabSequence& sequence = *extensions[i].sequence;
    if (done[i] || !sequence.capture.empty() || sequence.kv.num_tokens > 0 || sequence.kv.prefix_node != PrefixTree::kNone) continue;
    sequence.kv.state.snapshot_at = SnapshotAt(sequence.tokens, cache_.groups().block_size());
    // The rows of the result must be computed. Earlier rows may come from the prefix cache.
    const auto num_new = extensions[i].is_tree ? 0 : static_cast<int64_t>(extensions[i].token_ids.size());
    const int64_t num_wanted = num_new > 0 ? num_new : extensions[i].wants_last ? 1 : 0;
    cache_.AttachPrefix(&sequence.kv, sequence.tokens, static_cast<int64_t>(sequence.tokens.size()) - num_wanted,
                        SaltWith(sequence.steering.get(), sequence.kv.view, ""));
  }
  return done;
}

// One forward of at most max_num_batched_tokens rows.
void Lab::ComputeStep(const std::vector<LabExtension>& extensions, std::vector<bool>* done, std::vector<LabResult>* results) {
  BatchBuilder builder(cache_.groups().groups().size());
  std::vector<size_t> owners;  // of each wanted row
  std::vector<std::pair<size_t, int64_t>> pieces;
  for (size_t i = 0; i < extensions.size(); ++i) {
    if ((*done)[i]) continue;
    const LabCapture& capture = extensions[i].sequence->capture;
    builder.AddTaps(capture.hidden_states);
    builder.AddTaps(capture.layer_logits);
    builder.AddAttention(capture.attention);
  }
  const bool has_types = decoder_.spec().embedding.num_token_types > 1;
  int64_t budget = limits_.max_num_batched_tokens;
  for (size_t i = 0; i < extensions.size() && budget > 0; ++i) {
    if ((*done)[i]) continue;
    const LabExtension& extension = extensions[i];
    LabSequence& sequence = *extension.sequence;
    if (decoder_.spec().two_sided && Missing(extension) > budget) break;  // it runs in the next step, whole
    const int64_t num_tokens = std::min(Missing(extension), budget);
    const bool whole = num_tokens == Missing(extension);
    const auto tree_size = extension.is_tree ? static_cast<int64_t>(extension.token_ids.size()) : 0;
    CheckArgument(tree_size <= limits_.max_num_batched_tokens, "a tree has more nodes than max_num_batched_tokens");
    // A tree's nodes see each other: they go in one piece, after all tokens before them.
    const bool with_tree = whole && tree_size > 0 && num_tokens + tree_size <= budget;
    if (num_tokens == 0 && tree_size > 0 && !with_tree) continue;
    const int64_t num_rows = num_tokens + (with_tree ? tree_size : 0);
    Reserve(sequence, num_rows, num_rows - num_tokens);
    const int64_t first = sequence.kv.num_tokens;
    builder.BeginSegment(sequence.kv);
    for (int64_t t = 0; t < num_tokens; ++t) {
      const int64_t from_end = static_cast<int64_t>(sequence.tokens.size()) - (first + t);  // 1: the last token
      const bool is_new = !extension.is_tree && from_end <= static_cast<int64_t>(extension.token_ids.size());
      const bool wanted = is_new || (extension.wants_last && extension.token_ids.empty() && from_end == 1);
      builder.AddToken(sequence.tokens[static_cast<size_t>(first + t)], wanted);
      if (has_types) builder.AddTokenType(sequence.second_text && static_cast<size_t>(first + t) >= *sequence.second_text ? 1 : 0);
      if (wanted) owners.push_back(i);
    }
    if (with_tree) {
      builder.AddDraft({extension.token_ids, extension.parents, {}});
      owners.insert(owners.end(), static_cast<size_t>(tree_size), i);
    }
    builder.Steer(sequence.steering.get());
    pieces.emplace_back(i, num_tokens);
    budget -= num_rows;
    (*done)[i] = whole && (tree_size == 0 || with_tree);
  }
  const ForwardBatch batch = builder.Take();
  const ForwardResult forward = decoder_.Forward(context_, cache_, batch);
  for (size_t segment = 0; segment < forward.state_faults.size(); ++segment) {
    extensions[pieces[segment].first].sequence->kv.state.is_finite = forward.state_faults[segment] == 0;
  }
  for (const auto& [i, num_tokens] : pieces) {
    cache_.Commit(&extensions[i].sequence->kv, num_tokens, extensions[i].sequence->tokens);
    if ((*done)[i] && extensions[i].is_tree) {
      extensions[i].sequence->tree = {extensions[i].token_ids, extensions[i].parents, {}};
    }
  }
  Collect(extensions, owners, batch, forward, results);
}

void Lab::Compute(const std::vector<LabExtension>& extensions, std::vector<LabResult>* results) {
  std::vector<bool> done = Prepare(extensions);
  while (std::find(done.begin(), done.end(), false) != done.end()) {
    commands_.CheckCaller();
    ComputeStep(extensions, &done, results);
  }
}

// Logits of all rows, from one pass over the head. If every sequence has a shortlist, only the ids of these lists are computed.
std::vector<float> Lab::Logits(const std::vector<LabExtension>& extensions, const std::vector<size_t>& owners,
                               const ForwardResult& forward) {
  // This step may compute only a part of a long beginning.
  if (owners.empty() || !extensions[owners[0]].wants_logits) return {};
  const int64_t vocab_size = decoder_.spec().vocab_size;
  const auto is_first = [&](size_t row) { return row == 0 || owners[row] != owners[row - 1]; };  // of its sequence
  std::optional<Shortlist> needed;
  bool whole = false;
  for (size_t row = 0; row < owners.size(); ++row) {
    LabSequence& sequence = *extensions[owners[row]].sequence;
    whole = whole || !sequence.shortlist;
    if (!sequence.shortlist || !is_first(row)) continue;
    sequence.shortlist->Add(sequence.tokens);
    if (!needed) needed = sequence.shortlist;
    needed->Add(*sequence.shortlist);
  }
  std::vector<float> logits(owners.size() * static_cast<size_t>(vocab_size));
  decoder_.LmHead(context_, forward.hidden, static_cast<int64_t>(owners.size()), logits.data(), whole ? nullptr : &*needed);
  std::vector<TileRange> left_out;
  for (size_t row = 0; row < owners.size(); ++row) {
    const std::optional<Shortlist>& shortlist = extensions[owners[row]].sequence->shortlist;
    if (is_first(row)) left_out = shortlist ? shortlist->Tiles(true) : std::vector<TileRange>();
    float* out = logits.data() + row * static_cast<size_t>(vocab_size);
    for (const TileRange& range : left_out) {
      std::fill(out + range.begin * kTileRows, out + std::min(range.end * kTileRows, vocab_size), -std::numeric_limits<float>::infinity());
    }
  }
  return logits;
}

void Lab::Collect(const std::vector<LabExtension>& extensions, const std::vector<size_t>& owners, const ForwardBatch& batch,
                  const ForwardResult& forward, std::vector<LabResult>* results) {
  const int64_t vocab_size = decoder_.spec().vocab_size;
  const int64_t hidden_size = decoder_.spec().hidden_size;
  std::vector<float> logits = Logits(extensions, owners, forward);
  for (size_t row = 0; row < owners.size();) {
    size_t end = row;
    while (end < owners.size() && owners[end] == owners[row]) ++end;
    const LabCapture& capture = extensions[owners[row]].sequence->capture;
    LabResult& result = (*results)[owners[row]];
    const auto begin_offset = static_cast<int64_t>(row) * hidden_size;
    const auto count = static_cast<int64_t>(end - row);
    if (count == static_cast<int64_t>(owners.size()) && result.num_rows == 0) {
      result.logits = std::move(logits);
    } else if (extensions[owners[row]].wants_logits) {
      const auto first_logit = logits.begin() + static_cast<int64_t>(row) * vocab_size;
      result.logits.insert(result.logits.end(), first_logit, first_logit + count * vocab_size);
    }
    result.num_rows += count;
    for (size_t t = 0; t < batch.tap_layers.size(); ++t) {
      const int layer = batch.tap_layers[t];
      const float* rows = forward.taps[t].data() + begin_offset;
      if (Has(capture.hidden_states, layer)) {
        std::vector<float>& values = result.hidden_states[layer];
        values.insert(values.end(), rows, rows + count * hidden_size);
      }
      if (Has(capture.layer_logits, layer)) {
        std::vector<float>& values = result.layer_logits[layer];
        // Any node of a tree may become the last token.
        const int64_t first = extensions[owners[row]].is_tree ? 0 : count - 1;
        values.resize(static_cast<size_t>((count - first) * vocab_size));
        for (int64_t r = first; r < count; ++r) {
          decoder_.TapLogits(context_, rows + r * hidden_size, 1, true, values.data() + (r - first) * vocab_size);
        }
      }
    }
    for (size_t a = 0; a < batch.attention_layers.size(); ++a) {
      if (!Has(capture.attention, batch.attention_layers[a])) continue;
      std::vector<std::vector<float>>& values = result.attention[batch.attention_layers[a]];
      const auto first = forward.attention[a].begin() + static_cast<int64_t>(row);
      values.insert(values.end(), first, first + count);
    }
    row = end;
  }
}

void Lab::Fork(const std::shared_ptr<LabSequence>& sequence, const std::shared_ptr<LabSequence>& child) {
  commands_.Execute([&] {
    child->tokens = sequence->tokens;
    child->capture = sequence->capture;
    child->shortlist = sequence->shortlist;
    child->steering = sequence->steering;
    child->kv.view = sequence->kv.view;
    if (!sequence->has_cache) return;
    cache_.Fork(sequence->kv, &child->kv);
    cache_.Trim(&child->kv);  // a pending tree stays the parent's
    child->has_cache = true;
    sequences_.push_back(child);
  });
}

void Lab::Rollback(const std::shared_ptr<LabSequence>& sequence, int64_t num_tokens) {
  const auto size = static_cast<int64_t>(sequence->tokens.size());
  if (num_tokens < 0 || num_tokens > size) {
    throw Error(ErrorKind::kInvalidArgument,
                "rollback of " + std::to_string(num_tokens) + " tokens: the sequence has " + std::to_string(size), "num_tokens");
  }
  commands_.Execute([&] { Truncate(*sequence, size - num_tokens); });
}

void Lab::Truncate(LabSequence& sequence, int64_t num_tokens) {
  sequence.tree = {};
  sequence.tokens.resize(static_cast<size_t>(num_tokens));
  if (!sequence.has_cache) return;
  if (cache_.TryRollback(&sequence.kv, std::max<int64_t>(0, sequence.kv.num_tokens - num_tokens))) {
    cache_.Trim(&sequence.kv);
  } else {
    Free(sequence);  // blocks before a window were given back: the sequence is computed again
  }
}

int64_t Lab::Sync(const std::shared_ptr<LabSequence>& sequence, const std::vector<int32_t>& token_ids) {
  CheckTokens(token_ids, decoder_.spec().vocab_size);
  int64_t common = 0;
  commands_.Execute([&] {
    std::vector<int32_t>& tokens = sequence->tokens;
    const auto limit = static_cast<int64_t>(std::min(tokens.size(), token_ids.size()));
    common = std::mismatch(tokens.begin(), tokens.begin() + limit, token_ids.begin()).first - tokens.begin();
    Truncate(*sequence, common);
    tokens = token_ids;
  });
  return common;
}

void Lab::Commit(const std::shared_ptr<LabSequence>& sequence, const std::vector<int32_t>& path) {
  int32_t node = -1;
  for (int32_t next : path) {
    if (next < 0 || next >= sequence->tree.size() || sequence->tree.parent(next) != node) {
      throw Error(ErrorKind::kInvalidArgument,
                  "commit: node " + std::to_string(next) + " is not a child of " + (node < 0 ? "the root" : std::to_string(node)), "path");
    }
    node = next;
  }
  commands_.Execute([&] {
    const int64_t first_slot = sequence->kv.num_tokens;
    for (int32_t next : path) {
      sequence->tokens.push_back(sequence->tree.token_ids[static_cast<size_t>(next)]);
      if (!sequence->has_cache) continue;  // evicted meanwhile
      cache_.MoveSlot(sequence->kv, first_slot + next, sequence->kv.num_tokens);
      cache_.Commit(&sequence->kv, 1, sequence->tokens);
    }
    sequence->tree = {};
    if (sequence->has_cache) cache_.Trim(&sequence->kv);
  });
}

void Lab::Close(const std::shared_ptr<LabSequence>& sequence) {
  inbox_.Post([this, sequence] { Free(*sequence); });
}

bool Lab::EvictOne() {
  for (const std::shared_ptr<LabSequence>& sequence : sequences_) {
    if (sequence->in_use) continue;
    Free(*sequence);
    return true;
  }
  return false;
}

void Lab::End() {
  for (auto& sequence : std::exchange(sequences_, {})) cache_.Free(&sequence->kv);
}

int64_t Lab::ShareCache(const LabSequence& source, const std::vector<int32_t>& token_ids, KvSequence* kv) {
  if (!source.has_cache) return 0;
  const size_t most = std::min({source.tokens.size(), token_ids.size() - 1, static_cast<size_t>(source.kv.num_tokens)});
  const auto common = std::mismatch(token_ids.begin(), token_ids.begin() + static_cast<int64_t>(most), source.tokens.begin());
  const int64_t num_shared = common.first - token_ids.begin();
  cache_.Free(kv);
  cache_.Fork(source.kv, kv);
  cache_.Trim(kv);
  if (!cache_.TryRollback(kv, kv->num_tokens - num_shared)) {
    cache_.Free(kv);
    cache_.Init(kv);
  }
  return kv->num_tokens;
}

}  // namespace llmi
