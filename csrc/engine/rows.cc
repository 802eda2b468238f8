// From rows of logits to tokens: head, processors, law, draw; prompt scores; judges.
#include <algorithm>
#include <exception>
#include <set>
#include <span>
#include <utility>

#include "core/errors.h"
#include "core/thread_pool.h"
#include "engine/clock.h"
#include "engine/drafting/walk.h"
#include "engine/engine.h"
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

void Engine::ProcessRows(LaunchedStep* step) {
  const std::vector<LogitsRow>& rows = step->rows;
  const int64_t vocab_size = decoder_->config().vocab_size;
  const int64_t hidden_size = decoder_->config().hidden_size;
  const auto num_rows = static_cast<int64_t>(rows.size());
  const int64_t chunk = LogitsRowsAtOnce(vocab_size, context_.device != nullptr);
  for (int64_t begin = 0; begin < num_rows; begin += chunk) {
    const int64_t count = std::min(chunk, num_rows - begin);
    const auto chunk_rows = std::span(rows).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    const float* hidden = step->result.hidden + begin * hidden_size;
    if (context_.device == nullptr) {
      logits_.resize(std::max(logits_.size(), static_cast<size_t>(count * vocab_size)));
      decoder_->LmHead(context_, hidden, count, logits_.data());
    } else {
      if (!step->draws || begin > 0) step->draws = LaunchDraws(chunk_rows, hidden);
      if (MayRunAhead(*step)) LaunchAhead(*step);
      TakeDraws(chunk_rows, hidden, *step->draws);
    }
    if (config_.batch_hook != nullptr) ProcessBatch(chunk_rows, logits_.data());
    PrepareRows(chunk_rows, logits_.data());
    for (int64_t i = 0; i < count; ++i) {
      const LogitsRow& row = rows[static_cast<size_t>(begin + i)];
      if (row.sample->finished) continue;  // ended at an earlier row of this step, or waits for its static batch to end
      Running& running = *row.sample->running;
      const bool judged = IsJudged(row);
      if (row.draws && !judged && row.node != row.sample->walk) continue;  // the walk does not come by
      const RowVerdict drawn = DrawnThere(static_cast<size_t>(i));
      const float* raw = drawn.token == kNoToken ? logits_.data() + i * vocab_size : nullptr;
      try {
        if (judged) {
          JudgeRow(running, *row.sample, row.node, raw);
        } else if (!row.draws) {
          ProcessPromptRow(running, row.position, raw);
          const bool all_scored = row.position + 2 == running.prompt_len();
          row.sample->scheduled.first_wanted_row = all_scored ? INT64_MAX : row.position + 1;
        } else if (running.request->params.max_tokens == 0) {
          const bool scores = running.request->params.num_prompt_logprobs >= 0 && row.position + 1 < running.prompt_len();
          if (scores) ProcessPromptRow(running, row.position, raw);
          requests_->Finish(*row.sample, FinishReason::kLength);
        } else {
          if (row.node == kWalkRoot) row.sample->emit_time_s = NowSeconds();
          if (!running.samples[0]->started) StartSiblings(running, raw);
          SampleToken(running, *row.sample, raw, drawn);
        }
      } catch (const Error& error) {
        requests_->Fail(running, error);
      }
    }
  }
}

bool Engine::IsJudged(const LogitsRow& row) {
  return row.draws && row.sample->draft.size() > 0 && row.sample->running->request->speculation->verification == VerificationKind::kJudge;
}

