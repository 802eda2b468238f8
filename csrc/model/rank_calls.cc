#include "model/rank_calls.h"

#include <algorithm>
#include <cstring>

#include "core/errors.h"
#include "model/batch_bytes.h"

namespace llmi {
namespace {

struct ForwardHeader {
  uint64_t num_events;
  uint64_t with_head;
};

template <typename T>
std::vector<T> ValuesOf(std::span<const uint8_t> bytes) {
  CheckArgument(bytes.size() % sizeof(T) == 0, "ranks: a call ends too soon");
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Whether the pool has the slots and chunks that the batch names.
void CheckStates(const ForwardBatch& batch, const StatePool* states) {
  if (batch.states.empty()) return;
  CheckArgument(states != nullptr, "ranks: states that the cache does not have");
  const auto check = [](int64_t value, int64_t least, int64_t end) {
    CheckArgument(value >= least && value < end, "ranks: a state that the cache does not have");
  };
  const int64_t num_slots = states->slots().num_pages();
  for (const BatchState& state : batch.states) {
    check(state.from_slot, -1, num_slots);
    check(state.slot, -1, num_slots);
  }
  for (const int32_t chunk : batch.state_logs) check(chunk, -1, states->chunks().num_pages());
  for (const StateCapture& capture : batch.captures) check(capture.slot, 0, num_slots);
}

}  // namespace

std::vector<PageEvent> CallToForward(const Ranks& ranks, const ForwardBatch& batch, const ModelSpec& spec, KvCache& cache, bool with_head) {
  CheckBatch(batch, spec, cache.groups(), cache.pool().num_pages());
  std::vector<PageEvent> events = cache.TakeEvents();
  const ForwardHeader header = {events.size(), with_head ? 1u : 0u};
  std::vector<uint8_t> bytes = BytesOf(std::span(&header, 1));
  for (const std::vector<uint8_t>& part : {BytesOf(std::span<const PageEvent>(events)), ToBytes(batch)})
    bytes.insert(bytes.end(), part.begin(), part.end());
  ranks.Call(RankCall::kForward, bytes);
  return events;
}

void CallToEmbed(const Ranks& ranks, std::span<const int32_t> token_ids, float scale) {
  std::vector<uint8_t> bytes = BytesOf(std::span<const float>(&scale, 1));
  const std::vector<uint8_t> ids = BytesOf(token_ids);
  bytes.insert(bytes.end(), ids.begin(), ids.end());
  ranks.Call(RankCall::kEmbed, bytes);
}

void CallToHead(const Ranks& ranks, const float* hidden, int64_t num_rows, int64_t hidden_size) {
  ranks.Call(RankCall::kHead, BytesOf(std::span(hidden, static_cast<size_t>(num_rows * hidden_size))));
}

ForwardCall ReadForward(std::span<const uint8_t> bytes, const ModelSpec& spec, const KvCache& cache) {
  ForwardHeader header = {};
  CheckArgument(bytes.size() >= sizeof header, "ranks: a call ends too soon");
  std::memcpy(&header, bytes.data(), sizeof header);
  bytes = bytes.subspan(sizeof header);
  CheckArgument(header.num_events <= bytes.size() / sizeof(PageEvent), "ranks: a call ends too soon");
  const size_t size = header.num_events * sizeof(PageEvent);
  ForwardCall call = {ValuesOf<PageEvent>(bytes.first(size)), BatchFromBytes(bytes.subspan(size)), header.with_head != 0};
  for (const PageEvent& event : call.events) CheckArgument(cache.Knows(event), "ranks: a page that the cache does not have");
  CheckBatch(call.batch, spec, cache.groups(), cache.pool().num_pages());
  CheckStates(call.batch, cache.states());
  return call;
}

EmbedCall ReadEmbed(std::span<const uint8_t> bytes, const ModelSpec& spec) {
  EmbedCall call = {};
  CheckArgument(bytes.size() >= sizeof call.scale, "ranks: a call ends too soon");
  std::memcpy(&call.scale, bytes.data(), sizeof call.scale);
  call.token_ids = ValuesOf<int32_t>(bytes.subspan(sizeof call.scale));
  CheckArgument(std::ranges::all_of(call.token_ids, [&](int32_t id) { return id >= 0 && id < spec.vocab_size; }),
                "ranks: a token is out of range");
  return call;
}

std::vector<float> ReadHead(std::span<const uint8_t> bytes, const ModelSpec& spec) {
  std::vector<float> hidden = ValuesOf<float>(bytes);
  CheckArgument(hidden.size() % static_cast<size_t>(spec.hidden_size) == 0, "ranks: a call ends too soon");
  return hidden;
}

}  // namespace llmi
