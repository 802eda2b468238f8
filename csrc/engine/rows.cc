// From rows of logits to tokens: head, processors, law, draw; prompt scores; judges.
#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include "core/errors.h"
#include "core/thread_pool.h"
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

}  // namespace

void Engine::ProcessRows(const std::vector<LogitsRow>& rows, const ForwardResult& result) {
  const int64_t vocab_size = decoder_->config().vocab_size;
  const int64_t hidden_size = decoder_->config().hidden_size;
  const auto num_rows = static_cast<int64_t>(rows.size());
  const int64_t chunk = std::max<int64_t>(1, std::min(kMaxLogitsRows, kMaxLogitsFloats / vocab_size));
  logits_.resize(static_cast<size_t>(std::min(chunk, num_rows) * vocab_size));
  for (int64_t begin = 0; begin < num_rows; begin += chunk) {
    const int64_t count = std::min(chunk, num_rows - begin);
    decoder_->LmHead(context_, result.hidden.data() + begin * hidden_size, count, logits_.data());
    const auto chunk_rows = std::span(rows).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    if (config_.batch_hook != nullptr) ProcessBatch(chunk_rows, logits_.data());
    PrepareRows(chunk_rows, logits_.data());
    for (int64_t i = 0; i < count; ++i) {
      const LogitsRow& row = rows[static_cast<size_t>(begin + i)];
      if (row.sample->finished) continue;  // ended at an earlier row of this step, or waits for its static batch to end
      Running& running = *row.sample->running;
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

// Rows that nothing but their own history decides are drawn beside each other, a row a thread, before the walk comes by. Their
// bits are those that the walk would have drawn: each op gives the same bits for any number of threads.
void Engine::PrepareRows(std::span<const LogitsRow> rows, const float* logits) {
  prepared_rows_.clear();
  std::vector<std::pair<PreparedRow*, size_t>> plain;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Sample& sample = *rows[i].sample;
    if (sample.finished) continue;
    const Request& request = *sample.running->request;
    const bool has_hooks = request.hooks != nullptr && (request.hooks->HasProcessors() || request.hooks->HasSampler());
    const bool is_judged = sample.draft.size() > 0 && request.speculation->verification != VerificationKind::kCoupled;
    if (!rows[i].draws || rows[i].node != kWalkRoot || has_hooks || is_judged || request.trace) continue;
    if (request.params.max_tokens > 0) plain.emplace_back(&prepared_rows_[&sample], i);
  }
  if (plain.size() < 2) {
    prepared_rows_.clear();
    return;
  }
  const int64_t vocab_size = decoder_->config().vocab_size;
  const KernelContext alone = {context_.table, context_.pool, 1};
  context_.pool->ParallelFor(static_cast<int64_t>(plain.size()), context_.num_threads, [&](int64_t task) {
    auto& [prepared, index] = plain[static_cast<size_t>(task)];
    const Sample& sample = *rows[index].sample;
    const float* raw = logits + static_cast<int64_t>(index) * vocab_size;
    try {
      prepared->law.assign(raw, raw + vocab_size);
      ProcessLogits(alone, sample.running->request->params, {sample.tokens, sample.running->prompt_len()}, nullptr, prepared->law.data(),
                    vocab_size);
      prepared->token =
          DrawToken(alone, sample.running->request->params, static_cast<int64_t>(sample.tokens.size()), sample.index, prepared->law);
    } catch (...) {
      prepared->error = std::current_exception();
    }
  });
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
    if (sample.finished) continue;
    Running& running = *sample.running;
    const Request& request = *running.request;
    if (!rows[i].draws || rows[i].node != kWalkRoot || IsJudged(rows[i]) || request.params.max_tokens == 0 || request.hooks == nullptr) {
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
  const auto prepared = prepared_rows_.find(&sample);
  const bool is_prepared = prepared != prepared_rows_.end();
  int32_t token = 0;
  if (is_prepared) {
    if (prepared->second.error) std::rethrow_exception(prepared->second.error);
    law_.swap(prepared->second.law);
    token = prepared->second.token;
    prepared_rows_.erase(prepared);
  } else {
    law_.assign(raw, raw + vocab_size);
  }
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
  if (!is_prepared) {
    ProcessLogits(context_, params, {sample.tokens, running.prompt_len()}, process, law_.data(), vocab_size,
                  request.trace ? StageObserver() : nullptr);
  }
  int32_t child = kFindChild;
  if (is_prepared) {
    // Drawn already.
  } else if (sample.planned) {
    token = sample.planned->token;
    child = sample.planned->child;
  } else if (sample.draft.size() > 0 && request.speculation->verification == VerificationKind::kRule) {
    const RowVerdict verdict = VerifyByRule(running, sample);
    token = verdict.token;
    child = verdict.child;
  } else if (hooks != nullptr && hooks->HasSampler()) {
    const Stopwatch stopwatch(&hook_seconds_);
    token = hooks->Sample(hook_context, law_.data(), vocab_size);
  } else {
    token = DrawToken(context_, params, static_cast<int64_t>(sample.tokens.size()), sample.index, law_);
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

}  // namespace llmi
