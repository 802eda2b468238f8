#include "engine/rows/row_processor.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "engine/clock.h"
#include "engine/drafting/walk.h"
#include "engine/emit.h"
#include "engine/rows/judge.h"
#include "engine/sizing.h"
#include "engine/verification.h"
#include "kernels/ops/vocab.h"
#include "sampling/law.h"

namespace llmi {
namespace {

// The law is softmax of the raw logits.
bool IsNeutral(const SamplingParams& p) {
  return p.temperature == 1 && p.top_p == 1 && p.top_k == 0 && p.min_p == 0 && p.presence_penalty == 0 && p.frequency_penalty == 0 &&
         p.repetition_penalty == 1 && p.logit_bias.empty() && p.bad_words.empty() && p.allowed_token_ids.empty();
}

}  // namespace

RowProcessor::RowProcessor(const KernelContext& context, Decoder& decoder, KvCache& cache, Scheduler& scheduler, ActiveRequests& requests,
                           std::shared_ptr<BatchHook> batch_hook)
    : context_(context),
      decoder_(decoder),
      cache_(cache),
      scheduler_(scheduler),
      requests_(requests),
      logits_(decoder.config().vocab_size),
      device_draws_(context, decoder, logits_),
      processors_(context, std::move(batch_hook), requests, logits_.vocab_size()),
      prepared_(context, processors_, logits_.vocab_size()),
      trace_(context) {}

void RowProcessor::Process(LaunchedStep& step, int64_t step_index, StepAhead& ahead) {
  step_index_ = step_index;
  const auto num_rows = static_cast<int64_t>(step.rows.size());
  const int64_t chunk = LogitsRowsAtOnce(logits_.vocab_size(), context_.device != nullptr);
  for (int64_t begin = 0; begin < num_rows; begin += chunk) {
    const int64_t count = std::min(chunk, num_rows - begin);
    ProcessChunk(step, begin, std::span(step.rows).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), ahead);
  }
}

// rows: of the step, from row `begin` on.
void RowProcessor::ProcessChunk(LaunchedStep& step, int64_t begin, std::span<const LogitsRow> rows, StepAhead& ahead) {
  const float* hidden = step.result.hidden + begin * decoder_.config().hidden_size;
  if (context_.device == nullptr) {
    const auto count = static_cast<int64_t>(rows.size());
    logits_.Reserve(count);
    decoder_.LmHead(context_, hidden, count, logits_.Row(0));
  } else {
    if (!step.draws || begin > 0) step.draws = device_draws_.Launch(rows, hidden);
    ahead.LaunchAfter(step);
    ahead.TokensTaken(device_draws_.Take(rows, hidden, *step.draws));
  }
  processors_.RunBatch(rows, logits_.Row(0));
  prepared_.Prepare(rows, logits_.Row(0), device_draws_);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].sample->finished) continue;  // ended at an earlier row of this step, or waits for its static batch to end
    const RowVerdict drawn = device_draws_.Drawn(i);
    const float* raw = drawn.token == kNoToken ? logits_.Row(static_cast<int64_t>(i)) : nullptr;
    try {
      ProcessRow(rows[i], raw, drawn);
    } catch (const Error& error) {
      requests_.Fail(*rows[i].sample->running, error);
    }
  }
}

void RowProcessor::ProcessRow(const LogitsRow& row, const float* raw, const RowVerdict& drawn) {
  Sample& sample = *row.sample;
  Running& running = *sample.running;
  const bool judged = IsJudged(row);
  if (row.draws && !judged && row.node != row.sample->walk) return;  // the walk does not come by
  if (judged) {
    JudgeRow(sample, row.node, raw);
  } else if (!row.draws) {
    ScorePrompt(running, row.position, raw);
    const bool all_scored = row.position + 2 == running.prompt_len();
    sample.scheduled.first_wanted_row = all_scored ? INT64_MAX : row.position + 1;
  } else if (running.request->params.max_tokens == 0) {
    const bool scores = running.request->params.num_prompt_logprobs >= 0 && row.position + 1 < running.prompt_len();
    if (scores) ScorePrompt(running, row.position, raw);
    requests_.Finish(sample, FinishReason::kLength);
  } else {
    if (row.node == kWalkRoot) sample.emit_time_s = NowSeconds();
    if (!running.samples[0]->started) StartSiblings(running, raw);
    SampleToken(sample, raw, drawn);
  }
}

// The log-probability of the prompt token after `position`.
void RowProcessor::ScorePrompt(Running& running, int64_t position, const float* raw) {
  Request& request = *running.request;
  const int64_t vocab_size = logits_.vocab_size();
  const int32_t next = request.prompt_token_ids[static_cast<size_t>(position + 1)];
  if (IsNeutral(request.params)) {
    if (ArgMax(context_, raw, vocab_size) < 0)
      throw Error(ErrorKind::kNonFiniteLogits, "the model's logits hold NaN or infinity in the prompt");
    request.prompt_logprobs.push_back(ComputeLogprobs(context_, raw, raw, false, vocab_size, next, request.params.num_prompt_logprobs));
    return;
  }
  law_.assign(raw, raw + vocab_size);
  // The law at a prompt position: the same parameters, the prompt so far as history, no minimum length, no hooks.
  SamplingParams params = request.params;
  params.min_tokens = 0;
  const TokenHistory history = {std::span(request.prompt_token_ids).first(static_cast<size_t>(position + 1)), position + 1};
  ProcessLogits(context_, params, history, nullptr, law_.data(), vocab_size);
  request.prompt_logprobs.push_back(
      ComputeLogprobs(context_, raw, law_.data(), params.greedy(), vocab_size, next, params.num_prompt_logprobs));
}

