#include "model/batch_bytes.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/errors.h"

namespace llmi {
namespace {

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
  visit(batch.token_types);
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
  Require(batch.token_types.empty() || static_cast<int64_t>(batch.token_types.size()) == num_rows, "each token has a type, or none has");
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

std::vector<uint8_t> ToBytes(const ForwardBatch& batch) {
  CheckInternal(batch.views.empty(), "sparse attention on ranks");
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

void CheckBatch(const ForwardBatch& batch, const ModelSpec& spec, const KvGroups& groups, int64_t num_pages) {
  const auto in_range = [](int64_t value, int64_t end) { return value >= 0 && value < end; };
  const auto all = [](const auto& values, const auto& fits) { return std::all_of(values.begin(), values.end(), fits); };
  Require(all(batch.token_ids, [&](int32_t id) { return in_range(id, spec.vocab_size); }), "a token is out of range");
  Require(all(batch.positions, [&](int32_t position) { return in_range(position, spec.max_position); }), "a position is out of range");
  Require(all(batch.token_types, [&](int32_t type) { return in_range(type, spec.embedding.num_token_types); }),
          "a token's type is out of range");
  for (const std::vector<int>* layers : {&batch.tap_layers, &batch.kept_layers}) {
    Require(all(*layers, [&](int layer) { return in_range(layer, spec.num_layers() + 1); }), "a layer is out of range");
  }
  Require(all(batch.attention_layers, [&](int layer) { return in_range(layer - 1, spec.num_layers()); }), "a layer is out of range");
  const auto num_values = static_cast<int64_t>(batch.steering.size());
  Require(all(batch.steered, [&](const SteeredRows& rows) { return rows.values_begin <= num_values - spec.hidden_size; }),
          "a steering vector is out of range");
  Require(batch.states.empty() || spec.has_states(), "states of a model that has none");
  Require(batch.segments.empty() || batch.num_groups == groups.groups().size(), "each segment needs a block table for each KV group");
  const auto num_entries = static_cast<int64_t>(batch.block_tables.size());
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const BatchSegment& segment = batch.segments[s];
    Require(segment.base_len <= spec.max_position, "a segment begins behind the last position");
    const int64_t num_blocks = (segment.base_len + segment.num_rows + groups.block_size() - 1) / groups.block_size();
    for (size_t g = 0; g < batch.num_groups; ++g) {
      const KvGroup& group = groups.groups()[g];
      const int64_t begin = batch.table_begins[s * batch.num_groups + g];
      Require(num_blocks * group.pages_per_block <= num_entries - begin, "a block table is too short");
      const int64_t first = groups.FirstVisibleBlock(group, segment.base_len) * group.pages_per_block;
      for (int64_t i = first; i < num_blocks * group.pages_per_block; ++i) {
        Require(in_range(batch.block_tables[static_cast<size_t>(begin + i)], num_pages), "a page is out of range");
      }
    }
  }
}

}  // namespace llmi
