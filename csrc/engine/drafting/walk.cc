#include "engine/drafting/walk.h"

#include "speculative/likeliest.h"

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

void LearnRow(const LogitsRow& row, std::span<const float> logits) {
  Sample& sample = *row.sample;
  Drafter& drafter = *sample.request().speculation->drafter;
  const std::vector<int32_t> likeliest = LikeliestTokens(logits, drafter.traits().num_likeliest);
  const int32_t token = row.node == kWalkRoot ? sample.tokens[static_cast<size_t>(row.position)]
                                              : sample.walk.draft().token_ids[static_cast<size_t>(row.node)];
  drafter.Learn(*sample.drafting.state(), {token, row.node, likeliest}, !sample.judges_drafts());
}

}  // namespace llmi
