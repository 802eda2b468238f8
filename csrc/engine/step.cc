#include "engine/step.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/errors.h"
#include "engine/batch.h"
#include "engine/clock.h"
#include "engine/constraints/constraint_masks.h"
#include "engine/scheduling.h"

namespace llmi {
namespace {

bool IsBroken(const LaunchedStep& step, size_t segment) {
  return segment < step.result.state_faults.size() && step.result.state_faults[segment] != 0;
}

void SetInFlight(const LaunchedStep& step, bool in_flight) {
  for (const ScheduledPiece& piece : step.pieces) piece.sequence->in_flight = in_flight;
}

// What the step computed for sequences that have ended meanwhile is not used; their requests may be gone.
void LeaveOutEnded(LaunchedStep* step) {
  for (size_t i = step->pieces.size(); i-- > 0;) {
    const ScheduledSequence& sequence = *step->pieces[i].sequence;
    if (!sequence.owner->finished || sequence.kv.num_tokens > 0) continue;
    step->pieces.erase(step->pieces.begin() + static_cast<std::ptrdiff_t>(i));
    step->piece_rows.erase(step->piece_rows.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (LogitsRow& row : step->rows) {
    if (!row.sample->finished) continue;
    row.plan = {};
    row.companion = -1;
  }
}

// So that no snapshot is taken of them.
void MarkBrokenStates(const LaunchedStep& step) {
  for (size_t i = 0; i < step.segments.size(); ++i) step.segments[i]->kv.state.is_finite = !IsBroken(step, i);
}

}  // namespace

StepLoop::StepLoop(const KernelContext& context, Decoder& decoder, DraftHeads heads, KvCache& cache, Scheduler& scheduler,
                   ActiveRequests& requests, StepCosts& costs, const EngineConfig& config)
    : context_(context),
      decoder_(decoder),
      cache_(cache),
      scheduler_(scheduler),
      requests_(requests),
      costs_(costs),
      policy_(config.policy_hook),
      drafting_(context, decoder, std::move(heads), cache, scheduler, costs, requests, config.scheduler),
      rows_(context, decoder, cache, scheduler, requests, config.batch_hook, config.small_heads),
      ahead_(context, decoder, cache, scheduler, rows_.device_draws(), config.scheduler.policy, rows_.site()) {}

void StepLoop::Run(bool launches) {
  if (decoder_.num_stages() > 1) {
    RunStages(launches);
  } else {
    std::unique_ptr<LaunchedStep> step = ahead_.Take();
    if (step == nullptr) step = Launch();
    if (step != nullptr) {
      SetInFlight(*step, false);
      Complete(*step);
    }
  }
  ++num_steps_;
}

// As many steps are under way as there are stages, of other sequences each; the oldest one ends.
void StepLoop::RunStages(bool launches) {
  while (launches && static_cast<int>(in_flight_.size()) < decoder_.num_stages()) {
    std::unique_ptr<LaunchedStep> step = Launch();
    if (step == nullptr) break;
    in_flight_.push_back(std::move(step));
  }
  if (in_flight_.empty()) return;
  ForwardResult result = decoder_.FinishForward(context_, cache_);
  const std::unique_ptr<LaunchedStep> step = std::move(in_flight_.front());
  in_flight_.pop_front();
  step->result = std::move(result);
  SetInFlight(*step, false);
  LeaveOutEnded(step.get());
  Complete(*step);
}

void StepLoop::Complete(LaunchedStep& step) {
  MarkBrokenStates(step);
  scheduler_.Commit(step.pieces);
  FailBrokenStates(step);
  drafting_.KeepHidden(step);
  rows_.Process(step, num_steps_, ahead_);
  const double seconds = NowSeconds() - step.start_s;
  costs_.Learn(ShapeOf(step.pieces, step.num_rows), seconds);
  drafting_.EndWalks(step, seconds);
  scheduler_.EndStep();
  requests_.ReleaseRows();
}

void StepLoop::GiveUp() {
  drafting_.GiveUp();
  for (const std::unique_ptr<LaunchedStep>& step : in_flight_) SetInFlight(*step, false);
  in_flight_.clear();
  for (ScheduledSequence* sequence : scheduler_.running()) sequence->in_flight = false;
  decoder_.DropLaunched();
  requests_.ReleaseRows();
}

// Ends the requests, and no others.
void StepLoop::FailBrokenStates(const LaunchedStep& step) {
  for (size_t i = 0; i < step.segments.size(); ++i) {
    const Sample& sample = *step.segments[i]->owner;
    if (!IsBroken(step, i) || sample.finished) continue;
    const int64_t position = step.segments[i]->kv.num_tokens;
    requests_.Fail(*sample.running, Error(ErrorKind::kNonFiniteLogits,
                                          "a layer's state holds NaN or infinity after " + std::to_string(position) + " tokens"));
  }
}

// Returns null if there is nothing to do.
std::unique_ptr<LaunchedStep> StepLoop::Launch() {
  if (policy_ != nullptr) SetPolicyKeys(*policy_, scheduler_, requests_);
  drafting_.ProposeWhole();
  std::vector<ScheduledPiece> pieces = scheduler_.Schedule(PromptBudget(scheduler_, costs_));
  if (pieces.empty() && has_in_flight()) return nullptr;
  if (pieces.empty()) {
    // This happens only with a static batch whose rows have all ended, or hold the pages that other requests wait for. The batch ends now.
    scheduler_.EndStep();
    requests_.ReleaseRows();
    if (++num_empty_steps_ > 2) throw Error(ErrorKind::kInternal, "work is queued but nothing can be scheduled");
    return nullptr;
  }
  num_empty_steps_ = 0;
  drafting_.ProposeForStep(&pieces);
  if (pieces.empty()) return nullptr;  // every request of the step failed in its drafter
  auto step = std::make_unique<LaunchedStep>();
  const ForwardBatch batch = BuildBatch(pieces, step.get());
  step->pieces = std::move(pieces);
  step->tap_layers = batch.tap_layers;
  step->num_rows = batch.num_rows();
  num_step_rows_ = step->num_rows;
  step->num_running = scheduler_.num_running();
  step->num_waiting = scheduler_.num_waiting();
  step->start_s = NowSeconds();
  SetInFlight(*step, true);
  if (decoder_.num_stages() > 1) {
    decoder_.LaunchForward(context_, cache_, batch);
  } else {
    rows_.device_draws().LaunchForward(cache_, batch, step.get());
  }
  step->forward_seconds = NowSeconds() - step->start_s;
  return step;
}

ForwardBatch StepLoop::BuildBatch(const std::vector<ScheduledPiece>& pieces, LaunchedStep* step) {
  BatchBuilder builder(cache_.groups().groups().size());
  std::vector<LogitsRow>* rows = &step->rows;
  for (const ScheduledPiece& piece : pieces) {
    step->piece_rows.push_back(builder.batch().num_rows());
    if (piece.num_new + piece.num_drafted > 0) step->segments.push_back(piece.sequence);
    AddPiece(piece, &builder, rows);
  }
  FillMasks(context_, decoder_.spec().vocab_size, rows);
  for (LogitsRow& row : *rows) row.plan = PlanRow(row, rows_.site());
  AddCompanions(pieces, &builder, step);
  return builder.Take();
}

void StepLoop::AddPiece(const ScheduledPiece& piece, BatchBuilder* builder, std::vector<LogitsRow>* rows) {
  Sample* sample = piece.sequence->owner;
  const KvSequence& kv = piece.sequence->kv;
  Running* running = sample->running;
  // A finished row of a static batch is computed up to its logits, as static batches do, and not used. Its request may be gone.
  const bool finished = sample->finished;
  const ContrastRecord* contrast = finished ? nullptr : sample->drafting.contrast();
  const bool scores_prompt = !finished && running->request->params.num_prompt_logprobs >= 0 && sample->index == 0;
  if (piece.num_new + piece.num_drafted > 0) builder->BeginSegment(kv);
  for (int64_t i = 0; i < piece.num_new; ++i) {
    const int64_t position = kv.num_tokens + i;
    const bool last = finished ? i + 1 == piece.num_new : position + 1 == piece.sequence->num_tokens;
    // A prompt row is scored once: after a preemption some rows, or all, have their scores already.
    const bool scores =
        scores_prompt && position + 1 < running->prompt_len() && position >= static_cast<int64_t>(running->request->prompt_logprobs.size());
    const bool keeps_hidden = contrast != nullptr && position >= contrast->rows.size();
    // After a preemption the candidates that follow the last token are known.
    const bool draws = last && (contrast == nullptr || sample->walk.draft().size() == 0);
    const bool wanted = draws || scores || keeps_hidden;
    builder->AddToken(sample->tokens[static_cast<size_t>(position)], wanted);
    if (wanted) rows->push_back({sample, position, kWalkRoot, draws});
  }
  if (finished) return;
  builder->KeepLayers(sample->drafting.hidden().layers());
  builder->AddTaps(running->request->params.dola_layers);
  requests_.NoteScheduled(*running->request);
  if (kv.num_tokens < running->prompt_len()) num_prompt_tokens_ += piece.num_new;
  const int64_t first_node = builder->batch().num_rows();
  builder->AddDraft(sample->walk.draft());
  if (piece.num_new + piece.num_drafted > 0) builder->Steer(running->request->steering.get());
  for (int64_t i = 0; i < sample->walk.draft().size(); ++i) {
    rows->push_back({sample, builder->batch().positions[static_cast<size_t>(first_node + i)], static_cast<int32_t>(i), true});
  }
}

// The companions' rows follow all others, so that the wanted ones before them are `rows`.
void StepLoop::AddCompanions(const std::vector<ScheduledPiece>& pieces, BatchBuilder* builder, LaunchedStep* step) {
  auto next = static_cast<int32_t>(step->rows.size());
  for (LogitsRow& row : step->rows) {
    if (row.draws && !row.sample->finished && row.sample->companion != nullptr) row.companion = next++;
  }
  for (const ScheduledPiece& piece : pieces) {
    if (piece.num_companion == 0) continue;
    const Sample& sample = *piece.sequence->owner;
    const std::vector<int32_t>& tokens = sample.companion->tokens;
    const KvSequence& kv = sample.companion->scheduled.kv;
    step->segments.push_back(&sample.companion->scheduled);
    builder->BeginSegment(kv);
    for (int64_t i = 0; i < piece.num_companion; ++i) {
      const int64_t position = kv.num_tokens + i;
      const bool last = position + 1 == sample.companion->scheduled.num_tokens;
      builder->AddToken(tokens[static_cast<size_t>(position)], last && !sample.finished);
    }
    if (!sample.finished && kv.num_tokens < static_cast<int64_t>(sample.request().negative_token_ids.size())) {
      num_prompt_tokens_ += piece.num_companion;
    }
    builder->AddDraft(sample.walk.draft());
    if (!sample.finished) builder->Steer(sample.request().steering.get());
  }
}

void StepLoop::Count(EngineStats* stats) {
  stats->num_steps = num_steps_;
  stats->num_step_rows = num_step_rows_;
  stats->num_prompt_tokens = num_prompt_tokens_;
  stats->num_generated_tokens = rows_.num_generated_tokens();
  stats->num_device_draws = rows_.device_draws().num_draws();
  stats->num_steps_ahead = ahead_.num_launched();
  stats->num_small_heads = rows_.heads().num_small();
  stats->num_skipped_heads = rows_.heads().num_skipped();
  stats->hook_time_s = rows_.hook_seconds();
  stats->num_forwards = decoder_.work().num_forwards;
  stats->num_forward_rows = decoder_.work().num_rows;
  stats->stages_busy_s = decoder_.stages_busy_s();
}

}  // namespace llmi
