#include "engine/rows/row_processor.h"

#include <algorithm>
#include <string>
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

// Adds the log-probabilities of a token to the sample's output. raw: the model's row; law: the one that the token comes from.
void AddLogprobs(const KernelContext& context, Sample& sample, const float* raw, const std::vector<float>& law, int32_t token) {
  const SamplingParams& params = sample.request().params;
  SampleOutput& output = sample.output();
  output.logprobs.push_back(ComputeLogprobs(context, raw, law.data(), params.has_point_law(), static_cast<int64_t>(law.size()), token,
                                            {params.num_logprobs, params.logprob_token_ids}));
  output.cumulative_logprob += static_cast<double>(output.logprobs.back().logprobs[0]);
}

// A token that user code chose: one that the constraint does not allow would end the text, or leave the language, without an error.
void CheckChoice(const Sample& sample, int32_t token, const char* chooser) {
  const std::span<const uint32_t> allowed = sample.history().allowed;
  if (allowed.empty() || ((allowed[static_cast<size_t>(token / 32)] >> (token % 32)) & 1u) != 0) return;
  throw Error(ErrorKind::kConstraint,
              std::string(chooser) + " chose token id " + std::to_string(token) + ", which structured_outputs does not allow at this place",
              "structured_outputs");
}

}  // namespace

RowProcessor::RowProcessor(const KernelContext& context, Decoder& decoder, KvCache& cache, Scheduler& scheduler, ActiveRequests& requests,
                           std::shared_ptr<BatchHook> batch_hook, bool small_heads)
    : context_(context),
      decoder_(decoder),
      cache_(cache),
      scheduler_(scheduler),
      requests_(requests),
      site_{context.device != nullptr, batch_hook != nullptr},
      combined_(context, decoder, small_heads),
      device_draws_(context, decoder, combined_.logits()),
      processors_(context, std::move(batch_hook), requests, combined_.logits().vocab_size()),
      prepared_(context, processors_, combined_.logits().vocab_size()),
      beams_(context, cache, scheduler, requests, processors_, combined_.logits().vocab_size()),
      trace_(context) {}

void RowProcessor::Process(LaunchedStep& step, int64_t step_index, StepAhead& ahead) {
  trace_.BeginStep(step_index);
  ChooseCandidates(context_, decoder_, requests_, &step);
  EmitCandidates(step.rows);
  const auto num_rows = static_cast<int64_t>(step.rows.size());
  const int64_t chunk = LogitsRowsAtOnce(combined_.logits().vocab_size(), context_.device != nullptr);
  for (int64_t begin = 0; begin < num_rows;) {
    int64_t count = 0;
    for (int64_t room = chunk; begin + count < num_rows && room > 0; ++count) {
      room -= CombinedRows::NumLogitsRows(step.rows[static_cast<size_t>(begin + count)]);
      if (room < 0 && count > 0) break;
    }
    ProcessChunk(step, begin, std::span(step.rows).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), ahead);
    begin += count;
  }
}

// rows: of the step, from row `begin` on.
void RowProcessor::ProcessChunk(LaunchedStep& step, int64_t begin, std::span<const LogitsRow> rows, StepAhead& ahead) {
  const float* hidden = step.result.hidden + begin * decoder_.spec().hidden_size;
  const int64_t num_behind = combined_.Begin(rows, begin);
  if (context_.device == nullptr) {
    combined_.ComputeHeads(hidden, rows, num_behind);
  } else {
    if (!step.draws || begin > 0) step.draws = device_draws_.Launch(rows, hidden);
    ahead.LaunchAfter(step);
    ahead.TokensTaken(device_draws_.Take(rows, hidden, *step.draws));
  }
  combined_.Combine(step, rows, begin, context_.device == nullptr && num_behind > 0);
  processors_.RunBatch(rows, combined_);
  prepared_.Prepare(rows, combined_.logits(), combined_, device_draws_);
  beams_.Prepare(rows, combined_.logits(), device_draws_);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].sample->finished) continue;  // ended at an earlier row of this step, or waits for its static batch to end
    const RowVerdict drawn = device_draws_.Drawn(i);
    const RowValues values = drawn.token == kNoToken ? combined_.Values(i) : RowValues();
    try {
      ProcessRow(rows[i], values, drawn);
    } catch (const Error& error) {
      requests_.Fail(*rows[i].sample->running, error);
    }
  }
}