// Rows that nothing but their own history and processors decide are drawn beside each other, a row a thread, or one alone by all
// threads, before the walk comes by; the processors run one after the other in between. Their bits are those that the walk would
// have drawn: each op gives the same bits for any number of threads.
void Engine::PrepareRows(std::span<const LogitsRow> rows, float* logits) {
  for (auto& [sample, prepared] : prepared_rows_) {
    if (!prepared.copy.empty()) spare_laws_.push_back(std::move(prepared.copy));
  }
  prepared_rows_.clear();
  const int64_t vocab_size = decoder_->config().vocab_size;
  std::vector<std::pair<PreparedRow*, size_t>> ahead;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Sample& sample = *rows[i].sample;
    if (sample.finished) continue;
    const Request& request = *sample.running->request;
    const bool has_sampler = request.hooks != nullptr && request.hooks->HasSampler();
    // Siblings that start in this step draw before their leader, and take over its processors' state as it is then.
    const bool has_siblings_to_start = !sample.started && sample.running->samples.size() > 1;
    if (has_siblings_to_start && request.hooks != nullptr && request.hooks->HasProcessors()) continue;
    const bool is_judged = sample.draft.size() > 0 && request.speculation->verification != VerificationKind::kCoupled;
    if (!rows[i].draws || rows[i].node != kWalkRoot || has_sampler || is_judged || request.trace) continue;
    if (DrawnThere(i).token != kNoToken) continue;
    if (request.params.max_tokens == 0) continue;
    PreparedRow& prepared = prepared_rows_[&sample];
    ahead.emplace_back(&prepared, i);
    const bool keeps_logits =
        request.params.num_logprobs >= 0 || request.hooks != nullptr || has_siblings_to_start || !sample.draft_logprobs.empty();
    prepared.law = keeps_logits ? nullptr : logits + static_cast<int64_t>(i) * vocab_size;
  }
  if (ahead.empty()) return;
  for (const auto& [prepared, index] : ahead) {
    if (spare_laws_.empty()) break;
    if (prepared->law != nullptr) continue;
    prepared->copy = std::move(spare_laws_.back());  // memory that is mapped already
    spare_laws_.pop_back();
  }
  const KernelContext each = {context_.table, context_.pool, ahead.size() == 1 ? context_.num_threads : 1};
  const auto for_each_row = [&](const auto& body) {
    context_.pool->ParallelFor(static_cast<int64_t>(ahead.size()), context_.num_threads, [&](int64_t task) {
      auto& [prepared, index] = ahead[static_cast<size_t>(task)];
      if (prepared->error) return;
      const Sample& sample = *rows[index].sample;
      try {
        body(*prepared, index, sample, TokenHistory{sample.tokens, sample.running->prompt_len()});
      } catch (...) {
        prepared->error = std::current_exception();
      }
    });
  };
  for_each_row([&](PreparedRow& prepared, size_t index, const Sample& sample, const TokenHistory& history) {
    if (prepared.law == nullptr) {
      prepared.copy.resize(static_cast<size_t>(vocab_size));
      prepared.law = prepared.copy.data();
      if (batched_rows_.contains(&sample)) return;  // penalised, and seen by the engine-wide processors
      std::copy_n(logits + static_cast<int64_t>(index) * vocab_size, vocab_size, prepared.law);
    }
    PenaliseLogits(each, sample.running->request->params, history, prepared.law, vocab_size);
  });
  ProcessAhead(rows, ahead);
  for_each_row([&](PreparedRow& prepared, size_t, const Sample& sample, const TokenHistory& history) {
    const SamplingParams& params = sample.running->request->params;
    FilterLogits(each, params, history, prepared.law, vocab_size);
    const std::span law(prepared.law, static_cast<size_t>(vocab_size));
    prepared.token = DrawToken(each, params, static_cast<int64_t>(sample.tokens.size()), sample.index, law);
  });
}

// The processors of rows that are drawn ahead, in the rows' order. After an error no other of its request's is called.
void Engine::ProcessAhead(std::span<const LogitsRow> rows, const std::vector<std::pair<PreparedRow*, size_t>>& ahead) {
  std::set<const Running*> failed;
  for (const auto& [prepared, index] : ahead) {
    const Sample& sample = *rows[index].sample;
    const Running& running = *sample.running;
    if (running.request->hooks == nullptr || !running.request->hooks->HasProcessors() || prepared->error) continue;
    if (failed.contains(&running)) continue;
    try {
      RunProcessors(sample, prepared->law);
    } catch (...) {
      prepared->error = std::current_exception();
      failed.insert(&running);
    }
  }
}

// A row's processors; what the engine-wide ones have made of it already takes the place of `logits`.
void Engine::RunProcessors(const Sample& sample, float* logits) {
  const int64_t vocab_size = decoder_->config().vocab_size;
  RequestHooks& hooks = *sample.running->request->hooks;
  HookContext context = sample.hook_context();
  if (const auto batched = batched_rows_.find(&sample); batched != batched_rows_.end()) {
    std::copy_n(batched->second, vocab_size, logits);
    batched_rows_.erase(batched);
    context.batched = true;
    if (!hooks.HasOwnProcessors()) return;
  }
  const Stopwatch stopwatch(&hook_seconds_);
  hooks.ProcessLogits(context, logits, vocab_size);
}

