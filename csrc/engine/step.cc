// One iteration: schedule, forward, process rows (rows.cc), commit, emit.
#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "engine/batch.h"
#include "engine/running.h"
#include "kernels/ops/vocab.h"
#include "sampling/law.h"

namespace llmi {
namespace {

bool Holds(const std::vector<int32_t>& ids, int32_t id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

}  // namespace

void Engine::RunStep() {
  std::unique_ptr<LaunchedStep> step = TakeAhead();
  if (step == nullptr) step = LaunchStep();
  if (step == nullptr) return;
  scheduler_->Commit(step->pieces);
  ProcessRows(step.get());
  KeepHiddenStates(step->rows, step->tap_layers, step->result);
  LearnStepTime(step->pieces, step->num_rows, NowSeconds() - step->start_s);
  EndWalks(step->pieces, step->forward_seconds, step->num_rows);
  scheduler_->EndStep();
  ReleaseEndedRows();
}

// Null: there is nothing to do.
std::unique_ptr<Engine::LaunchedStep> Engine::LaunchStep() {
  SetPolicyKeys();
  ProposeWholeDrafts();
  std::vector<ScheduledPiece> pieces = scheduler_->Schedule(PromptBudget());
  if (pieces.empty()) {
    // Only a static batch whose rows have all ended, or hold the pages that others wait for, may come here: it ends now.
    scheduler_->EndStep();
    ReleaseEndedRows();
    if (++num_empty_steps_ > 2) throw Error(ErrorKind::kInternal, "work is queued but nothing can be scheduled");
    return nullptr;
  }
  num_empty_steps_ = 0;
  ProposeDrafts(&pieces);
  if (pieces.empty()) return nullptr;  // every request of the step failed in its drafter
  auto step = std::make_unique<LaunchedStep>();
  const ForwardBatch batch = BuildBatch(pieces, &step->rows);
  step->pieces = std::move(pieces);
  step->tap_layers = batch.tap_layers;
  step->num_rows = batch.num_rows();
  step->num_running = scheduler_->num_running();
  step->num_waiting = scheduler_->num_waiting();
  step->start_s = NowSeconds();
  step->result = decoder_->Forward(context_, *cache_, batch);
  step->forward_seconds = NowSeconds() - step->start_s;
  return step;
}

ForwardBatch Engine::BuildBatch(const std::vector<ScheduledPiece>& pieces, std::vector<LogitsRow>* rows) {
  BatchBuilder builder(cache_->groups().groups().size());
  const double now = NowSeconds();
  int64_t prompt_tokens = 0;
  for (const ScheduledPiece& piece : pieces) {
    auto* sample = static_cast<Sample*>(piece.sequence->owner);
    const KvSequence& kv = piece.sequence->kv;
    Running* running = sample->running;
    // The row of a static batch that has finished is computed up to its logits, as such batches do, and not used. Its request may be gone.
    const bool finished = sample->finished;
    const bool scores_prompt = !finished && running->request->params.num_prompt_logprobs >= 0 && sample->index == 0;
    builder.BeginSegment(kv);
    for (int64_t i = 0; i < piece.num_new; ++i) {
      const int64_t position = kv.num_tokens + i;
      const bool last = finished ? i + 1 == piece.num_new : position + 1 == piece.sequence->num_tokens;
      // Prompt rows that have no score yet; after a preemption some, or all, may have theirs.
      const bool scores = scores_prompt && position + 1 < running->prompt_len() &&
                          position >= static_cast<int64_t>(running->request->prompt_logprobs.size());
      builder.AddToken(sample->tokens[static_cast<size_t>(position)], last || scores);
      if (last || scores) rows->push_back({sample, position, kWalkRoot, last});
    }
    if (finished) continue;
    if (running->request->speculation) builder.AddTaps(running->request->speculation->drafter->hidden_layers());
    if (running->request->first_scheduled_time_s == 0) running->request->first_scheduled_time_s = now;
    if (kv.num_tokens < running->prompt_len()) prompt_tokens += piece.num_new;
    const int64_t first_node = builder.batch().num_rows();
    builder.AddDraft(sample->draft);
    for (int64_t i = 0; i < sample->draft.size(); ++i) {
      rows->push_back({sample, builder.batch().positions[static_cast<size_t>(first_node + i)], static_cast<int32_t>(i), true});
    }
  }
  stats_.num_prompt_tokens += prompt_tokens;
  return builder.Take();
}

void Engine::AfterToken(Running& running, Sample& sample, int32_t token, int32_t child, const float* raw) {
  Request& request = *running.request;
  const SamplingParams& params = request.params;
  SampleOutput& output = running.output(sample);
  const double now = sample.emit_time_s;
  if (request.first_token_time_s == 0) request.first_token_time_s = now;
  sample.tokens.push_back(token);
  sample.scheduled.num_tokens = static_cast<int64_t>(sample.tokens.size());
  --sample.scheduled.max_new_tokens;
  output.token_ids.push_back(token);
  output.token_times_s.push_back(now);
  ++stats_.num_generated_tokens;
  const auto num_output = static_cast<int64_t>(output.token_ids.size());
  const bool is_eos = !params.ignore_eos && Holds(params.eos_token_ids, token);
  const bool is_stop_id = Holds(params.stop_token_ids, token);
  if (num_output >= params.min_tokens && (is_eos || is_stop_id)) {
    if (is_stop_id) output.stop_reason = token;
    if (params.detokenize && params.include_stop_str_in_output) sample.detokenizer.Push(token, false);
    FinishSample(running, sample, FinishReason::kStop);
    return;
  }
  if (params.detokenize) {
    sample.detokenizer.Push(token, num_output >= params.min_tokens);
    if (sample.detokenizer.stopped_by()) {
      output.stop_reason = *sample.detokenizer.stopped_by();
      FinishSample(running, sample, FinishReason::kStop);
      return;
    }
  }
  if (request.hooks != nullptr && request.hooks->HasCriteria()) {
    const HookContext context = sample.hook_context();
    const Stopwatch stopwatch(&hook_seconds_);
    if (const auto reason = request.hooks->ShouldStop(context, raw, decoder_->config().vocab_size)) {
      if (!reason->empty()) output.stop_reason = *reason;
      FinishSample(running, sample, FinishReason::kStop);
      return;
    }
  }
  if (num_output >= params.max_tokens) {
    FinishSample(running, sample, FinishReason::kLength);
    return;
  }
  WalkOn(sample, child);
}

void Engine::FinishSample(Running& running, Sample& sample, FinishReason reason) {
  if (sample.finished) return;
  SampleOutput& output = running.output(sample);
  sample.finished = true;
  sample.detokenizer.Finish();
  output.text = sample.detokenizer.text();
  output.finish_reason = reason;
  running.request->num_preemptions += sample.scheduled.num_preemptions;
  if (sample.index == 0) running.request->num_cached_tokens += sample.scheduled.num_cached;
  const bool keeps_row = config_.scheduler.policy == SchedulingPolicy::kStatic && scheduler_->num_running() > 1 &&
                         reason != FinishReason::kAbort && sample.scheduled.kv.num_tokens > 0;
  sample.scheduled.finished = true;
  sample.scheduled.num_drafted = 0;
  if (keeps_row) {
    sample.scheduled.num_tokens = sample.scheduled.kv.num_tokens;
  } else {
    scheduler_->Remove(&sample.scheduled);
    cache_->Free(&sample.scheduled.kv);
  }
  // Samples that never started have no cache; freeing an empty one is harmless.
  if (++running.num_finished == static_cast<int64_t>(running.samples.size())) done_.push_back(running.request->id);
}

void Engine::FailRequest(Running& running, const Error& error) {
  // Whoever interrupts a hook ends its request: it is an aborted one, not one that failed, unless the engine closes.
  const bool aborted = error.kind() == ErrorKind::kInterrupted && !inbox_.IsClosing();
  if (!aborted) running.request->error = error.kind() == ErrorKind::kInterrupted ? Inbox::ClosedUnderWay() : error;
  for (auto& sample : running.samples) FinishSample(running, *sample, aborted ? FinishReason::kAbort : FinishReason::kError);
}

void Engine::FinishRequest(uint64_t id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Running& running = *found->second;
  running.request->finish_time_s = NowSeconds();
  for (auto& sample : running.samples) {
    if (ahead_ != nullptr || scheduler_->Contains(&sample->scheduled)) ended_rows_.push_back(std::move(sample));
  }
  OutputEvent event;
  event.request = running.request;
  event.finished = true;
  const std::shared_ptr<OutputChannel> channel = running.channel;
  requests_.erase(found);
  ++stats_.num_finished_requests;
  board_.Publish(stats_);
  channel->Push(std::move(event));
}

void Engine::ReleaseEndedRows() {
  std::erase_if(ended_rows_, [&](const std::unique_ptr<Sample>& row) {
    if (scheduler_->Contains(&row->scheduled)) return false;
    cache_->Free(&row->scheduled.kv);
    return true;
  });
  for (auto& [id, running] : requests_) {
    for (auto& sample : running->samples) {
      if (sample->finished && sample->scheduled.kv.num_tokens > 0 && !scheduler_->Contains(&sample->scheduled))
        cache_->Free(&sample->scheduled.kv);
    }
  }
}

void Engine::EmitStreams() {
  for (auto& [id, running] : requests_) {
    if (!running->request->stream) continue;
    for (auto& sample : running->samples) {
      const SampleOutput& output = running->output(*sample);
      const bool news = output.token_ids.size() > sample->num_streamed_tokens || (sample->finished && !sample->finish_streamed);
      if (!news) continue;
      OutputEvent event;
      event.request = running->request;
      event.sample_index = sample->index;
      event.token_ids.assign(output.token_ids.begin() + static_cast<int64_t>(sample->num_streamed_tokens), output.token_ids.end());
      if (!output.logprobs.empty()) {
        event.logprobs.assign(output.logprobs.begin() + static_cast<int64_t>(sample->num_streamed_tokens), output.logprobs.end());
      }
      event.text = sample->detokenizer.TakeEmittable();
      event.finish_reason = output.finish_reason;
      sample->num_streamed_tokens = output.token_ids.size();
      sample->finish_streamed = sample->finished;
      running->channel->Push(std::move(event));
    }
  }
}

}  // namespace llmi