void RowProcessor::ProcessRow(const LogitsRow& row, const RowValues& values, const RowVerdict& drawn) {
  Sample& sample = *row.sample;
  if (row.plan.keeps.prompt_score) ScorePrompt(row, values.raw);
  if (row.plan.decider == RowDecider::kNobody) {
    EndScore(row);
    return;
  }
  if (row.plan.decider == RowDecider::kBeams) {
    num_generated_tokens_ += beams_.Take(row, trace_.step());
    return;
  }
  if (row.plan.keeps.likeliest) LearnRow(row, {values.base, static_cast<size_t>(combined_.logits().vocab_size())});
  if (row.plan.decider == RowDecider::kJudge) {
    JudgeRow(row, values);
    return;
  }
  if (row.plan.decider == RowDecider::kContrast) {
    sample.started = true;
    TakeCandidates(row, values.raw);
    return;
  }
  if (row.node != sample.walk.node()) return;  // the walk does not reach this row
  if (row.node == kWalkRoot) sample.emit_time_s = NowSeconds();
  if (row.plan.readers.siblings) StartSiblings(row, values);
  sample.started = true;
  SampleToken(row, values, drawn);
}

// Called after a row that no token follows: the request continues with the next row of its prompt, or ends if that was the last.
void RowProcessor::EndScore(const LogitsRow& row) {
  Sample& sample = *row.sample;
  if (row.draws) {
    requests_.Finish(sample, FinishReason::kLength);
    return;
  }
  const bool all_scored = row.position + 2 == sample.running->prompt_len();
  sample.scheduled.first_wanted_row = all_scored ? INT64_MAX : row.position + 1;
}

// The log-probability of the prompt token after the row.
void RowProcessor::ScorePrompt(const LogitsRow& row, const float* raw) {
  Request& request = *row.sample->running->request;
  const int64_t vocab_size = combined_.logits().vocab_size();
  const int64_t position = row.position;
  const int32_t next = request.prompt_token_ids[static_cast<size_t>(position + 1)];
  if (!row.plan.edits.parameters) {
    if (ArgMax(context_, raw, vocab_size) < 0)
      throw Error(ErrorKind::kNonFiniteLogits, "the model's logits hold NaN or infinity in the prompt");
    request.prompt_logprobs.push_back(ComputeLogprobs(context_, raw, raw, false, vocab_size, next, {request.params.num_prompt_logprobs}));
    return;
  }
  law_.assign(raw, raw + vocab_size);
  // The law at a prompt position: the same parameters, the prompt so far as history, no minimum length, no hooks.
  SamplingParams params = request.params;
  params.min_tokens = 0;
  const TokenHistory history = {std::span(request.prompt_token_ids).first(static_cast<size_t>(position + 1)), position + 1};
  ProcessLogits(context_, params, history, nullptr, law_.data(), vocab_size);
  request.prompt_logprobs.push_back(
      ComputeLogprobs(context_, raw, law_.data(), params.has_point_law(), vocab_size, next, {params.num_prompt_logprobs}));
}

// The other samples of the request fork from its first one and draw their first tokens from the same row.
void RowProcessor::StartSiblings(const LogitsRow& row, const RowValues& values) {
  Sample& leader = *row.sample;
  Running& running = *leader.running;
  leader.scheduled.num_seats = leader.num_sequences();
  for (size_t i = 1; i < running.samples.size(); ++i) {
    Sample& sample = *running.samples[i];
    LogitsRow own = {&sample, row.position, kWalkRoot, true};
    own.plan = PlanRow(own, site_);
    sample.started = true;
    cache_.Fork(leader.scheduled.kv, &sample.scheduled.kv);
    sample.ForkCompanion(cache_, leader);
    sample.drafting.hidden().CopyFrom(context_, leader.drafting.hidden());
    sample.scheduled.first_streamed_row = leader.scheduled.first_streamed_row;
    if (sample.constraint != nullptr) sample.constraint->ShareRoot(*leader.constraint);
    sample.scheduled.num_seats = sample.num_sequences();
    sample.scheduled.max_computed = sample.scheduled.kv.num_tokens;
    scheduler_.AddRunning(&sample.scheduled);
    sample.emit_time_s = leader.emit_time_s;
    if (own.plan.keeps.likeliest) LearnRow(own, {values.base, static_cast<size_t>(combined_.logits().vocab_size())});
    SampleToken(own, values, kNotDrawn);
  }
}

