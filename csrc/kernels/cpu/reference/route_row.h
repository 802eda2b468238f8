// The scalar definition of route, one row (kernels/ops/route.h).
#pragma once

#include "core/scalar_math.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/ops/route.h"

namespace llmi::reference {
namespace {

LLMI_HD inline bool IsFinite(float x) { return x - x == 0.0f; }
LLMI_HD inline float Lowest() { return __builtin_bit_cast(float, 0xFF800000u); }  // -infinity

// The largest, the lower number among equals. There must be a value.
LLMI_HD inline int64_t FirstLargest(const float* x, int64_t size) {
  int64_t best = 0;
  for (int64_t i = 1; i < size; ++i) {
    if (x[i] > x[best]) best = i;
  }
  return best;
}

LLMI_HD inline float SumInLanes(const float* x, int64_t size) {
  float lanes[16] = {0};
  for (int64_t i = 0; i < size; ++i) lanes[i % 16] = lanes[i % 16] + x[i];
  return FoldSum(lanes);
}

LLMI_HD inline void SoftmaxInPlace(float* x, int64_t size) {
  const float maximum = x[FirstLargest(x, size)];
  for (int64_t i = 0; i < size; ++i) x[i] = ExpF32(x[i] - maximum);
  const float sum = SumInLanes(x, size);
  for (int64_t i = 0; i < size; ++i) x[i] = x[i] / sum;
}

// The group's score; its keys are finite.
LLMI_HD inline float GroupScoreOf(const RouteArgs& args, const float* keys, int64_t size) {
  const int64_t best = FirstLargest(keys, size);
  if (args.group_score == GroupScore::kMax || size == 1) return keys[best];
  float second = Lowest();
  for (int64_t i = 0; i < size; ++i) {
    if (i != best && keys[i] > second) second = keys[i];
  }
  return keys[best] + second;
}

// Sets the keys of groups that take no part to -infinity.
LLMI_HD inline void MaskGroups(const RouteArgs& args, float* keys) {
  const int64_t size = args.num_experts / args.num_groups;
  // A group stays if fewer than used_groups are better; its score is computed again for each, as groups are few.
  uint32_t stays[kMostExperts / 32] = {0};
  for (int64_t group = 0; group < args.num_groups; ++group) {
    const float own = GroupScoreOf(args, keys + group * size, size);
    int64_t better = 0;
    for (int64_t other = 0; other < args.num_groups; ++other) {
      const float score = GroupScoreOf(args, keys + other * size, size);
      better += score > own || (score == own && other < group) ? 1 : 0;
    }
    if (better < args.used_groups) stays[group / 32] |= 1u << (group % 32);
  }
  for (int64_t i = 0; i < args.num_experts; ++i) {
    if ((stays[i / size / 32] >> (i / size % 32) & 1u) == 0) keys[i] = Lowest();
  }
}

// The weight of the largest logit among keys, those of the ones that were taken before being -infinity.
LLMI_HD inline float MixerWeight(const RouteArgs& args, const float* logits, const float* keys, int64_t chosen) {
  const float maximum = keys[chosen];
  float lanes[16] = {0};
  for (int64_t i = 0; i < args.num_experts; ++i) {
    const float magnitude = logits[i] < 0.0f ? 0.0f - logits[i] : logits[i];
    const float factor = magnitude < maximum ? maximum : magnitude;
    if (keys[i] == Lowest() || (maximum - logits[i]) / factor > args.mixer_threshold) continue;
    lanes[i % 16] = lanes[i % 16] + ExpF32(keys[i] - maximum);
  }
  return 1.0f / FoldSum(lanes);
}

LLMI_HD inline void SortExperts(int32_t* experts, float* weights, int64_t count) {
  for (int64_t i = 1; i < count; ++i) {
    const int32_t expert = experts[i];
    const float weight = weights[i];
    int64_t to = i;
    for (; to > 0 && experts[to - 1] > expert; --to) {
      experts[to] = experts[to - 1];
      weights[to] = weights[to - 1];
    }
    experts[to] = expert;
    weights[to] = weight;
  }
}

LLMI_HD inline void FinishWeights(const RouteArgs& args, const int32_t* experts, float* weights) {
  if (args.renormalise) {
    const float sum = SumInLanes(weights, args.num_used);
    const float divisor = (sum < args.least_sum ? args.least_sum : sum) + args.sum_epsilon;
    for (int64_t i = 0; i < args.num_used; ++i) weights[i] = weights[i] / divisor;
  }
  for (int64_t i = 0; i < args.num_used; ++i) {
    if (args.factor != 1.0f) weights[i] = weights[i] * args.factor;
    if (args.expert_scales != nullptr) weights[i] = weights[i] * args.expert_scales[experts[i]];
  }
}

// keys: [num_experts], scratch.
LLMI_HD inline void RouteRow(const RouteArgs& args, int64_t row, float* keys) {
  float* scores = args.logits + row * args.num_experts;
  int32_t* experts = args.experts + row * args.num_used;
  float* weights = args.weights + row * args.num_used;
  if (args.score == RouterScore::kSoftmax) SoftmaxInPlace(scores, args.num_experts);
  bool finite = true;
  for (int64_t i = 0; i < args.num_experts; ++i) {
    if (args.score == RouterScore::kSigmoid) {
      finite = finite && IsFinite(scores[i]);
      scores[i] = SigmoidF32(scores[i]);
    }
    keys[i] = args.choice_bias != nullptr ? scores[i] + args.choice_bias[i] : scores[i];
    finite = finite && IsFinite(keys[i]);
  }
  if (!finite) {
    for (int64_t i = 0; i < args.num_used; ++i) {
      experts[i] = static_cast<int32_t>(i);
      weights[i] = __builtin_bit_cast(float, 0x7FC00000u);
    }
    return;
  }
  if (args.num_groups > 1) MaskGroups(args, keys);
  for (int64_t i = 0; i < args.num_used; ++i) {
    const int64_t chosen = FirstLargest(keys, args.num_experts);
    experts[i] = static_cast<int32_t>(chosen);
    weights[i] = args.score == RouterScore::kSparseMixer ? MixerWeight(args, scores, keys, chosen) : scores[chosen];
    keys[chosen] = Lowest();
  }
  SortExperts(experts, weights, args.num_used);
  if (args.score == RouterScore::kSoftmaxChosen) SoftmaxInPlace(weights, args.num_used);
  FinishWeights(args, experts, weights);
}

}  // namespace
}  // namespace llmi::reference
