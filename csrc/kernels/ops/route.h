// route: which experts each row uses, and with which weights.
//   scores   kSoftmax         softmax of the logits
//            kSigmoid         sigmoid of each logit
//            kSoftmaxChosen   the logits; the weights are the softmax of the chosen ones
//            kSparseMixer     see below
//   choice   keys are scores + choice_bias. With groups (of num_experts / num_groups experts that follow each other), only the used_groups
//            best ones take part, by the largest key of each (kMax) or the sum of its two largest (kTopTwo). Of these experts the num_used
//            with the largest keys are chosen. Among equal keys or groups the lower number is first.
//   weights  the scores of the chosen experts; if renormalise, each / (max(sum, least_sum) + sum_epsilon); then each * factor, and * its
//            expert's scale
// kSparseMixer chooses the two largest logits, one after the other. The weight of one is its softmax over the logits x that the first has
// not taken and that are no farther below: (m - x) / max(|x|, m) <= mixer_threshold, m the chosen one.
// The maximum of a softmax is subtracted first. Sums have the 16 lanes of norms: of all logits lane = number of the expert modulo 16, of
// the chosen ones lane = place in ascending order of their numbers, modulo 16.
//
// logits       [num_rows, num_experts] fp32: becomes scores
// choice_bias  [num_experts] or null
// experts      [num_rows, num_used] int32, ascending; weights [num_rows, num_used] fp32
// A row that has a key which is not finite uses experts 0 to num_used - 1, all with weight NaN.
// Errors (kInvalidArgument): num_experts above kMostExperts; more used than there are in used_groups; groups of different sizes.
// Sources: Shazeer et al., 2017 (experts); DeepSeek-V3, 2024 (choice bias, groups); Liu et al., GRIN, 2024 (sparse mixer).
#pragma once

#include <stdint.h>

#include "kernels/ops/context.h"

namespace llmi {

constexpr int64_t kMostExperts = 1024;
constexpr int64_t kMostUsedExperts = 64;

enum class RouterScore : uint8_t { kSoftmax, kSoftmaxChosen, kSigmoid, kSparseMixer };
enum class GroupScore : uint8_t { kMax, kTopTwo };

struct RouteArgs {
  RouterScore score;
  GroupScore group_score = GroupScore::kMax;
  bool renormalise = false;
  int64_t num_experts;
  int64_t num_used;
  int64_t num_groups = 1;
  int64_t used_groups = 1;
  float least_sum = 0.0f;
  float sum_epsilon = 0.0f;
  float factor = 1.0f;
  float mixer_threshold = 0.0f;
  int64_t num_rows;
  float* logits;
  const float* choice_bias = nullptr;
  const float* expert_scales = nullptr;  // [num_experts] or null
  int32_t* experts;
  float* weights;
};

void Route(const KernelContext& context, const RouteArgs& args);

}  // namespace llmi
