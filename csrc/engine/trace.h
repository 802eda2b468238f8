// The decode trace: the tokens that were tried at each position, and whether they were taken. Engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/running.h"
#include "kernels/ops/context.h"
#include "sampling/law.h"
#include "speculative/verify.h"

namespace llmi {

class DecodeTrace {
 public:
  explicit DecodeTrace(const KernelContext& context) : context_(context) {}

  // step: number of the engine's step, for what is recorded from now on.
  void BeginStep(int64_t step) { step_ = step; }
  int64_t step() const { return step_; }
  // Keeps the stages of the next row of vocab_size logits, for Record. Valid until the next call.
  LawObserver ObserveStages(int64_t vocab_size);
  // A token may be named in a later step than its row: takes the stages, which SetStages gives back before Record.
  LawStages TakeStages() { return std::exchange(stages_, {}); }
  void SetStages(LawStages stages) { stages_ = std::move(stages); }
  // Adds to the sample's trace the tokens that were tried at its next position: first the drafted ones, in the order in which they were
  // judged, then the drawn one. raw, law [vocab_size]: the row's logits before and after processing.
  void Record(const Sample& sample, const float* raw, std::span<const float> law, const RowVerdict& verdict) const;

 private:
  void RecordCandidates(const Sample& sample, const float* raw, std::span<const float> law, int32_t token) const;
  float At(LawStage stage, int32_t token_id) const;
  void AddMaskCost(TraceRow* row) const;

  const KernelContext& context_;
  int64_t step_ = 0;
  LawStages stages_;
};

}  // namespace llmi
