// Launches of attention: which kernel serves a cache, heads and rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/bf16_attention_kernels.h"
#include "kernels/cuda/bf16_span_kernel.h"
#include "kernels/cuda/prompt_attention_kernel.h"
#include "kernels/cuda/span_kernel.h"

namespace llmi::cuda {

template <KvType kType, typename Launcher>
void LaunchOrderedSpans(Launcher& launcher, int num_multiprocessors, const AttentionPlan& plan) {
  const int64_t num_kv_heads = plan.args.kv.num_kv_heads;
  const int64_t heads = plan.args.num_heads / num_kv_heads;
  const int64_t chunks = (heads + kMostSpanHeads - 1) / kMostSpanHeads;
  const int64_t num_blocks = std::min(plan.launch_items * num_kv_heads * chunks, int64_t{kSpanBlocks} * num_multiprocessors);
  const auto launch = [&]<int kHeads>() {
    using Kernel = SpanKernel<kType, kHeads>;
    launcher.Launch(num_blocks, 1, kSpanThreads, Kernel::kSharedBytes, Kernel{{plan, num_blocks, chunks}});
  };
  if (heads == 1) return launch.template operator()<1>();
  if (heads == 2) return launch.template operator()<2>();
  if (heads <= 4) return launch.template operator()<4>();
  launch.template operator()<kMostSpanHeads>();
}

template <bool kBiased, typename Launcher>
void LaunchBf16Spans(Launcher& launcher, int num_multiprocessors, const AttentionPlan& plan) {
  using Kernel = Bf16SpanKernel<kBiased>;
  const int64_t num_blocks = std::min(plan.launch_items * plan.args.kv.num_kv_heads, int64_t{kBf16SpanBlocks} * num_multiprocessors);
  launcher.Launch(num_blocks, 1, Kernel::kThreads, Kernel::SharedBytes(plan.args.kv.head_dim), Kernel{{plan, num_blocks}});
}

// Of rows whose spans are split over blocks.
template <typename Launcher>
void LaunchSpanKernels(Launcher& launcher, int num_multiprocessors, const AttentionPlan& plan) {
  switch (plan.args.kv.type) {
    case KvType::kF16: return LaunchOrderedSpans<KvType::kF16>(launcher, num_multiprocessors, plan);
    case KvType::kF32: return LaunchOrderedSpans<KvType::kF32>(launcher, num_multiprocessors, plan);
    case KvType::kInt8: return LaunchOrderedSpans<KvType::kInt8>(launcher, num_multiprocessors, plan);
    case KvType::kF8: return LaunchOrderedSpans<KvType::kF8>(launcher, num_multiprocessors, plan);
    case KvType::kBF16: break;
  }
  plan.args.linear_biases != nullptr ? LaunchBf16Spans<true>(launcher, num_multiprocessors, plan)
                                     : LaunchBf16Spans<false>(launcher, num_multiprocessors, plan);
}

template <typename Launcher>
void LaunchPromptAttention(Launcher& launcher, const AttentionPlan& plan, const RowGroup* groups, int64_t num_groups) {
  const AttentionArgs& args = plan.args;
  const auto launch = [&]<int kPasses>() {
    using Kernel = PromptAttentionKernel<kPasses>;
    const int64_t chunks = (kGroupRows * args.num_heads / args.kv.num_kv_heads + Kernel::kQueries - 1) / Kernel::kQueries;
    launcher.Launch(num_groups * args.kv.num_kv_heads * chunks, 1, Kernel::kThreads, Kernel::kSharedBytes,
                    Kernel{plan, groups, num_groups, chunks});
  };
  static_assert(PromptAttentionKernel<2>::kMostHeadDim == kMostWholeHeadDim);
  args.kv.head_dim <= PromptAttentionKernel<1>::kMostHeadDim ? launch.template operator()<1>() : launch.template operator()<2>();
}

// Groups over an fp16 or bf16 cache that a block takes whole, without partials.
template <typename Launcher>
void LaunchWholeGroups(Launcher& launcher, const AttentionPlan& plan, const RowGroup* groups, int64_t num_groups) {
  const AttentionArgs& args = plan.args;
  if (args.kv.type == KvType::kF16) return LaunchPromptAttention(launcher, plan, groups, num_groups);
  const auto launch = [&](auto kernel) {
    kernel.attention.plan = plan;
    kernel.groups = groups;
    kernel.num_groups = num_groups;
    kernel.chunks = (kGroupRows * args.num_heads / args.kv.num_kv_heads + kernel.kQueries - 1) / kernel.kQueries;
    launcher.Launch(kernel.num_groups * args.kv.num_kv_heads * kernel.chunks, 1, kBf16AttentionWarps * kWarpLanes, kernel.kSharedBytes,
                    kernel);
  };
  const bool biased = args.linear_biases != nullptr;
  if (args.kv.head_dim <= Bf16AttentionKernel<2, false>::kMostHeadDim) {
    biased ? launch(Bf16AttentionKernel<2, true>{}) : launch(Bf16AttentionKernel<2, false>{});
  } else {
    biased ? launch(Bf16AttentionKernel<4, true>{}) : launch(Bf16AttentionKernel<4, false>{});
  }
}

}  // namespace llmi::cuda
