// Which parts of a step around attention (kernels/ops/attention_step.h) its launch takes, and why not the others. A part that it does not
// take is a launch of its own, with the same bits.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "kernels/layout/packed_weights.h"
#include "kernels/ops/attention_step.h"

namespace llmi::cuda {

// Why the norms of heads are ops before all else; null: they are made with the heads.
inline const char* WhyNormsApart(const HeadSteps& heads) {
  if (heads.query_norm.size == 0 && heads.key_norm.size == 0) return nullptr;
  if (heads.norms_after_rope) return "the norms follow the rotation";
  for (const NormArgs* norm : {&heads.query_norm, &heads.key_norm}) {
    if (norm->size == 0) continue;
    if (norm->kind != NormKind::kRms) return "a norm of heads subtracts a mean";
    if (norm->group_stride == 0) return "a norm spans all heads of a row";
  }
  return nullptr;
}

// Why heads are made in memory, and K and V written to the cache, by a launch before attention (HeadsKernel); null: attention does it.
inline const char* WhyHeadsApart(const AttentionStep& step) {
  if (step.written.k == nullptr) return "K and V are another layer's";
  if (step.keeps_queries) return "the queries are read again";
  if (step.heads.num_rows > kMostNewRows) return "each row would make K and V of too many others";
  return nullptr;
}

// Why the gate and the codes that the output projection reads are launches behind attention; null: the merge of the spans makes them.
inline const char* WhyEndApart(const AttentionStep& step, bool has_whole_groups) {
  const AttentionArgs& args = step.attention;
  if (has_whole_groups) return "groups that a block takes whole have no merge";
  if (step.output.wanted() && args.num_heads / args.kv.num_kv_heads * args.kv.head_dim % kBlockSize != 0) {
    return "the heads of a KV head end within a block of 32 columns";
  }
  return nullptr;
}

}  // namespace llmi::cuda
