// What rank 0 sends with each of its calls, and what the others make of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "model/forward_batch.h"
#include "model/ranks.h"
#include "model/spec.h"

namespace llmi {

// Rank 0: the batch, and what happened to pages since the last one. with_head: with the logits of the wanted rows.
// Throws as ReadForward does, before any other rank is called.
// Returns what happened to pages.
std::vector<PageEvent> CallToForward(const Ranks& ranks, const ForwardBatch& batch, const ModelSpec& spec, KvCache& cache, bool with_head);
void CallToEmbed(const Ranks& ranks, std::span<const int32_t> token_ids, float scale);
void CallToHead(const Ranks& ranks, const float* hidden, int64_t num_rows, int64_t hidden_size);

// The reverse. Each throws Error(kInvalidArgument) for bytes that fit neither the model nor the cache.
struct ForwardCall {
  std::vector<PageEvent> events;
  ForwardBatch batch;
  bool with_head;
};
ForwardCall ReadForward(std::span<const uint8_t> bytes, const ModelSpec& spec, const KvCache& cache);
struct EmbedCall {
  float scale;
  std::vector<int32_t> token_ids;
};
EmbedCall ReadEmbed(std::span<const uint8_t> bytes, const ModelSpec& spec);
std::vector<float> ReadHead(std::span<const uint8_t> bytes, const ModelSpec& spec);

}  // namespace llmi
