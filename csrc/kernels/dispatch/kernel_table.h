// A table of single-threaded kernels for one instruction set. Ops (one .cc each) check arguments, split the work into tasks and call the
// table's kernels. All tables give the same bits. This header uses no STL, since the files of each instruction set include it.
#pragma once

#include <stdint.h>

#include "kernels/draws/exponential_race.h"
#include "kernels/layout/packed_weights.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/bound_scores.h"
#include "kernels/ops/conv_step.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/probe.h"
#include "kernels/ops/quantize_rows.h"
#include "kernels/ops/recurrence.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/route.h"
#include "kernels/ops/row_ops.h"

namespace llmi {

// The kernels, by name and type. Each instruction set defines them all in a namespace of its own.
#define LLMI_FOR_EACH_KERNEL(X)                                                                                              \
  X(quantize_rows, (const float* x, int64_t row_begin, int64_t row_end, const QuantizedRows& out))                           \
  X(linear_quantized, (const LinearArgs& args, const LinearPart& part, int64_t tile_begin, int64_t tile_end))                \
  X(linear_float, (const LinearArgs& args, const LinearPart& part, int64_t tile_begin, int64_t tile_end))                    \
  X(linear_bf16, (const LinearArgs& args, const LinearPart& part, int64_t tile_begin, int64_t tile_end))                     \
  X(round_bf16, (const float* x, int64_t size, uint16_t* out))                                                               \
  X(embedding, (const PackedView& weights, int32_t id, float scale, float* out))                                             \
  X(norm, (const NormArgs& args, int64_t row_begin, int64_t row_end))                                                        \
  X(rope, (const RopeArgs& args, int64_t row_begin, int64_t row_end))                                                        \
  X(activate, (const ActivationArgs& args, const float* x, const float* up, int64_t size, float* out))                       \
  X(route, (const RouteArgs& args, int64_t row_begin, int64_t row_end))                                                      \
  X(add_scaled, (const float* x, int64_t count, float scale, float* out))                                                    \
  X(scale, (float* x, int64_t count, float scale))                                                                           \
  X(gate, (const GateArgs& args, int64_t row_begin, int64_t row_end))                                                        \
  X(recurrence_factors, (const RecurrenceArgs& args, int64_t row_begin, int64_t row_end))                                    \
  X(recurrence_step, (const RecurrenceArgs& args, const RecurrenceTask& task, float* state, const float* input, float* out)) \
  X(conv_step, (const ConvStep& step))                                                                                       \
  X(kv_write, (const KvWriteArgs& args, const AttentionSegment& segment, const KvRange& range))                              \
  X(bound_scores, (const BoundArgs& args))                                                                                   \
  X(attention, (const AttentionArgs& args, const AttentionTask& task))                                                       \
  X(attention_span, (const AttentionArgs& args, const AttentionTask& task, int64_t span, float* partials))                   \
  X(attention_merge, (const AttentionArgs& args, const AttentionTask& task, int64_t num_spans, const float* partials))       \
  X(probe_fma, (int64_t iterations, float* out))                                                                             \
  X(probe_bf16, (int64_t iterations, float* out))                                                                            \
  X(probe_dots, (int64_t iterations, const uint8_t* block, const QuantizedRows& x, float* out))                              \
  X(max_chunk, (const float* x, int64_t size, float* maximum, bool* all_below_infinity))                                     \
  X(race_candidates, (const RaceArgs& race, int32_t* ids, int64_t* count))                                                   \
  X(softmax_chunk, (const float* logits, int64_t size, float* maximum, float* sum))                                          \
  X(token_masses, (const float* logits, int64_t size, float maximum, uint64_t* masses))                                      \
  X(mass_moments, (const float* logits, int64_t size, float maximum, double* masses, double* products))                      \
  X(divergence_chunk, (const float* a, const float* b, int64_t size, bool of_mean, float* sum))                              \
  X(ids_from, (const float* x, int64_t size, float least, int32_t* ids, int64_t* count))

struct KernelTable {
  const char* name;
#define LLMI_TABLE_ENTRY(name, args) void(*name) args;
  LLMI_FOR_EACH_KERNEL(LLMI_TABLE_ENTRY)
#undef LLMI_TABLE_ENTRY
};

#define LLMI_DECLARE_KERNEL(name, args) void name args;
namespace reference {
LLMI_FOR_EACH_KERNEL(LLMI_DECLARE_KERNEL)
}
namespace avx2 {
LLMI_FOR_EACH_KERNEL(LLMI_DECLARE_KERNEL)
}
namespace avx_vnni {  // defines only quantised linear layers; its other kernels are avx2's
LLMI_FOR_EACH_KERNEL(LLMI_DECLARE_KERNEL)
}
namespace avx512 {
LLMI_FOR_EACH_KERNEL(LLMI_DECLARE_KERNEL)
}
namespace avx512_bf16 {  // defines only kernels with dots of bf16; its other kernels are avx512's
LLMI_FOR_EACH_KERNEL(LLMI_DECLARE_KERNEL)
}
#undef LLMI_DECLARE_KERNEL

}  // namespace llmi
