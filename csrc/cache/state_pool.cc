#include "cache/state_pool.h"

#include <algorithm>
#include <utility>

#include "kernels/dispatch/transfer.h"

namespace llmi {

StatePool::StatePool(const StateSizes& sizes, Device* device)
    : sizes_(sizes), slots_(sizes.num_slots, sizes.slot_bytes, device), chunks_(sizes.num_chunks, sizes.chunk_bytes(), device) {}

StateView StatePool::View(int64_t slot_offset, int64_t log_offset) {
  return {.slots = slots_.arena(),
          .slot_bytes = sizes_.slot_bytes,
          .slot_offset = slot_offset,
          .chunks = chunks_.arena(),
          .log_row_bytes = sizes_.log_row_bytes,
          .log_offset = log_offset};
}

// The step writes the slot that it reads if nobody else holds it.
int64_t StatePool::SlotsNeeded(const SequenceState& state) const {
  if (state.next >= 0) return 0;
  return state.slot >= 0 && slots_.references(state.slot) == 1 && !state.keeps_slot ? 0 : 1;
}

template <typename Visit>
void StatePool::VisitWritten(const SequenceState& state, const Step& step, const Visit& visit) const {
  const int64_t num_kept = state.goes_back ? kKeptInputs : 0;
  const int64_t begin = std::max(step.num_tokens, step.end() - num_kept);
  for (int64_t chunk = begin / kLogRows; chunk * kLogRows < step.num_tokens + step.num_new && begin < step.num_tokens + step.num_new;
       ++chunk) {
    visit(chunk);
  }
}

bool StatePool::LacksChunks(const SequenceState& state, const Step& step) const {
  int64_t needed = 0;
  VisitWritten(state, step, [&](int64_t chunk) {
    const int64_t place = chunk - state.log_first;
    const bool is_own = place >= 0 && place < static_cast<int64_t>(state.log.size()) && state.log[static_cast<size_t>(place)] >= 0 &&
                        chunks_.references(state.log[static_cast<size_t>(place)]) == 1;
    needed += is_own ? 0 : 1;
  });
  return needed > chunks_.num_free();
}

int64_t StatePool::BytesNeeded(const SequenceState& state, const Step& step) const {
  int64_t num_chunks = 0;
  VisitWritten(state, step, [&](int64_t /*chunk*/) { ++num_chunks; });
  return SlotsNeeded(state) * sizes_.slot_bytes + num_chunks * sizes_.chunk_bytes();
}

void StatePool::Plan(SequenceState* state, const Step& step) {
  for (const StateCapture& capture : std::exchange(state->captures, {})) slots_.Release(capture.slot);
  if (SlotsNeeded(*state) > 0) {
    state->next = slots_.Allocate();
  } else if (state->next < 0) {
    state->next = state->slot;
    slots_.AddReference(state->next);
  }
  VisitWritten(*state, step, [&](int64_t chunk) {
    if (state->log.empty()) state->log_first = chunk;
    state->log.resize(std::max<size_t>(state->log.size(), static_cast<size_t>(chunk - state->log_first + 1)), -1);
    int32_t& held = state->log[static_cast<size_t>(chunk - state->log_first)];
    if (held < 0) {
      held = chunks_.Allocate();
    } else if (chunks_.references(held) > 1) {
      held = chunks_.CopyOnWrite(held);
    }
  });
  state->is_planned = true;
}

std::vector<StateVersion> StatePool::Finish(SequenceState* state, int64_t num_tokens, int64_t num_new) {
  if (!state->is_planned) return {};
  state->is_planned = false;
  const StateVersion before = {state->len, state->slot};
  state->slot = std::exchange(state->next, -1);
  state->len = num_tokens;
  // Of a sequence that began with a hit: nothing leads back to what is before it.
  const bool is_first = state->older.empty() && before.slot >= 0 && state->log_begin >= before.len;
  const bool keeps_before = state->goes_back && is_first && before.slot != state->slot;
  if (keeps_before) {
    state->older.push_back(before);
  } else if (before.slot >= 0) {
    slots_.Release(before.slot);
  }
  std::vector<StateVersion> made;
  for (const StateCapture& capture : std::exchange(state->captures, {})) {
    if (capture.len > num_tokens || !state->is_finite) {
      slots_.Release(capture.slot);
      continue;
    }
    made.push_back({capture.len, capture.slot});
    if (!state->goes_back || capture.len % kVersionTokens != 0) continue;
    slots_.AddReference(capture.slot);
    state->older.push_back(made.back());
  }
  while (state->older.size() > 2) {
    slots_.Release(state->older.front().slot);
    state->older.erase(state->older.begin());
  }
  if (!state->goes_back) {
    state->log_begin = num_tokens;
  } else if (num_new > kKeptInputs) {
    state->log_begin = num_tokens - kKeptInputs;
  }
  // Where no slot was free for a version, the log does not grow for ever.
  state->log_begin = std::max(state->log_begin, num_tokens - 2 * kKeptInputs);
  if (state->older.size() == 2) state->log_begin = std::max(state->log_begin, state->older.front().len);
  DropChunks(state);
  return made;
}

void StatePool::DropPlan(SequenceState* state) {
  for (const StateCapture& capture : std::exchange(state->captures, {})) slots_.Release(capture.slot);
  if (state->next >= 0) slots_.Release(std::exchange(state->next, -1));
  state->is_planned = false;
}

// Gives back the chunks before the log's beginning.
void StatePool::DropChunks(SequenceState* state) {
  while (!state->log.empty() && (state->log_first + 1) * kLogRows <= state->log_begin) {
    if (state->log.front() >= 0) chunks_.Release(state->log.front());
    state->log.erase(state->log.begin());
    ++state->log_first;
  }
}

void StatePool::Trim(SequenceState* state, int64_t num_tokens) {
  DropPlan(state);
  while (!state->log.empty() && (state->log_first + static_cast<int64_t>(state->log.size()) - 1) * kLogRows >= num_tokens) {
    if (state->log.back() >= 0) chunks_.Release(state->log.back());
    state->log.pop_back();
  }
}

bool StatePool::TryRollback(SequenceState* state, int64_t num_tokens) {
  if (num_tokens < state->len) {
    StateVersion found = {-1, -1};
    if (num_tokens == 0 || (state->goes_back && state->log_begin == 0)) found = {0, -1};
    for (const StateVersion& version : state->older) {
      if (version.len <= num_tokens && version.len >= std::min(state->log_begin, num_tokens)) found = version;
    }
    if (found.len < 0) return false;
    if (found.slot >= 0) slots_.AddReference(found.slot);
    slots_.Release(state->slot);
    state->slot = found.slot;
    state->len = found.len;
    while (!state->older.empty() && state->older.back().len > found.len) {
      slots_.Release(state->older.back().slot);
      state->older.pop_back();
    }
    state->log_begin = std::min(state->log_begin, num_tokens);
  }
  Trim(state, num_tokens);
  return true;
}

StatePool::LogPlace StatePool::PlaceOf(const SequenceState& state, int64_t position) {
  return {state.log[static_cast<size_t>(position / kLogRows - state.log_first)], static_cast<int32_t>(position % kLogRows)};
}

bool StatePool::Has(const LogPlace& place) const {
  return place.chunk >= 0 && place.chunk < chunks_.num_pages() && place.row >= 0 && place.row < kLogRows;
}

uint8_t* StatePool::Row(const LogPlace& place) {
  return chunks_.arena() + place.chunk * sizes_.chunk_bytes() + place.row * sizes_.log_row_bytes;
}

void StatePool::CopyRow(const LogPlace& from, const LogPlace& to) {
  CopyThere({.device = chunks_.device()}, Row(to), Row(from), static_cast<size_t>(sizes_.log_row_bytes));
}

void StatePool::Fork(const SequenceState& parent, SequenceState* child) {
  *child = parent;
  child->is_planned = false;
  child->next = -1;
  child->captures.clear();
  if (child->slot >= 0) slots_.AddReference(child->slot);
  for (const StateVersion& version : child->older) slots_.AddReference(version.slot);
  for (const int32_t chunk : child->log) {
    if (chunk >= 0) chunks_.AddReference(chunk);
  }
}

void StatePool::Free(SequenceState* state) {
  Trim(state, 0);
  if (state->slot >= 0) slots_.Release(state->slot);
  for (const StateVersion& version : state->older) slots_.Release(version.slot);
  const bool goes_back = state->goes_back;
  const int64_t snapshot_at = state->snapshot_at;
  *state = {};
  state->goes_back = goes_back;
  state->snapshot_at = snapshot_at;
}

void StatePool::Count(const SequenceState& state, std::vector<int32_t>* slots, std::vector<int32_t>* chunks) const {
  const auto add = [](int32_t place, std::vector<int32_t>* counts) {
    if (place >= 0) ++(*counts)[static_cast<size_t>(place)];
  };
  add(state.slot, slots);
  add(state.next, slots);
  for (const StateCapture& capture : state.captures) add(capture.slot, slots);
  for (const StateVersion& version : state.older) add(version.slot, slots);
  for (const int32_t chunk : state.log) add(chunk, chunks);
}

}  // namespace llmi
