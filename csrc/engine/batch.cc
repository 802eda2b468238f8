#include "engine/batch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/errors.h"

namespace llmi {
namespace {

void AddNew(const std::vector<int>& layers, std::vector<int>* known) {
  for (int layer : layers) {
    if (std::find(known->begin(), known->end(), layer) == known->end()) known->push_back(layer);
  }
}

// All vectors of a batch, in the order in which they are written.
template <typename Batch, typename Visit>
void ForEachVector(Batch& batch, const Visit& visit) {
  visit(batch.token_ids);
  visit(batch.positions);
  visit(batch.segments);
  visit(batch.parents);
  visit(batch.block_tables);
  visit(batch.table_begins);
  visit(batch.states);
  visit(batch.state_logs);
  visit(batch.captures);
  visit(batch.wanted_rows);
  visit(batch.tap_layers);
  visit(batch.attention_layers);
  visit(batch.kept_layers);
  visit(batch.steered);
  visit(batch.steering);
}

void Require(bool holds, const char* what) {
  if (!holds) throw Error(ErrorKind::kInvalidArgument, std::string("bytes of a batch: ") + what);
}

void CheckOffsets(const ForwardBatch& batch) {
  const int64_t num_rows = batch.num_rows();
  Require(static_cast<int64_t>(batch.positions.size()) == num_rows, "a position for each token is needed");
  int64_t row = 0;
  for (const BatchSegment& segment : batch.segments) {
    Require(segment.row_begin == row && segment.num_rows >= 0 && segment.num_rows <= num_rows - row,
            "segments must cover the rows in order");
    Require(segment.base_len >= 0, "a segment begins at a slot of 0 or more");
    const auto num_parents = static_cast<int64_t>(batch.parents.size());
    Require(segment.parents_begin >= -1 && segment.parents_begin <= num_parents, "parents are out of range");
    Require(segment.parents_begin < 0 || segment.num_rows <= num_parents - segment.parents_begin, "parents are out of range");
    for (int64_t i = 0; segment.parents_begin >= 0 && i < segment.num_rows; ++i) {
      const int32_t parent = batch.parents[static_cast<size_t>(segment.parents_begin + i)];
      Require(parent >= -1 && parent < i, "a parent must come before its child");
    }
    row += segment.num_rows;
  }
  Require(row == num_rows, "segments must cover the rows in order");
  Require(batch.segments.empty() ? batch.table_begins.empty() : batch.table_begins.size() % batch.segments.size() == 0,
          "each segment needs a block table for each KV group");
  const auto in_tables = [&](int64_t begin) { return begin >= 0 && begin <= static_cast<int64_t>(batch.block_tables.size()); };
  Require(std::all_of(batch.table_begins.begin(), batch.table_begins.end(), in_tables), "a block table is out of range");
  Require(batch.states.empty() || batch.states.size() == batch.segments.size(), "each segment needs a state");
  for (const BatchState& state : batch.states) {
    const BatchSegment& segment = batch.segments[static_cast<size_t>(&state - batch.states.data())];
    const auto within = [](int64_t begin, int64_t count, size_t size) {
      return begin >= 0 && count >= 0 && begin <= static_cast<int64_t>(size) && count <= static_cast<int64_t>(size) - begin;
    };
    Require(state.num_committed >= 0 && state.num_committed <= segment.num_rows, "committed rows are out of range");
    Require(state.from_len >= 0 && state.from_len <= segment.base_len, "a state is of more tokens than its segment");
    Require(within(state.log_begin, state.num_log, batch.state_logs.size()), "a log of states is out of range");
    Require(within(state.captures_begin, state.num_captures, batch.captures.size()), "copies of states are out of range");
  }
  for (const SteeredRows& steered : batch.steered) {
    Require(steered.row_begin >= 0 && steered.num_rows >= 0 && steered.num_rows <= num_rows - steered.row_begin,
            "steered rows are out of range");
    Require(steered.values_begin >= 0 && steered.values_begin < static_cast<int64_t>(batch.steering.size()),
            "a steering vector is out of range");
  }
  int32_t last = -1;
  for (int32_t listed : batch.wanted_rows) {
    Require(listed > last && listed < num_rows, "wanted rows must ascend within the batch");
    last = listed;
  }
}

}  // namespace

BatchBuilder::BatchBuilder(size_t num_groups) { batch_.num_groups = num_groups; }

void BatchBuilder::BeginSegment(const KvSequence& kv) {
  batch_.segments.push_back({batch_.num_rows(), 0, kv.num_tokens, -1});
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

std::vector<uint8_t> ToBytes(const ForwardBatch& batch) {
  size_t size = 0;
  ForEachVector(batch, [&](const auto& values) { size += sizeof(uint64_t) + values.size() * sizeof(values[0]); });
  std::vector<uint8_t> bytes(size);
  uint8_t* to = bytes.data();
  ForEachVector(batch, [&](const auto& values) {
    const uint64_t count = values.size();
    const size_t values_size = values.size() * sizeof(values[0]);
    std::memcpy(to, &count, sizeof(count));
    if (values_size > 0) std::memcpy(to + sizeof(count), values.data(), values_size);
    to += sizeof(count) + values_size;
  });
  return bytes;
}

ForwardBatch BatchFromBytes(std::span<const uint8_t> bytes) {
  ForwardBatch batch;
  ForEachVector(batch, [&](auto& values) {
    uint64_t count = 0;
    Require(bytes.size() >= sizeof(count), "they end too soon");
    std::memcpy(&count, bytes.data(), sizeof(count));
    bytes = bytes.subspan(sizeof(count));
    Require(count <= bytes.size() / sizeof(values[0]), "they end too soon");
    values.resize(count);
    const size_t size = values.size() * sizeof(values[0]);
    if (size > 0) std::memcpy(values.data(), bytes.data(), size);
    bytes = bytes.subspan(size);
  });
  Require(bytes.empty(), "they go on after the last value");
  CheckOffsets(batch);
  batch.num_groups = batch.segments.empty() ? 0 : batch.table_begins.size() / batch.segments.size();
  return batch;
}

}  // namespace llmi