// Keeps the row until the last one of its draft. Then the judge decides, and its tokens are emitted one by one, like any others.
void RowProcessor::JudgeRow(const LogitsRow& row, const RowValues& values) {
  Sample& sample = *row.sample;
  const int64_t vocab_size = combined_.logits().vocab_size();
  const Draft& draft = sample.walk.draft();
  if (row.node == kWalkRoot) judged_ = {};
  judged_.raw.insert(judged_.raw.end(), values.raw, values.raw + vocab_size);
  if (row.plan.edits.combined) judged_.combined.insert(judged_.combined.end(), values.base, values.base + vocab_size);
  if (row.node + 1 < draft.size()) return;
  sample.emit_time_s = NowSeconds();
  const JudgedRows rows = std::exchange(judged_, {});
  const DraftVerdict verdict = JudgeDraft(context_, row, rows, vocab_size);
  int32_t last = -1;
  for (size_t i = 0; i <= verdict.path.size() && !sample.finished; ++i) {
    const bool ends = i == verdict.path.size();
    const int32_t child = ends ? -1 : verdict.path[i];
    const RowVerdict judged = {ends ? verdict.next_token : draft.token_ids[static_cast<size_t>(child)], child};
    const int64_t offset = static_cast<int64_t>(last + 1) * vocab_size;
    SampleToken(row, {rows.raw.data() + offset, rows.bases().data() + offset}, kNotDrawn, &judged);
    last = child;
  }
}

std::vector<float> RowProcessor::ComputeLaw(const LogitsRow& row, const float* base) {
  const int64_t vocab_size = combined_.logits().vocab_size();
  law_.assign(base, base + vocab_size);
  LogitsHook process;
  if (row.plan.edits.on_host()) process = [&](float* logits) { processors_.Run(row, logits); };
  return ProcessLogits(context_, row.sample->request().params, row.sample->history(), process, law_.data(), vocab_size,
                       row.plan.keeps.trace ? trace_.ObserveStages(vocab_size) : nullptr);
}

// Before the head: the next candidates of all sequences then come from rows whose tokens are known, as in plain decoding.
void RowProcessor::EmitCandidates(std::span<const LogitsRow> rows) {
  for (const LogitsRow& row : rows) {
    if (row.plan.decider != RowDecider::kContrast || row.node == kWalkRoot || row.sample->finished) continue;
    try {
      EmitCandidate(row);
    } catch (const Error& error) {
      requests_.Fail(*row.sample->running, error);
    }
  }
}

void RowProcessor::EmitCandidate(const LogitsRow& row) {
  Sample& sample = *row.sample;
  ContrastRecord& record = *sample.drafting.contrast();
  const RowVerdict verdict = {sample.walk.draft().token_ids[static_cast<size_t>(row.node)], row.node};
  sample.emit_time_s = NowSeconds();
  sample.walk.NoteDraw();
  if (row.plan.keeps.logprobs) {
    AddLogprobs(context_, sample, record.raw.data(), record.law, verdict.token);
  }
  if (row.plan.keeps.trace) {
    trace_.SetStages(std::move(record.stages));
    trace_.Record(sample, record.raw.data(), record.law, verdict);
  }
  AfterToken(row, verdict.token, verdict.child, record.raw.data());
}

