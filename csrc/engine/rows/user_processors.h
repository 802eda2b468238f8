// The user's logits processors, engine-wide and of each request, over rows of logits. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/active_requests.h"
#include "engine/request.h"
#include "engine/running.h"
#include "kernels/ops/context.h"

namespace llmi {

// Whether a judge decides about the row's whole draft.
bool IsJudged(const LogitsRow& row);

class UserProcessors {
 public:
  // batch_hook: the engine-wide processors; null: none.
  UserProcessors(const KernelContext& context, std::shared_ptr<BatchHook> batch_hook, ActiveRequests& requests, int64_t vocab_size);

  // Gives the engine-wide processors a chunk of raw logits: the rows that come first in their sequences, together. Later rows of a walk,
  // and those of siblings that start, depend on tokens that are not drawn yet; Run gives them alone. A row's result is kept until its Run.
  void RunBatch(std::span<const LogitsRow> rows, const float* logits);
  // Whether the engine-wide processors have had the sample's row, masks and penalties included.
  bool HasRow(const Sample& sample) const { return rows_.contains(&sample); }
  // Runs the sample's processors on penalised logits, in place. HasRow: what the engine-wide ones made of the row replaces `logits` first.
  void Run(const Sample& sample, float* logits);

  // Seconds in user code, criteria and samplers included, whose callers add theirs.
  double* seconds() { return &seconds_; }

 private:
  void PenaliseRows(std::span<const LogitsRow> rows, const std::vector<size_t>& places, const float* logits,
                    std::vector<std::exception_ptr>* errors);

  const KernelContext& context_;
  const std::shared_ptr<BatchHook> batch_hook_;
  ActiveRequests& requests_;
  const int64_t vocab_size_;
  std::vector<float> matrix_;                             // [rows, vocab_size]
  std::unordered_map<const Sample*, const float*> rows_;  // of matrix_, changed by the engine-wide processors
  double seconds_ = 0;
};

}  // namespace llmi
