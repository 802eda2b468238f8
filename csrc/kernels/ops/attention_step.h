// attention_step: what one layer does between its projections and the output projection, as one op: norms of heads, rotation, factors of
// queries, kv_write, paged_attention, the gate, and the forms in which the output projection reads the result. Each part is the op of that
// name, in this order, with the same bits.
//
// Without `keeps_queries`, what projected queries hold afterwards is not specified, and what keys hold never is: a device may change them
// in its registers alone.
#pragma once

#include <stdint.h>

#include "kernels/ops/attention.h"
#include "kernels/ops/context.h"
#include "kernels/ops/linear_input.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/picked_attention.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/row_ops.h"

namespace llmi {

// What is still to be done with projected queries and keys, in place.
struct HeadSteps {
  NormArgs query_norm{};  // size 0: none
  NormArgs key_norm{};
  bool norms_after_rope = false;
  RopeArgs rope{};  // of queries and the keys behind them; rotary_dim 0: none
  // [num_rows]: factors of queries; null: none
  const float* query_factors = nullptr;
  float* queries = nullptr;  // num_rows rows of query_size values, stride apart
  int64_t query_size = 0;
  int64_t stride = 0;
  int64_t num_rows = 0;
};
// All of them, one op after the other.
void PrepareHeads(const KernelContext& context, const HeadSteps& steps);

struct AttentionStep {
  HeadSteps heads;
  bool keeps_queries = false;
  KvWriteArgs written;  // k null: the cache holds K and V of these rows, another layer's
  AttentionArgs attention;
  KeyBoundsView bounds{};  // of the cache's keys, if rows pick what they see
  GateArgs gate{};         // x null: none; else attention.out
  LinearInput output{};    // forms of attention.out
};
void AttendStep(const KernelContext& context, const AttentionStep& step);

}  // namespace llmi
