// One iteration: schedule, forward, process logits, sample, commit, emit.
#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "engine/running.h"
#include "kernels/vocab.h"
#include "sampling/law.h"

namespace llmi {
namespace {

// Rows of logits in memory at once: 8 of Gemma's 262,144 ids take 8 MB.
constexpr int64_t kMaxLogitsRows = 32;
constexpr int64_t kMaxLogitsFloats = int64_t{4} << 20;

// The law is softmax of the raw logits.
bool IsNeutral(const SamplingParams& p) {
  return p.temperature == 1 && p.top_p == 1 && p.top_k == 0 && p.min_p == 0 && p.presence_penalty == 0 && p.frequency_penalty == 0 &&
         p.repetition_penalty == 1 && p.logit_bias.empty() && p.bad_words.empty() && p.allowed_token_ids.empty();
}

bool Holds(const std::vector<int32_t>& ids, int32_t id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

}  // namespace

void Engine::RunStep() {
  SetPolicyKeys();
  std::vector<ScheduledPiece> pieces = scheduler_->Schedule(PromptBudget());
  if (pieces.empty()) {
    // Only a static batch whose rows have all ended, or hold the pages that others wait for, may come here: it ends now.
    scheduler_->EndStep();
    ReleaseStaticRows();
    if (++num_empty_steps_ > 2) throw Error(ErrorKind::kInternal, "work is queued but nothing can be scheduled");
    return;
  }
  num_empty_steps_ = 0;
  ProposeDrafts(&pieces);
  if (pieces.empty()) return;  // every request of the step failed in its drafter
  std::vector<LogitsRow> rows;
  const ForwardBatch batch = BuildBatch(pieces, &rows);
  const double start = NowSeconds();
  const ForwardResult result = decoder_->Forward(context_, *cache_, batch);
  const double forward_seconds = NowSeconds() - start;
  scheduler_->Commit(pieces);
  ProcessRows(rows, result);
  LearnStepTime(pieces, batch.num_rows(), NowSeconds() - start);
  EndWalks(pieces, forward_seconds, batch.num_rows());
  scheduler_->EndStep();
  ReleaseStaticRows();
}

void AppendDraft(const Draft& draft, int64_t num_before, int64_t last_position, ForwardBatch* batch) {
  if (draft.size() == 0) return;
  if (!draft.is_chain()) {
    std::vector<int32_t>& parents = batch->tree_parents.emplace_back();
    for (int64_t i = 0; i < num_before; ++i) parents.push_back(static_cast<int32_t>(i) - 1);
    for (int32_t parent : draft.parents) parents.push_back(static_cast<int32_t>(num_before) + parent);
    batch->segments.back().parents = parents.data();
  }
  for (int32_t depth : draft.Depths()) batch->positions.push_back(static_cast<int32_t>(last_position) + depth);
  for (int32_t token_id : draft.token_ids) {
    batch->wanted_rows.push_back(static_cast<int32_t>(batch->num_rows()));
    batch->token_ids.push_back(token_id);
  }
}

ForwardBatch Engine::BuildBatch(const std::vector<ScheduledPiece>& pieces, std::vector<LogitsRow>* rows) {
  ForwardBatch batch;
  batch.tables.resize(cache_->groups().groups().size());
  const double now = NowSeconds();
  int64_t prompt_tokens = 0;
  for (const ScheduledPiece& piece : pieces) {
    auto* sample = static_cast<Sample*>(piece.sequence->owner);
    const KvSequence& kv = piece.sequence->kv;
    const int64_t row_begin = batch.num_rows();
    const Draft& draft = sample->draft;
    batch.segments.push_back({row_begin, piece.num_new + draft.size(), kv.num_tokens, nullptr, nullptr});
    for (size_t g = 0; g < batch.tables.size(); ++g) batch.tables[g].push_back(kv.tables[g].data());
    for (int64_t i = 0; i < piece.num_new; ++i) {
      batch.token_ids.push_back(sample->tokens[static_cast<size_t>(kv.num_tokens + i)]);
      batch.positions.push_back(static_cast<int32_t>(kv.num_tokens + i));
    }
    if (sample->finished) continue;  // a static batch's row: computed, not looked at
    Running& running = *sample->running;
    if (running.request->first_scheduled_time_s == 0) running.request->first_scheduled_time_s = now;
    if (kv.num_tokens < running.prompt_len()) prompt_tokens += piece.num_new;
    const bool scores_prompt = running.request->params.num_prompt_logprobs >= 0 && sample->index == 0;
    for (int64_t i = 0; i < piece.num_new; ++i) {
      const int64_t position = kv.num_tokens + i;
      const bool last = position + 1 == piece.sequence->num_tokens;
      // Prompt rows that have no score yet; after a preemption some, or all, may have theirs.
      const bool scores =
          scores_prompt && position + 1 < running.prompt_len() && position >= static_cast<int64_t>(running.request->prompt_logprobs.size());
      if (!last && !scores) continue;
      batch.wanted_rows.push_back(static_cast<int32_t>(row_begin + i));
      rows->push_back({sample, position, kWalkRoot, last});
    }
    AppendDraft(draft, piece.num_new, kv.num_tokens + piece.num_new - 1, &batch);
    for (int64_t i = 0; i < draft.size(); ++i) {
      rows->push_back({sample, batch.positions[static_cast<size_t>(row_begin + piece.num_new + i)], static_cast<int32_t>(i), true});
    }
  }
  const std::lock_guard lock(mutex_);
  stats_.num_prompt_tokens += prompt_tokens;
  return batch;
}

void Engine::ProcessRows(const std::vector<LogitsRow>& rows, const ForwardResult& result) {
  const int64_t vocab_size = decoder_->config().vocab_size;
  const int64_t hidden_size = decoder_->config().hidden_size;
  const auto num_rows = static_cast<int64_t>(rows.size());
  const int64_t chunk = std::max<int64_t>(1, std::min(kMaxLogitsRows, kMaxLogitsFloats / vocab_size));
  logits_.resize(static_cast<size_t>(std::min(chunk, num_rows) * vocab_size));
  for (int64_t begin = 0; begin < num_rows; begin += chunk) {
    const int64_t count = std::min(chunk, num_rows - begin);
    decoder_->LmHead(context_, result.hidden.data() + begin * hidden_size, count, logits_.data());
    if (config_.batch_hook != nullptr)
      ProcessBatch(std::span(rows).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), logits_.data());
    for (int64_t i = 0; i < count; ++i) {
      const LogitsRow& row = rows[static_cast<size_t>(begin + i)];
      Running& running = *row.sample->running;
      if (row.sample->finished) continue;  // ended at an earlier row of this step
      const bool judged = IsJudged(row);
      if (row.draws && !judged && row.node != row.sample->walk) continue;  // the walk does not come by
      float* raw = logits_.data() + i * vocab_size;
      try {
        if (judged) {
          JudgeRow(running, *row.sample, row.node, raw);
        } else if (!row.draws) {
          ProcessPromptRow(running, row.position, raw);
          const bool all_scored = row.position + 2 == running.prompt_len();
          row.sample->scheduled.first_wanted_row = all_scored ? INT64_MAX : row.position + 1;
        } else if (running.request->params.max_tokens == 0) {
          FinishSample(running, *row.sample, FinishReason::kLength);
        } else {
          if (row.node == kWalkRoot) row.sample->emit_time_s = NowSeconds();
          if (!running.samples[0]->started) StartSiblings(running, raw);
          SampleToken(running, *row.sample, raw);
        }
      } catch (const Error& error) {
        FailRequest(running, error);
      }
    }
  }
}

bool Engine::IsJudged(const LogitsRow& row) {
  return row.draws && row.sample->draft.size() > 0 && row.sample->running->request->speculation->verification == VerificationKind::kJudge;
}

// Engine-wide processors see the rows that come first in their sequences together; later rows of a walk, and those of
// siblings that start, depend on tokens that are not drawn yet and come alone.
void Engine::ProcessBatch(std::span<const LogitsRow> rows, const float* logits) {
  const int64_t vocab_size = decoder_->config().vocab_size;
  batched_rows_.clear();
  std::vector<BatchHook::Row> batch;
  std::vector<Sample*> samples;
  std::vector<float> matrix;
  for (size_t i = 0; i < rows.size(); ++i) {
    Sample& sample = *rows[i].sample;
    Running& running = *sample.running;
    const Request& request = *running.request;
    if (!rows[i].draws || rows[i].node != kWalkRoot || sample.finished || IsJudged(rows[i]) || request.params.max_tokens == 0 ||
        request.hooks == nullptr) {
      continue;
    }
    std::vector<float> law(logits + static_cast<int64_t>(i) * vocab_size, logits + static_cast<int64_t>(i + 1) * vocab_size);
    try {
      PenaliseLogits(context_, request.params, {sample.tokens, running.prompt_len()}, law.data(), vocab_size);
    } catch (const Error& error) {
      FailRequest(running, error);
      continue;
    }
    matrix.insert(matrix.end(), law.begin(), law.end());
    samples.push_back(&sample);
    batch.push_back(
        {request.hooks.get(), {sample.index, sample.index, &sample.tokens, running.prompt_len(), &sample.detokenizer.text()}, {}});
  }
  if (batch.empty()) return;
  {
    const Stopwatch stopwatch(&hook_seconds_);
    config_.batch_hook->Apply(batch, matrix.data(), vocab_size);
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].error) {
      FailRequest(*samples[i]->running, *batch[i].error);
      continue;
    }
    const auto row = matrix.begin() + static_cast<int64_t>(i) * vocab_size;
    batched_rows_[samples[i]].assign(row, row + vocab_size);
  }
}

