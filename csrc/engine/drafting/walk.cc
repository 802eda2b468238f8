#include "engine/drafting/walk.h"

#include <algorithm>

namespace llmi {

std::vector<int32_t> ChildrenToJudge(const LogitsRow& row) {
  if (row.plan.decider != RowDecider::kRule) return {};
  return row.sample->walk.draft().Children(row.node);
}

void WalkOn(KvCache& cache, Sample& sample, int32_t child) {
  if (sample.walk.draft().size() == 0) return;
  if (child < 0) {
    sample.walk.Stop();
    return;
  }
  // The walk's later nodes are stored further right: none is overwritten.
  const auto accept = [&](ScheduledSequence& sequence) {
    KvSequence& kv = sequence.kv;
    const int64_t first_slot = kv.num_tokens - sample.walk.num_accepted();
    cache.MoveSlot(kv, first_slot + child, kv.num_tokens);
    cache.Commit(&kv, 1, *sequence.token_ids);
    sequence.max_computed = std::max(sequence.max_computed, kv.num_tokens);
  };
  accept(sample.scheduled);
  if (sample.companion != nullptr) accept(sample.companion->scheduled);
  sample.walk.Accept(child);
}

void KeepHiddenStates(const std::vector<LogitsRow>& rows, const std::vector<int>& layers, const ForwardResult& result,
                      int64_t hidden_size) {
  if (layers.empty()) return;
  const auto keep = [&](Sample& sample, size_t row) {
    for (size_t t = 0; t < layers.size(); ++t) {
      const auto size = static_cast<size_t>(hidden_size);
      sample.drafting.KeepHiddenState(layers[t], std::span(result.taps[t]).subspan(row * size, size));
    }
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    Sample& sample = *rows[i].sample;
    if (!rows[i].draws || sample.finished || !sample.request().speculation) continue;
    if (rows[i].node == sample.walk.drawn_at()) keep(sample, i);
    // Siblings that started in this step drew their first token from the leader's row.
    for (const auto& sibling : sample.running->samples) {
      if (sample.index == 0 && sibling->started && sibling->drafting.hidden_states().empty()) keep(*sibling, i);
    }
  }
}

}  // namespace llmi