// The candidates run in the next step that has room for all of them, as a draft that waits.
void RowProcessor::TakeCandidates(const LogitsRow& row, const float* raw) {
  Sample& sample = *row.sample;
  ContrastRecord& record = *sample.drafting.contrast();
  const int64_t vocab_size = combined_.logits().vocab_size();
  ComputeLaw(row, raw);
  Draft draft;
  draft.token_ids = DrawSeveral(nullptr, law_.data(), vocab_size, sample.request().params.top_k);
  if (draft.size() > 1) draft.parents.assign(draft.token_ids.size(), kWalkRoot);
  const float total = LogSumExp(context_, law_.data(), vocab_size);
  record.probs.clear();
  for (int32_t id : draft.token_ids) record.probs.push_back(ExpF32(law_[static_cast<size_t>(id)] - total));
  const RowKeeps& keeps = row.plan.keeps;
  if (keeps.logprobs || keeps.trace || row.plan.readers.criteria) {
    record.raw.assign(raw, raw + vocab_size);
    record.law.swap(law_);
  }
  if (keeps.trace) record.stages = trace_.TakeStages();
  sample.scheduled.num_drafted = draft.size();
  sample.drafting.SetWaiting({.draft = std::move(draft)});
}

// The token after a row, from law_, by whatever decides for it; the child is kFindChild where that is not known. The sample's sampler state
// follows the token.
RowVerdict RowProcessor::Decide(const LogitsRow& row, const float* base, const RowVerdict* judged) {
  Sample& sample = *row.sample;
  if (row.plan.in_parallel) return {prepared_.Take(sample, &law_), kFindChild};
  const std::vector<float> before = ComputeLaw(row, base);
  const RowVerdict verdict = judged != nullptr ? *judged : DecideByLaw(row);
  sample.sampler = NextState(context_, sample.request().params, sample.sampler, law_, before, verdict.token);
  return verdict;
}

RowVerdict RowProcessor::DecideByLaw(const LogitsRow& row) {
  const Sample& sample = *row.sample;
  const Request& request = sample.request();
  if (row.plan.decider == RowDecider::kRule) {
    const NoiseKey key = sample.next_noise_key(sample.drafting.round());
    return VerifyLaw(context_, request.params, key, law_, sample.walk.draft(), row.node, *request.speculation->rule);
  }
  if (row.plan.decider == RowDecider::kSampler) {
    const Stopwatch stopwatch(processors_.seconds());
    return {request.hooks->Sample(sample.hook_context(), law_.data(), combined_.logits().vocab_size()), kFindChild};
  }
  return {DrawToken(context_, request.params, static_cast<int64_t>(sample.tokens.size()), sample.index, law_), kFindChild};
}

void RowProcessor::SampleToken(const LogitsRow& row, const RowValues& values, const RowVerdict& drawn, const RowVerdict* judged) {
  Sample& sample = *row.sample;
  const float* raw = values.raw;
  const RowKeeps& keeps = row.plan.keeps;
  const SamplingParams& params = sample.request().params;
  sample.walk.NoteDraw();
  RowVerdict verdict = drawn.token == kNoToken ? Decide(row, values.base, judged) : drawn;
  if (row.plan.decider == RowDecider::kSampler) CheckChoice(sample, verdict.token, "the sampler");
  if (row.plan.decider == RowDecider::kRule || judged != nullptr) CheckChoice(sample, verdict.token, "the verification");
  if (keeps.logprobs) {
    AddLogprobs(context_, sample, raw, law_, verdict.token);
  }
  if (verdict.child == kFindChild) verdict.child = sample.walk.ChildWith(verdict.token);
  if (keeps.draft_logprobs) sample.walk.NoteLogprobs(context_, params.greedy(), law_, verdict.token);
  if (keeps.trace) trace_.Record(sample, raw, law_, verdict);
  AfterToken(row, verdict.token, verdict.child, raw);
}

void RowProcessor::AfterToken(const LogitsRow& row, int32_t token, int32_t child, const float* raw) {
  Sample& sample = *row.sample;
  ++num_generated_tokens_;
  const size_t num_read = row.plan.readers.criteria ? static_cast<size_t>(combined_.logits().vocab_size()) : 0;
  if (const auto reason = TakeToken(sample, token, {raw, num_read}, processors_.seconds())) {
    requests_.Finish(sample, *reason);
  } else {
    WalkOn(cache_, sample, child);
  }
}

}  // namespace llmi