// The other samples of the request fork from its first one and draw their first tokens from the same row.
void RowProcessor::StartSiblings(Running& running, const float* raw) {
  Sample& leader = *running.samples[0];
  leader.started = true;
  leader.scheduled.num_seats = 1;
  for (size_t i = 1; i < running.samples.size(); ++i) {
    Sample& sample = *running.samples[i];
    sample.started = true;
    cache_.Fork(leader.scheduled.kv, &sample.scheduled.kv);
    sample.scheduled.max_computed = sample.scheduled.kv.num_tokens;
    scheduler_.AddRunning(&sample.scheduled);
    sample.emit_time_s = leader.emit_time_s;
    SampleToken(sample, raw, kNotDrawn);
  }
}

// Keeps the row. After the last one of the draft its judge decides, and the tokens are emitted one by one as any others.
void RowProcessor::JudgeRow(Sample& sample, int32_t node, const float* raw) {
  const int64_t vocab_size = logits_.vocab_size();
  if (node == kWalkRoot) sample.judged_rows.clear();
  sample.judged_rows.insert(sample.judged_rows.end(), raw, raw + vocab_size);
  if (node + 1 < sample.draft.size()) return;
  sample.emit_time_s = NowSeconds();
  const DraftVerdict verdict = JudgeDraft(context_, sample, vocab_size);
  const std::vector<int32_t> drafted = sample.draft.token_ids;
  const std::vector<float> rows = std::exchange(sample.judged_rows, {});
  int32_t last = -1;
  for (size_t i = 0; i <= verdict.path.size() && !sample.finished; ++i) {
    const bool ends = i == verdict.path.size();
    const int32_t child = ends ? -1 : verdict.path[i];
    sample.planned = RowVerdict{ends ? verdict.next_token : drafted[static_cast<size_t>(child)], child};
    SampleToken(sample, rows.data() + static_cast<int64_t>(last + 1) * vocab_size, kNotDrawn);
    last = child;
  }
  sample.planned.reset();
}

// The token after a row, from law_, by whatever decides for this sample; the child is kFindChild where that is not known.
RowVerdict RowProcessor::Decide(Sample& sample, const float* raw) {
  const Request& request = sample.request();
  const SamplingParams& params = request.params;
  RequestHooks* hooks = request.hooks.get();
  const int64_t vocab_size = logits_.vocab_size();
  if (const std::optional<int32_t> token = prepared_.Take(sample, &law_)) return {*token, kFindChild};
  law_.assign(raw, raw + vocab_size);
  LogitsHook process;
  if (hooks != nullptr && hooks->HasProcessors()) process = [&](float* logits) { processors_.Run(sample, logits); };
  ProcessLogits(context_, params, {sample.tokens, sample.running->prompt_len()}, process, law_.data(), vocab_size,
                request.trace ? trace_.ObserveStages(vocab_size) : nullptr);
  if (sample.planned) return *sample.planned;
  if (!ChildrenToJudge(sample, sample.walk).empty()) {
    return VerifyLaw(context_, params, sample.noise_key(sample.round), law_, sample.draft, sample.walk, *request.speculation->rule);
  }
  if (hooks != nullptr && hooks->HasSampler()) {
    const Stopwatch stopwatch(processors_.seconds());
    return {hooks->Sample(sample.hook_context(), law_.data(), vocab_size), kFindChild};
  }
  return {DrawToken(context_, params, static_cast<int64_t>(sample.tokens.size()), sample.index, law_), kFindChild};
}

void RowProcessor::SampleToken(Sample& sample, const float* raw, const RowVerdict& drawn) {
  const Request& request = sample.request();
  const SamplingParams& params = request.params;
  sample.drawn_at = sample.walk;
  const bool on_host = drawn.token == kNoToken;
  RowVerdict verdict = on_host ? Decide(sample, raw) : drawn;
  if (on_host && params.num_logprobs >= 0) {
    SampleOutput& output = sample.output();
    output.logprobs.push_back(
        ComputeLogprobs(context_, raw, law_.data(), params.greedy(), logits_.vocab_size(), verdict.token, params.num_logprobs));
    output.cumulative_logprob += static_cast<double>(output.logprobs.back().logprobs[0]);
  }
  if (verdict.child == kFindChild) verdict.child = ChildOfWalk(sample, verdict.token);
  if (on_host && !sample.draft_logprobs.empty()) NoteDraftLogprobs(context_, law_, verdict.token, sample);
  if (on_host && request.trace) trace_.Record(sample, raw, law_, verdict, step_index_);
  AfterToken(sample, verdict.token, verdict.child, raw);
}

void RowProcessor::AfterToken(Sample& sample, int32_t token, int32_t child, const float* raw) {
  ++num_generated_tokens_;
  const std::span<const float> row(raw, raw == nullptr ? 0 : static_cast<size_t>(logits_.vocab_size()));
  if (const auto reason = TakeToken(sample, token, row, processors_.seconds())) {
    requests_.Finish(sample, *reason);
  } else {
    WalkOn(cache_, sample, child);
  }
}

}  // namespace llmi
