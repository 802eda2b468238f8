#include "engine/rows/user_processors.h"

#include <algorithm>
#include <exception>
#include <set>
#include <utility>

#include "core/errors.h"
#include "core/thread_pool.h"
#include "engine/clock.h"
#include "sampling/law.h"
#include "sampling/logprobs.h"

namespace llmi {

UserProcessors::UserProcessors(const KernelContext& context, std::shared_ptr<BatchHook> batch_hook, ActiveRequests& requests,
                               int64_t vocab_size)
    : context_(context), batch_hook_(std::move(batch_hook)), requests_(requests), vocab_size_(vocab_size) {}

// Copies rows into matrix_ and applies masks and penalties to them, one row a thread.
void UserProcessors::PenaliseRows(std::span<const LogitsRow> rows, const std::vector<size_t>& places, const CombinedRows& combined,
                                  std::vector<std::exception_ptr>* errors) {
  const auto vocab_size = static_cast<size_t>(vocab_size_);
  const KernelContext alone = {context_.table, context_.pool, 1};
  context_.pool->ParallelFor(static_cast<int64_t>(places.size()), context_.num_threads, [&](int64_t task) {
    const auto row = static_cast<size_t>(task);
    const Sample& sample = *rows[places[row]].sample;
    float* law = matrix_.data() + row * vocab_size;
    std::copy_n(combined.Base(places[row]), vocab_size, law);
    try {
      if (sample.request().beams) ToLogprobs(alone, law, vocab_size_);  // beams score log-probabilities
      PenaliseLogits(alone, sample.request().params, sample.history(), law, vocab_size_);
    } catch (...) {
      (*errors)[row] = std::current_exception();
    }
  });
}

void UserProcessors::RunBatch(std::span<const LogitsRow> rows, const CombinedRows& combined) {
  if (batch_hook_ == nullptr) return;
  const auto vocab_size = static_cast<size_t>(vocab_size_);
  rows_.clear();
  std::vector<size_t> places;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].sample->finished && rows[i].plan.edits.batch_processors) places.push_back(i);
  }
  matrix_.resize(std::max(matrix_.size(), places.size() * vocab_size));
  std::vector<std::exception_ptr> errors(places.size());
  PenaliseRows(rows, places, combined, &errors);
  std::vector<BatchHook::Row> batch;
  std::vector<Sample*> samples;
  for (size_t i = 0; i < places.size(); ++i) {
    Sample& sample = *rows[places[i]].sample;
    try {
      if (errors[i]) std::rethrow_exception(errors[i]);
    } catch (const Error& error) {
      requests_.Fail(*sample.running, error);
    }
    if (sample.finished) continue;
    if (batch.size() < i) std::copy_n(matrix_.data() + i * vocab_size, vocab_size, matrix_.data() + batch.size() * vocab_size);
    samples.push_back(&sample);
    batch.push_back({sample.request().hooks.get(), sample.hook_context(), {}});
  }
  if (batch.empty()) return;
  {
    const Stopwatch stopwatch(&seconds_);
    batch_hook_->Apply(batch, matrix_.data(), vocab_size_);
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].error) {
      requests_.Fail(*samples[i]->running, *batch[i].error);
    } else {
      rows_[samples[i]] = matrix_.data() + i * vocab_size;
    }
  }
}

void UserProcessors::Run(const LogitsRow& row, float* logits) {
  const Sample& sample = *row.sample;
  HookContext context = sample.hook_context();
  if (row.plan.edits.batch_processors) {
    const auto batched = rows_.find(&sample);
    CheckInternal(batched != rows_.end(), "a row is missing from the batch of the engine-wide processors");
    std::copy_n(batched->second, vocab_size_, logits);
    rows_.erase(batched);
    context.batched = true;
  }
  if (!row.plan.edits.processors) return;
  const Stopwatch stopwatch(&seconds_);
  sample.request().hooks->ProcessLogits(context, logits, vocab_size_);
}

void UserProcessors::RunEach(std::span<const RowToProcess> rows) {
  std::set<const Running*> failed;
  for (const auto& [row, logits, error] : rows) {
    const Running* running = row->sample->running;
    if (!row->plan.edits.on_host() || *error || failed.contains(running)) continue;
    try {
      Run(*row, logits);
    } catch (...) {
      *error = std::current_exception();
      failed.insert(running);
    }
  }
}

}  // namespace llmi
