#include "kernels/ops/attention_step.h"

#include "core/errors.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/produced_rows.h"

namespace llmi {
namespace {

void NormHeads(const KernelContext& context, const HeadSteps& steps) {
  if (steps.query_norm.size > 0) Norm(context, steps.query_norm);
  if (steps.key_norm.size > 0) Norm(context, steps.key_norm);
}

}  // namespace

void PrepareHeads(const KernelContext& context, const HeadSteps& steps) {
  if (!steps.norms_after_rope) NormHeads(context, steps);
  if (steps.rope.rotary_dim > 0) Rope(context, steps.rope);
  if (steps.norms_after_rope) NormHeads(context, steps);
  if (steps.query_factors != nullptr) {
    ScaleRows(context, steps.queries, steps.stride, steps.num_rows, steps.query_size, steps.query_factors);
  }
}

void AttendStep(const KernelContext& context, const AttentionStep& step) {
  const int64_t num_cols = step.attention.num_heads * step.attention.kv.head_dim;
  CheckArgument(step.gate.x == nullptr || step.gate.x == step.attention.out, "attention_step: the gate is one of attention's output");
  CheckArgument(step.attention.out_stride == num_cols || (step.gate.x == nullptr && !step.output.wanted()),
                "attention_step: rows that are gated or converted must be dense");
  CheckInput(context, num_cols, step.output);
  CheckAttention(step.attention);
  if (context.device != nullptr && step.attention.firsts == nullptr) return context.device->AttendStep(step);
  PrepareHeads(context, step.heads);
  if (step.bounds.bounds != nullptr) {
    if (step.written.k != nullptr) KvWrite(context, step.written);
    PagedAttention(context, PickedRows(context, step.attention, step.bounds).args());
  } else if (step.written.k != nullptr) {
    WriteAndAttend(context, step.written, step.attention);
  } else {
    PagedAttention(context, step.attention);
  }
  if (step.gate.x != nullptr) Gate(context, step.gate);
  ConvertInput(context, step.attention.out, step.heads.num_rows, num_cols, step.output);
}

}  // namespace llmi