void Engine::ProcessPromptRow(Running& running, int64_t position, float* raw) {
  const Request& request = *running.request;
  const int64_t vocab_size = decoder_->config().vocab_size;
  const int32_t next = request.prompt_token_ids[static_cast<size_t>(position + 1)];
  if (IsNeutral(request.params)) {
    if (ArgMax(context_, raw, vocab_size) < 0)
      throw Error(ErrorKind::kNonFiniteLogits, "the model's logits hold NaN or infinity in the prompt");
    running.request->prompt_logprobs.push_back(
        ComputeLogprobs(context_, raw, raw, false, vocab_size, next, request.params.num_prompt_logprobs));
    return;
  }
  law_.assign(raw, raw + vocab_size);
  // The law at a prompt position: the same parameters, the prompt so far as history, no minimum length, no hooks.
  SamplingParams params = request.params;
  params.min_tokens = 0;
  const TokenHistory history = {std::span(request.prompt_token_ids).first(static_cast<size_t>(position + 1)), position + 1};
  ProcessLogits(context_, params, history, nullptr, law_.data(), vocab_size);
  running.request->prompt_logprobs.push_back(
      ComputeLogprobs(context_, raw, law_.data(), params.temperature == 0, vocab_size, next, params.num_prompt_logprobs));
}

