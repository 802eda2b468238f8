#include "engine/batch.h"

#include <algorithm>
#include <utility>

namespace llmi {
namespace {

void AddNew(const std::vector<int>& layers, std::vector<int>* known) {
  for (int layer : layers) {
    if (std::find(known->begin(), known->end(), layer) == known->end()) known->push_back(layer);
  }
}

}  // namespace

BatchBuilder::BatchBuilder(size_t num_groups) { batch_.num_groups = num_groups; }

void BatchBuilder::BeginSegment(const KvSequence& kv) {
  batch_.segments.push_back({batch_.num_rows(), 0, kv.num_tokens, -1});
  if (kv.view != SparseView{}) {
    batch_.views.resize(batch_.segments.size());
    batch_.views.back() = kv.view;
  }
  if (kv.state.is_planned) AddState(kv.state);
  for (size_t group = 0; group < batch_.num_groups; ++group) {
    const std::vector<int32_t>& table = kv.tables[group];
    batch_.table_begins.push_back(static_cast<int64_t>(batch_.block_tables.size()));
    batch_.block_tables.insert(batch_.block_tables.end(), table.begin(), table.end());
  }
}

void BatchBuilder::AddState(const SequenceState& state) {
  batch_.states.push_back({.num_committed = 0,
                           .from_len = state.len,
                           .num_kept = state.goes_back ? kKeptInputs : 0,
                           .log_begin = static_cast<int64_t>(batch_.state_logs.size()),
                           .num_log = static_cast<int64_t>(state.log.size()),
                           .log_first = state.log_first,
                           .captures_begin = static_cast<int64_t>(batch_.captures.size()),
                           .num_captures = static_cast<int64_t>(state.captures.size()),
                           .from_slot = state.slot,
                           .slot = state.next});
  batch_.state_logs.insert(batch_.state_logs.end(), state.log.begin(), state.log.end());
  batch_.captures.insert(batch_.captures.end(), state.captures.begin(), state.captures.end());
}

void BatchBuilder::AddToken(int32_t token_id, bool wanted) {
  BatchSegment& segment = batch_.segments.back();
  if (!batch_.states.empty()) ++batch_.states.back().num_committed;
  if (wanted) batch_.wanted_rows.push_back(static_cast<int32_t>(batch_.num_rows()));
  batch_.token_ids.push_back(token_id);
  batch_.positions.push_back(static_cast<int32_t>(segment.base_len + segment.num_rows));
  ++segment.num_rows;
}

void BatchBuilder::AddTokenType(int32_t type) { batch_.token_types.push_back(type); }

void BatchBuilder::AddDraft(const Draft& draft) {
  if (draft.size() == 0) return;
  BatchSegment& segment = batch_.segments.back();
  const int64_t num_before = segment.num_rows;
  if (!draft.is_chain()) {
    segment.parents_begin = static_cast<int64_t>(batch_.parents.size());
    for (int64_t i = 0; i < num_before; ++i) batch_.parents.push_back(static_cast<int32_t>(i) - 1);
    for (int32_t parent : draft.parents) batch_.parents.push_back(static_cast<int32_t>(num_before) + parent);
  }
  const int64_t last_position = segment.base_len + num_before - 1;
  for (int32_t depth : draft.Depths()) batch_.positions.push_back(static_cast<int32_t>(last_position) + depth);
  for (int32_t token_id : draft.token_ids) {
    batch_.wanted_rows.push_back(static_cast<int32_t>(batch_.num_rows()));
    batch_.token_ids.push_back(token_id);
  }
  segment.num_rows += draft.size();
}

void BatchBuilder::AddTaps(const std::vector<int>& layers) { AddNew(layers, &batch_.tap_layers); }

void BatchBuilder::AddAttention(const std::vector<int>& layers) { AddNew(layers, &batch_.attention_layers); }

void BatchBuilder::Steer(const Steering* steering) {
  if (steering == nullptr) return;
  const auto [known, is_new] = steering_begins_.emplace(steering, static_cast<int64_t>(batch_.steering.size()));
  if (is_new) batch_.steering.insert(batch_.steering.end(), steering->values.begin(), steering->values.end());
  const auto hidden_size = static_cast<int64_t>(steering->values.size() / steering->layers.size());
  const BatchSegment& segment = batch_.segments.back();
  for (size_t i = 0; i < steering->layers.size(); ++i) {
    batch_.steered.push_back(
        {segment.row_begin, segment.num_rows, steering->layers[i], known->second + static_cast<int64_t>(i) * hidden_size});
  }
}

void BatchBuilder::KeepLayers(const std::vector<int>& layers) { AddNew(layers, &batch_.kept_layers); }

ForwardBatch BatchBuilder::Take() { return std::exchange(batch_, {}); }

}  // namespace llmi
