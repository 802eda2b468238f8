#include "engine/drafting/walk.h"

#include <algorithm>
#include <limits>

#include "kernels/ops/vocab.h"

namespace llmi {

int32_t ChildOfWalk(const Sample& sample, int32_t token) {
  return sample.draft.size() == 0 ? kWalkRoot : sample.draft.Child(sample.walk, token);
}

std::vector<int32_t> ChildrenToJudge(const LogitsRow& row) {
  if (row.plan.decider != RowDecider::kRule) return {};
  return row.sample->draft.Children(row.node);
}

void WalkOn(KvCache& cache, Sample& sample, int32_t child) {
  if (sample.draft.size() == 0) return;
  if (child < 0) {
    sample.walk = kWalkEnded;
    return;
  }
  // The walk's later nodes are stored further right: none is overwritten.
  KvSequence& kv = sample.scheduled.kv;
  const int64_t first_slot = kv.num_tokens - sample.num_accepted;
  cache.MoveSlot(kv, first_slot + child, kv.num_tokens);
  cache.Commit(&kv, 1, sample.tokens);
  sample.scheduled.max_computed = std::max(sample.scheduled.max_computed, kv.num_tokens);
  sample.walk = child;
  ++sample.num_accepted;
}

void NoteDraftLogprobs(const KernelContext& context, std::span<const float> law, int32_t token, Sample& sample) {
  const bool greedy = sample.request().params.greedy();
  const float total = greedy ? 0.0f : LogSumExp(context, law.data(), static_cast<int64_t>(law.size()));
  for (int32_t node : sample.draft.Children(sample.walk)) {
    const int32_t id = sample.draft.token_ids[static_cast<size_t>(node)];
    float& logprob = sample.draft_logprobs[static_cast<size_t>(node)];
    logprob = greedy ? (id == token ? 0.0f : -std::numeric_limits<float>::infinity()) : law[static_cast<size_t>(id)] - total;
  }
}

void KeepHiddenStates(const std::vector<LogitsRow>& rows, const std::vector<int>& layers, const ForwardResult& result,
                      int64_t hidden_size) {
  if (layers.empty()) return;
  const auto keep = [&](Sample& sample, size_t row) {
    for (size_t t = 0; t < layers.size(); ++t) {
      const auto first = result.taps[t].begin() + static_cast<int64_t>(row) * hidden_size;
      sample.hidden_states[layers[t]].assign(first, first + hidden_size);
    }
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    Sample& sample = *rows[i].sample;
    if (!rows[i].draws || sample.finished || !sample.request().speculation) continue;
    if (rows[i].node == sample.drawn_at) keep(sample, i);
    // Siblings that started in this step drew their first token from the leader's row.
    for (const auto& sibling : sample.running->samples) {
      if (sample.index == 0 && sibling->started && sibling->hidden_states.empty()) keep(*sibling, i);
    }
  }
}

}  // namespace llmi