void Engine::StartSiblings(Running& running, const float* raw) {
  Sample& leader = *running.samples[0];
  leader.started = true;
  leader.scheduled.num_seats = 1;
  for (size_t i = 1; i < running.samples.size(); ++i) {
    Sample& sample = *running.samples[i];
    sample.started = true;
    cache_->Fork(leader.scheduled.kv, &sample.scheduled.kv);
    sample.scheduled.max_computed = sample.scheduled.kv.num_tokens;
    scheduler_->AddRunning(&sample.scheduled);
    sample.emit_time_s = leader.emit_time_s;
    SampleToken(running, sample, raw);
  }
}

void Engine::SampleToken(Running& running, Sample& sample, const float* raw) {
  Request& request = *running.request;
  const SamplingParams& params = request.params;
  const int64_t vocab_size = decoder_->config().vocab_size;
  RequestHooks* hooks = request.hooks.get();
  HookContext hook_context = {sample.index, sample.index, &sample.tokens, running.prompt_len(), &sample.detokenizer.text()};
  law_.assign(raw, raw + vocab_size);
  LogitsHook process;
  if (hooks != nullptr && hooks->HasProcessors()) {
    process = [&](float* logits) {
      if (const auto batched = batched_rows_.find(&sample); batched != batched_rows_.end()) {
        std::copy(batched->second.begin(), batched->second.end(), logits);
        batched_rows_.erase(batched);
        hook_context.batched = true;
      }
      const Stopwatch stopwatch(&hook_seconds_);
      hooks->ProcessLogits(hook_context, logits, vocab_size);
    };
  }
  ProcessLogits(context_, params, {sample.tokens, running.prompt_len()}, process, law_.data(), vocab_size,
                request.trace ? StageObserver() : nullptr);
  int32_t token = 0;
  int32_t child = kFindChild;
  if (sample.planned) {
    token = sample.planned->token;
    child = sample.planned->child;
  } else if (sample.draft.size() > 0 && request.speculation->verification == VerificationKind::kRule) {
    const RowVerdict verdict = VerifyByRule(running, sample);
    token = verdict.token;
    child = verdict.child;
  } else if (hooks != nullptr && hooks->HasSampler()) {
    const Stopwatch stopwatch(&hook_seconds_);
    token = hooks->Sample(hook_context, law_.data(), vocab_size);
  } else if (params.temperature == 0) {
    token = static_cast<int32_t>(ArgMax(context_, law_.data(), vocab_size));
  } else {
    token = Draw(context_, {params.seed, static_cast<int64_t>(sample.tokens.size()), sample.index, 0, 0}, law_.data(), vocab_size);
  }
  SampleOutput& output = running.output(sample);
  if (params.num_logprobs >= 0) {
    output.logprobs.push_back(ComputeLogprobs(context_, raw, law_.data(), params.temperature == 0, vocab_size, token, params.num_logprobs));
    output.cumulative_logprob += static_cast<double>(output.logprobs.back().logprobs[0]);
  }
  if (child == kFindChild) child = sample.draft.size() == 0 ? kWalkRoot : sample.draft.Child(sample.walk, token);
  if (!sample.draft_logprobs.empty()) NoteDraftLogprobs(running, sample, token);
  if (request.trace) RecordTrace(running, sample, raw, token, child);
  AfterToken(running, sample, token, child, raw);
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
  {
    const std::lock_guard lock(mutex_);
    ++stats_.num_generated_tokens;
  }
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
    const HookContext context = {sample.index, sample.index, &sample.tokens, running.prompt_len(), &sample.detokenizer.text()};
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
  running.request->error = error;
  for (auto& sample : running.samples) FinishSample(running, *sample, FinishReason::kError);
}

void Engine::FinishRequest(uint64_t id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Running& running = *found->second;
  running.request->finish_time_s = NowSeconds();
  for (auto& sample : running.samples) {
    if (scheduler_->Contains(&sample->scheduled)) static_rows_.push_back(std::move(sample));
  }
  OutputEvent event;
  event.request = running.request;
  event.finished = true;
  const std::shared_ptr<OutputChannel> channel = running.channel;
  requests_.erase(found);
  {
    const std::lock_guard lock(mutex_);
    ++stats_.num_finished_requests;
  }
  channel->Push(std::move(event));
}

void Engine::ReleaseStaticRows() {
  std::erase_if(static_rows_, [&](const std::unique_ptr<Sample>& row) {
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
