#include "engine/drafting/hidden_keeper.h"

#include <cstdint>

namespace llmi {
namespace {

// Rows that a drafter was not given are computed again, whatever the prefix cache holds.
void KeepFromHere(Sample& sample) {
  const HiddenLog& log = sample.drafting.hidden();
  if (log.has(HiddenReader::kRows)) sample.scheduled.first_streamed_row = log.end();
}

}  // namespace

void HiddenKeeper::AddReaders(Sample& sample) {
  const DrafterTraits& drafter = sample.request().speculation->drafter->traits();
  HiddenLog& log = sample.drafting.hidden();
  if (!drafter.hidden_layers.empty()) log.AddReader(HiddenReader::kRows, drafter.hidden_layers);
  if (drafter.needs_layer && heads_.eagle() != nullptr) {
    log.AddReader(HiddenReader::kLayer, heads_.eagle()->TargetLayers());
  }
  if (drafter.needs_last_row && heads_.medusa() != nullptr) {
    log.AddReader(HiddenReader::kLastRow, {static_cast<int>(decoder_.spec().num_layers())});
  }
}

HiddenRows HiddenKeeper::RowsFrom(const HiddenLog& log, int64_t row) const {
  HiddenRows rows = {.layers = {}, .hidden_size = decoder_.spec().hidden_size};
  for (const int layer : log.layers()) rows.layers.push_back(decoder_.rows(layer) + row * rows.hidden_size);
  return rows;
}

void HiddenKeeper::Keep(const LaunchedStep& step) {
  for (size_t i = 0; i < step.piece_rows.size(); ++i) {
    const ScheduledPiece& piece = step.pieces[i];
    Sample& sample = *piece.sequence->owner;
    if (sample.finished || piece.num_new == 0 || sample.drafting.hidden().layers().empty()) continue;
    HiddenLog& log = sample.drafting.hidden();
    if (log.has(HiddenReader::kLayer)) heads_.eagle()->Store(step, i);
    log.Append(context_, RowsFrom(log, step.piece_rows[i]), sample.scheduled.kv.num_tokens - piece.num_new, piece.num_new);
    KeepFromHere(sample);
  }
}

void HiddenKeeper::KeepAccepted(const LaunchedStep& step, size_t piece) {
  Sample& sample = *step.pieces[piece].sequence->owner;
  if (sample.finished || sample.drafting.hidden().layers().empty()) return;
  const int64_t first_node = step.piece_rows[piece] + step.pieces[piece].num_new;
  int64_t position = sample.scheduled.kv.num_tokens - sample.walk.num_accepted();
  HiddenLog& log = sample.drafting.hidden();
  for (const int32_t node : sample.walk.accepted()) log.Append(context_, RowsFrom(log, first_node + node), position++, 1);
  KeepFromHere(sample);
}

}  // namespace llmi
