// The user's logits processors, engine-wide and of each request, over rows of logits. Engine thread only.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/active_requests.h"
#include "engine/request.h"
#include "engine/rows/combined_rows.h"
#include "engine/running.h"
#include "kernels/ops/context.h"

namespace llmi {

// A penalised row [vocab_size], and where an error of its processors goes; it may hold one already.
struct RowToProcess {
  const LogitsRow* row;
  float* logits;
  std::exception_ptr* error;
};

class UserProcessors {
 public:
  // batch_hook: the engine-wide processors; null: none.
  UserProcessors(const KernelContext& context, std::shared_ptr<BatchHook> batch_hook, ActiveRequests& requests, int64_t vocab_size);

  // Gives the engine-wide processors those rows of a chunk whose plan has edits.batch_processors, in one call. They get
  // copies of the rows before the masks, with masks and penalties applied; each row's result is kept until its Run.
  void RunBatch(std::span<const LogitsRow> rows, const CombinedRows& combined);
  // Applies the row's edits by user code to its penalised logits [vocab_size], in place; the result of RunBatch replaces them first.
  void Run(const LogitsRow& row, float* logits);
  // Run for each row that user code edits, in order. After an error no other processor of its request is called.
  void RunEach(std::span<const RowToProcess> rows);

  // Seconds in user code, criteria and samplers included, whose callers add theirs.
  double* seconds() { return &seconds_; }

 private:
  void PenaliseRows(std::span<const LogitsRow> rows, const std::vector<size_t>& places, const CombinedRows& combined,
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
