#include "engine/rows/plan.h"

#include <algorithm>

#include "engine/beams/group.h"
#include "engine/running.h"
#include "kernels/ops/top_candidates.h"
#include "sampling/edits.h"
#include "sampling/steps.h"

namespace llmi {
namespace {

// Whether the law of a row differs from the softmax of its logits.
bool ParametersChange(const SamplingParams& params, bool token_follows) {
  return params.has_point_law() || HasEdits(params, token_follows);
}

// A row that no token follows.
RowPlan PlanScore(const LogitsRow& row) {
  const Request& request = row.sample->request();
  RowPlan plan;
  plan.edits.parameters = ParametersChange(request.params, false);
  plan.keeps.hidden = row.sample->drafting.contrast() != nullptr;
  plan.keeps.prompt_score = request.params.num_prompt_logprobs >= 0 && row.position + 1 < row.sample->running->prompt_len();
  return plan;
}

RowDecider DeciderOf(const LogitsRow& row) {
  if (row.sample->drafting.contrast() != nullptr) return RowDecider::kContrast;
  const Draft& draft = row.sample->walk.draft();
  const Request& request = row.sample->request();
  if (request.beams) return RowDecider::kBeams;
  if (draft.size() > 0) {
    const VerificationKind verification = request.speculation->verification;
    if (verification == VerificationKind::kJudge) return RowDecider::kJudge;
    if (verification == VerificationKind::kRule && !draft.Children(row.node).empty()) return RowDecider::kRule;
  }
  return request.hooks != nullptr && request.hooks->HasSampler() ? RowDecider::kSampler : RowDecider::kDraw;
}

// Whether a device can name the token, as far as the decider and the parameters are concerned.
bool DeviceDecides(const Request& request, const RowPlan& plan) {
  if (plan.decider == RowDecider::kBeams) return WhyBeamsOnHost(request).empty();
  return (plan.decider == RowDecider::kDraw || plan.decider == RowDecider::kRule) && DrawsOnDevice(request.params);
}

bool HasUserRule(const Sample& sample) {
  if (sample.walk.draft().size() == 0 || !sample.request().speculation) return false;
  const SpeculationConfig& speculation = *sample.request().speculation;
  return speculation.verification == VerificationKind::kRule && !speculation.rule->is_default();
}

}  // namespace

std::vector<const char*> WhyBeamsOnHost(const Request& request) {
  std::vector<const char*> names;
  if (request.beams->do_sample) names.push_back("do_sample");
  if (NumRowCandidates(request) > kMostTopCandidates) names.push_back("beam_width");
  for (const char* name : EditNames(request.params)) names.push_back(name);
  return names;
}

bool RowEdits::on_host() const { return batch_processors || processors; }

bool RowPlan::NeedsHost() const { return edits.combined || edits.on_host() || readers != RowReaders{} || keeps != RowKeeps{}; }

bool RowPlan::NeedsWholeRow() const {
  // A draw and the exact rule read the law alone, which has no mass where masks ban. Prompt scores read the raw row, judges may, a beam's
  // scores are its log-softmax, and contrastive search and samplers keep or show what they read.
  if (decider != RowDecider::kDraw && decider != RowDecider::kRule) return true;
  // Guidance and DoLa combine log-softmaxes of whole rows.
  if (edits.combined || edits.on_host()) return true;
  // Siblings draw as their leader does, from the same masks.
  if (readers.criteria || readers.user_rule) return true;
  // Log-probabilities and traces have the raw row's; an observer's are of the law, and of tokens that masks may ban.
  return keeps != RowKeeps{};
}

bool RowPlan::NeedsLogits() const { return decider != RowDecider::kNobody || keeps != RowKeeps{.hidden = true}; }

RowPlan PlanRow(const LogitsRow& row, const RowSite& site) {
  const Sample& sample = *row.sample;
  // The row of a static batch that has finished is computed and not used. Its request may be gone.
  if (sample.finished) return {};
  const Request& request = sample.request();
  const SamplingParams& params = request.params;
  if (!row.draws || params.max_tokens == 0) return PlanScore(row);

  RowPlan plan;
  plan.decider = DeciderOf(row);
  const bool starts_samples = !sample.started && sample.running->samples.size() > 1 && !request.beams;
  const bool is_sibling = starts_samples && sample.index > 0;
  // Later rows of a draft, and those of siblings that start, depend on tokens of this step. A candidate's token is known before its row.
  const bool contrasts = plan.decider == RowDecider::kContrast;
  const bool comes_first = (row.node == kWalkRoot || contrasts) && !is_sibling;
  const bool has_hooks = request.hooks != nullptr;

  plan.edits.combined = params.guided() || params.contrasts_layers();
  plan.edits.constraint = sample.constraint != nullptr;
  plan.edits.parameters = plan.edits.constraint || (request.beams ? HasEdits(params, true) : ParametersChange(params, true));
  plan.edits.last_token = EditsByLastToken(params);
  plan.edits.batch_processors = site.has_batch_processors && has_hooks && comes_first && plan.decider != RowDecider::kJudge;
  plan.edits.processors = has_hooks && (plan.edits.batch_processors ? request.hooks->HasOwnProcessors() : request.hooks->HasProcessors());
  plan.readers.siblings = starts_samples && !is_sibling;
  plan.readers.criteria = has_hooks && request.hooks->HasCriteria();
  plan.readers.user_rule = HasUserRule(sample);
  plan.keeps.logprobs = params.wants_logprobs();
  plan.keeps.draft_logprobs = sample.walk.is_observed();
  plan.keeps.trace = request.trace;
  plan.keeps.likeliest = !contrasts && request.speculation && request.speculation->drafter->traits().num_likeliest > 0;
  plan.keeps.hidden = contrasts;

  if (site.has_device && !is_sibling && !plan.edits.constraint && !plan.NeedsHost() && DeviceDecides(request, plan))
    plan.place = RowPlace::kDevice;
  // Siblings take over the state that their leader's processors have before they see this row, and draw before the leader.
  const bool state_is_copied = plan.readers.siblings && plan.edits.on_host();
  plan.in_parallel = plan.decider == RowDecider::kDraw && comes_first && !state_is_copied && !plan.keeps.trace;
  plan.lets_run_ahead = plan.place == RowPlace::kDevice && !request.beams && !request.stepped && !request.speculation.has_value() &&
                        !plan.edits.last_token && !site.has_batch_processors;
  return plan;
}

}  // namespace llmi