// Engine-wide processors see the rows that come first in their sequences together; later rows of a walk, and those of
// siblings that start, depend on tokens that are not drawn yet and come alone.
void Engine::ProcessBatch(std::span<const LogitsRow> rows, const float* logits) {
  const auto vocab_size = static_cast<size_t>(decoder_->config().vocab_size);
  batched_rows_.clear();
  std::vector<size_t> places;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Sample& sample = *rows[i].sample;
    if (sample.finished || !rows[i].draws || rows[i].node != kWalkRoot || IsJudged(rows[i])) continue;
    const Request& request = *sample.running->request;
    if (request.params.max_tokens > 0 && request.hooks != nullptr) places.push_back(i);
  }
  batch_matrix_.resize(std::max(batch_matrix_.size(), places.size() * vocab_size));
  std::vector<std::exception_ptr> errors(places.size());
  const KernelContext alone = {context_.table, context_.pool, 1};
  context_.pool->ParallelFor(static_cast<int64_t>(places.size()), context_.num_threads, [&](int64_t task) {
    const auto row = static_cast<size_t>(task);
    const Sample& sample = *rows[places[row]].sample;
    float* law = batch_matrix_.data() + row * vocab_size;
    std::copy_n(logits + places[row] * vocab_size, vocab_size, law);
    try {
      PenaliseLogits(alone, sample.running->request->params, {sample.tokens, sample.running->prompt_len()}, law,
                     static_cast<int64_t>(vocab_size));
    } catch (...) {
      errors[row] = std::current_exception();
    }
  });
  std::vector<BatchHook::Row> batch;
  std::vector<Sample*> samples;
  for (size_t i = 0; i < places.size(); ++i) {
    Sample& sample = *rows[places[i]].sample;
    Running& running = *sample.running;
    try {
      if (errors[i]) std::rethrow_exception(errors[i]);
    } catch (const Error& error) {
      requests_->Fail(running, error);
    }
    if (sample.finished) continue;
    if (batch.size() < i) std::copy_n(batch_matrix_.data() + i * vocab_size, vocab_size, batch_matrix_.data() + batch.size() * vocab_size);
    samples.push_back(&sample);
    batch.push_back({running.request->hooks.get(), sample.hook_context(), {}});
  }
  if (batch.empty()) return;
  {
    const Stopwatch stopwatch(&hook_seconds_);
    config_.batch_hook->Apply(batch, batch_matrix_.data(), static_cast<int64_t>(vocab_size));
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].error) {
      requests_->Fail(*samples[i]->running, *batch[i].error);
    } else {
      batched_rows_[samples[i]] = batch_matrix_.data() + i * vocab_size;
    }
  }
}

void Engine::ProcessPromptRow(Running& running, int64_t position, const float* raw) {
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
      ComputeLogprobs(context_, raw, law_.data(), params.greedy(), vocab_size, next, params.num_prompt_logprobs));
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
    SampleToken(running, sample, raw, kNotDrawn);
  }
}

void Engine::SampleToken(Running& running, Sample& sample, const float* raw, const RowVerdict& drawn) {
  Request& request = *running.request;
  const SamplingParams& params = request.params;
  const int64_t vocab_size = decoder_->config().vocab_size;
  sample.drawn_at = sample.walk;
  if (drawn.token != kNoToken) {
    return AfterToken(sample, drawn.token, drawn.child == kFindChild ? ChildOfWalk(sample, drawn.token) : drawn.child, raw);
  }
  RequestHooks* hooks = request.hooks.get();
  const auto prepared = prepared_rows_.find(&sample);
  const bool is_prepared = prepared != prepared_rows_.end();
  int32_t token = 0;
  if (is_prepared) {
    if (prepared->second.error) std::rethrow_exception(prepared->second.error);
    token = prepared->second.token;
    if (!prepared->second.copy.empty()) {
      law_.swap(prepared->second.copy);
      spare_laws_.push_back(std::move(prepared->second.copy));
    }
    prepared_rows_.erase(prepared);
  } else {
    law_.assign(raw, raw + vocab_size);
    LogitsHook process;
    if (hooks != nullptr && hooks->HasProcessors()) process = [&](float* logits) { RunProcessors(sample, logits); };
    ProcessLogits(context_, params, {sample.tokens, running.prompt_len()}, process, law_.data(), vocab_size,
                  request.trace ? trace_.ObserveStages(vocab_size) : nullptr);
  }
  int32_t child = kFindChild;
  if (is_prepared) {
    // Drawn already.
  } else if (sample.planned) {
    token = sample.planned->token;
    child = sample.planned->child;
  } else if (!ChildrenToJudge(sample, sample.walk).empty()) {
    const RowVerdict verdict =
        VerifyLaw(context_, params, sample.noise_key(sample.round), law_, sample.draft, sample.walk, *request.speculation->rule);
    token = verdict.token;
    child = verdict.child;
  } else if (hooks != nullptr && hooks->HasSampler()) {
    const Stopwatch stopwatch(&hook_seconds_);
    token = hooks->Sample(sample.hook_context(), law_.data(), vocab_size);
  } else {
    token = DrawToken(context_, params, static_cast<int64_t>(sample.tokens.size()), sample.index, law_);
  }
  SampleOutput& output = running.output(sample);
  if (params.num_logprobs >= 0) {
    output.logprobs.push_back(ComputeLogprobs(context_, raw, law_.data(), params.greedy(), vocab_size, token, params.num_logprobs));
    output.cumulative_logprob += static_cast<double>(output.logprobs.back().logprobs[0]);
  }
  if (child == kFindChild) child = ChildOfWalk(sample, token);
  if (!sample.draft_logprobs.empty()) NoteDraftLogprobs(context_, law_, token, sample);
  if (request.trace) trace_.Record(sample, raw, law_, {token, child}, stats_.num_steps);
  AfterToken(sample, token, child, raw);
}

}  // namespace llmi
