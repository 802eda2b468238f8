#include "engine/rows/contrast_rows.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/errors.h"
#include "kernels/dispatch/transfer.h"

namespace llmi {
namespace {

// Scores the candidates and names the best one; of equal ones the first, since they are in order of rank.
void ChooseBest(const KernelContext& host, double alpha, std::span<const float> hidden, ContrastRecord* record) {
  const std::vector<double> cosines = record->rows.LargestCosines(host, hidden);
  record->scores.clear();
  for (size_t i = 0; i < cosines.size(); ++i) {
    record->scores.push_back((1 - alpha) * static_cast<double>(record->probs[i]) - alpha * cosines[i]);
  }
  record->chosen = static_cast<int32_t>(std::max_element(record->scores.begin(), record->scores.end()) - record->scores.begin());
}

// rows: of one sample. hidden [rows, size]: there, where the ops run.
void ChooseOne(const KernelContext& context, std::span<const LogitsRow> rows, const float* there, size_t size) {
  Sample& sample = *rows[0].sample;
  ContrastRecord& record = *sample.drafting.contrast();
  std::vector<float> hidden(rows.size() * size);
  ToHost(context, hidden.data(), there, hidden.size() * sizeof(float));
  size_t num_committed = 0;
  for (; num_committed < rows.size() && rows[num_committed].node == kWalkRoot; ++num_committed) {
    const bool known = rows[num_committed].position < record.rows.size();
    if (!known) record.rows.Add(std::span(hidden).subspan(num_committed * size, size));
  }
  if (num_committed < rows.size()) {
    const KernelContext host = {context.table, context.pool, context.num_threads};
    ChooseBest(host, sample.request().params.penalty_alpha, std::span(hidden).subspan(num_committed * size), &record);
    record.rows.Add(std::span(hidden).subspan((num_committed + static_cast<size_t>(record.chosen)) * size, size));
  }
  sample.scheduled.first_wanted_row = record.rows.size();
}

}  // namespace

void ChooseCandidates(const KernelContext& context, Decoder& decoder, ActiveRequests& requests, LaunchedStep* step) {
  const auto size = static_cast<size_t>(decoder.spec().hidden_size);
  const std::vector<LogitsRow>& rows = step->rows;
  std::vector<size_t> kept;
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    Sample& sample = *rows[begin].sample;
    while (end < rows.size() && rows[end].sample == &sample) ++end;
    const bool contrasts = !sample.finished && sample.drafting.contrast() != nullptr;
    if (contrasts) {
      try {
        ChooseOne(context, std::span(rows).subspan(begin, end - begin), step->result.hidden + begin * size, size);
      } catch (const Error& error) {
        requests.Fail(*sample.running, error);
      }
    }
    for (size_t i = begin; i < end; ++i) {
      const bool chosen = !contrasts || rows[i].node == kWalkRoot || rows[i].node == sample.drafting.contrast()->chosen;
      if (chosen && rows[i].plan.NeedsLogits()) kept.push_back(i);
    }
  }
  if (kept.size() == rows.size()) return;
  std::vector<size_t> wanted = kept;  // and the rows of companions, which follow all others
  for (size_t i = 0; i < kept.size(); ++i) {
    LogitsRow& row = step->rows[i] = step->rows[kept[i]];
    if (row.companion < 0) continue;
    wanted.push_back(static_cast<size_t>(row.companion));
    row.companion = static_cast<int32_t>(wanted.size()) - 1;
  }
  step->rows.resize(kept.size());
  decoder.KeepRows(context, wanted, &step->result);
}

}  // namespace llmi
