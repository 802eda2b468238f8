#include "engine/drafting/lengths.h"

#include <algorithm>

#include "speculative/draft.h"
#include "speculative/verify.h"

namespace llmi {
namespace {

constexpr int64_t kMaxAutoLength = 16;

}  // namespace

int64_t DraftLengths::Limit(const Sample& sample, int64_t room) {
  const SpeculationConfig& speculation = *sample.request().speculation;
  const int64_t wanted = speculation.num_tokens < 0 ? kMaxAutoLength : speculation.num_tokens;
  const bool whole = speculation.verification == VerificationKind::kJudge;
  return std::min(
      {wanted, sample.judges_drafts() ? kMaxDraftNodes : room / sample.num_sequences(), whole ? kMaxJudgedNodes : kMaxDraftNodes});
}

int64_t DraftLengths::Choose(const Sample& sample, int32_t confidence, int64_t limit, const StepPlan& plan) {
  const SpeculationConfig& speculation = *sample.request().speculation;
  if (speculation.num_tokens >= 0 && speculation.length_policy == nullptr) return limit;
  const auto rates = sample.drafting.acceptance(confidence).Rates();
  if (speculation.verification != VerificationKind::kCoupled && speculation.length_policy == nullptr) {
    // A tree of fixed shape is proposed whole or not at all.
    return ChooseLength(rates, StepCosts::Recorded(context_), {1, 1, 0, limit}) > 0 ? limit : 0;
  }
  if (speculation.length_policy != nullptr) {
    return std::clamp<int64_t>(speculation.length_policy->Choose(rates, costs_.SecondsByRows(), scheduler_.num_running()), 0, limit);
  }
  const DrafterHistory& history = histories_.Of(speculation.drafter.get());
  // A step takes longer than its forward alone. A drafter's seconds are divided by the same ratio, so that they compare with the curve.
  LengthQuestion question = {plan.expected_tokens, plan.num_rows, history.per_token.seconds() / costs_.decode_ratio(), limit,
                             costs_.drafted_ratio()};
  if (!sample.drafting.was_asked()) {
    question.start_seconds = history.per_start_token.seconds() * static_cast<double>(sample.tokens.size()) / costs_.decode_ratio();
    question.remaining_tokens = sample.scheduled.max_new_tokens;
  }
  return ChooseLength(rates, costs_.Curve(), question);
}

}  // namespace llmi
