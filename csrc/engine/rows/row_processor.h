// From rows of logits to tokens, by the plans of the rows (rows/plan.h): head, processors, law, draw; prompt scores; judges. Engine thread
// only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/active_requests.h"
#include "engine/ahead.h"
#include "engine/beams/steps.h"
#include "engine/rows/combined_rows.h"
#include "engine/rows/contrast_rows.h"
#include "engine/rows/device_draws.h"
#include "engine/rows/judge.h"
#include "engine/rows/plan.h"
#include "engine/rows/prepared_rows.h"
#include "engine/rows/user_processors.h"
#include "engine/running.h"
#include "engine/trace.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"
#include "scheduler/scheduler.h"

namespace llmi {

class RowProcessor {
 public:
  RowProcessor(const KernelContext& context, Decoder& decoder, KvCache& cache, Scheduler& scheduler, ActiveRequests& requests,
               std::shared_ptr<BatchHook> batch_hook, bool small_heads);

  // Draws the tokens of a step and emits them. On a device the next step may be launched meanwhile, by `ahead`. step_index: for traces.
  void Process(LaunchedStep& step, int64_t step_index, StepAhead& ahead);

  DeviceDraws& device_draws() { return device_draws_; }
  int64_t num_generated_tokens() const { return num_generated_tokens_; }
  double hook_seconds() { return *processors_.seconds(); }
  const RowSite& site() const { return site_; }
  const RowHeads& heads() const { return combined_.heads(); }

 private:
  void ProcessChunk(LaunchedStep& step, int64_t begin, std::span<const LogitsRow> rows, StepAhead& ahead);
  void ProcessRow(const LogitsRow& row, const RowValues& values, const RowVerdict& drawn);
  void ScorePrompt(const LogitsRow& row, const float* raw);
  void EndScore(const LogitsRow& row);
  void StartSiblings(const LogitsRow& row, const RowValues& values);
  void JudgeRow(const LogitsRow& row, const RowValues& values);
  // Contrastive search: the token is the candidate that a row follows; then the row gives the next candidates.
  void EmitCandidates(std::span<const LogitsRow> rows);
  void EmitCandidate(const LogitsRow& row);
  void TakeCandidates(const LogitsRow& row, const float* raw);
  // Computes law_ from the row before the masks; returns what ProcessLogits returns.
  std::vector<float> ComputeLaw(const LogitsRow& row, const float* base);
  // drawn: what the device has drawn, and then values are null; or kNotDrawn. judged: what the row's judge has decided; null without a
  // judge.
  void SampleToken(const LogitsRow& row, const RowValues& values, const RowVerdict& drawn, const RowVerdict* judged = nullptr);
  RowVerdict Decide(const LogitsRow& row, const float* base, const RowVerdict* judged);
  // By the acceptance rule, the user's sampler or a draw, from law_.
  RowVerdict DecideByLaw(const LogitsRow& row);
  // child: the draft node that holds the token, or -1.
  void AfterToken(const LogitsRow& row, int32_t token, int32_t child, const float* raw);

  const KernelContext& context_;
  Decoder& decoder_;
  KvCache& cache_;
  Scheduler& scheduler_;
  ActiveRequests& requests_;
  const RowSite site_;
  CombinedRows combined_;
  DeviceDraws device_draws_;
  UserProcessors processors_;
  PreparedRows prepared_;
  BeamSteps beams_;
  DecodeTrace trace_;
  std::vector<float> law_;  // of the row that SampleToken is at, or ScorePrompt
  JudgedRows judged_;       // rows so far of the draft that JudgeRow collects
  int64_t num_generated_tokens_ = 0;
};

}  // namespace llmi
