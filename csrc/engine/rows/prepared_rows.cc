#include "engine/rows/prepared_rows.h"

#include <algorithm>

#include "core/errors.h"
#include "core/thread_pool.h"
#include "sampling/law.h"

namespace llmi {

// The rows to draw now, with memory for their laws.
PreparedRows::Chosen PreparedRows::Choose(std::span<const LogitsRow> rows, HostLogits& logits, const DeviceDraws& device) {
  Chosen chosen;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Sample& sample = *rows[i].sample;
    if (sample.finished || !rows[i].plan.in_parallel || device.Drawn(i).token != kNoToken) continue;
    Row& row = rows_[&sample];
    chosen.emplace_back(&row, i);
    row.law = rows[i].plan.NeedsHost() ? nullptr : logits.Row(static_cast<int64_t>(i));
  }
  for (const auto& [row, index] : chosen) {
    if (spare_laws_.empty()) break;
    if (row->law != nullptr) continue;
    row->copy = std::move(spare_laws_.back());  // memory that is mapped already
    spare_laws_.pop_back();
  }
  return chosen;
}

// Calls body for each chosen row that has no error so far. What body throws becomes the row's error.
template <typename Body>
void PreparedRows::ForEachRow(std::span<const LogitsRow> rows, const Chosen& chosen, const Body& body) {
  context_.pool->ParallelFor(static_cast<int64_t>(chosen.size()), context_.num_threads, [&](int64_t task) {
    const auto& [row, index] = chosen[static_cast<size_t>(task)];
    if (row->error) return;
    const Sample& sample = *rows[index].sample;
    try {
      body(*row, index, sample, sample.history());
    } catch (...) {
      row->error = std::current_exception();
    }
  });
}

void PreparedRows::Prepare(std::span<const LogitsRow> rows, HostLogits& logits, const CombinedRows& combined, const DeviceDraws& device) {
  for (auto& [sample, row] : rows_) {
    if (!row.copy.empty()) spare_laws_.push_back(std::move(row.copy));
  }
  rows_.clear();
  const Chosen chosen = Choose(rows, logits, device);
  if (chosen.empty()) return;
  // A single row is drawn by all threads.
  const KernelContext each = {context_.table, context_.pool, chosen.size() == 1 ? context_.num_threads : 1};
  ForEachRow(rows, chosen, [&](Row& row, size_t index, const Sample& sample, const TokenHistory& history) {
    if (row.law == nullptr) {
      row.copy.resize(static_cast<size_t>(vocab_size_));
      row.law = row.copy.data();
      if (rows[index].plan.edits.batch_processors) return;  // penalised, and seen by these processors
      std::copy_n(combined.Base(index), vocab_size_, row.law);
    }
    PenaliseLogits(each, sample.request().params, history, row.law, vocab_size_);
  });
  std::vector<RowToProcess> processed;
  for (const auto& [row, index] : chosen) processed.push_back({&rows[index], row->law, &row->error});
  processors_.RunEach(processed);
  ForEachRow(rows, chosen, [&](Row& row, size_t index, const Sample& sample, const TokenHistory& history) {
    const SamplingParams& params = sample.request().params;
    if (rows[index].plan.edits.on_host()) MaskAgain(params, history, row.law, vocab_size_);
    const std::vector<float> before = FilterLogits(each, params, history, row.law, vocab_size_);
    const std::span law(row.law, static_cast<size_t>(vocab_size_));
    row.token = DrawToken(each, params, static_cast<int64_t>(sample.tokens.size()), sample.index, law);
    row.sampler = NextState(each, params, history.state, law, before, row.token);
  });
}

int32_t PreparedRows::Take(Sample& sample, std::vector<float>* law) {
  const auto found = rows_.find(&sample);
  CheckInternal(found != rows_.end(), "a row that is drawn in parallel was not prepared");
  Row& row = found->second;
  if (row.error) std::rethrow_exception(row.error);
  const int32_t token = row.token;
  sample.sampler = row.sampler;
  if (!row.copy.empty()) {
    law->swap(row.copy);
    spare_laws_.push_back(std::move(row.copy));
  }
  rows_.erase(found);
  return token;
}

}  // namespace llmi
