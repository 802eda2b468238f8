// The walk over a draft's rows. A token is drawn at each row as plain decoding would draw it (coupled verification), or drafted tokens are
// accepted and rejected. If the token was drafted, its row is already computed and is the next one. So penalties, hooks, stop rules and
// log-probabilities see the same calls with and without drafts, and under coupled verification the tokens are the same.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"

namespace llmi {

// The nodes that the acceptance rule judges at this row; empty where something else decides.
std::vector<int32_t> ChildrenToJudge(const LogitsRow& row);

// Takes the walk to `child`, whose token was drawn, and moves its K and V into the slot of its position; -1 ends the walk.
void WalkOn(KvCache& cache, Sample& sample, int32_t child);

// Tells the sequence's drafter the likeliest tokens behind the row. logits [vocab_size]: before the masks.
void LearnRow(const LogitsRow& row, std::span<const float> logits);

}  // namespace llmi
