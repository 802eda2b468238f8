// How large the KV cache is, and how long a sequence may grow in it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/engine.h"
#include "model/rank_plan.h"
#include "model/weights.h"

namespace llmi {

// Rows of logits that are in memory at once. The host takes as many as fit its caches (16 rows of Gemma's 262,144 ids). A device reads the
// whole head for each chunk of rows, so it takes more (256 rows of Qwen's 151,936 ids).
inline int64_t LogitsRowsAtOnce(int64_t vocab_size, bool on_device) {
  const int64_t max_rows = on_device ? 256 : 32;
  const int64_t max_floats = int64_t{on_device ? 40 : 4} << 20;
  return std::max<int64_t>(1, std::min(max_rows, max_floats / vocab_size));
}

// The most rows of a step.
int64_t StepRows(const SchedulerConfig& scheduler);

// The KV groups of the model's layers, for this type of cache and size of blocks.
// plan: with the pages of this one of several ranks.
KvGroups GroupsOf(const ModelSpec& model, const EngineConfig& config, const RankPlan* plan = nullptr, int rank = 0);

// The sizes of a pool of states for num_sequences sequences; all 0 if no layer has a state.
StateSizes StatesFor(const ModelSpec& model, int64_t num_sequences);

// The same of one of several ranks, whose own states have these sizes; `whole` has the numbers of slots and chunks.
StateSizes RankStates(const StateSizes& own, const StateSizes& whole);

struct SizingRequest {
  int64_t kv_cache_memory_bytes = 0;  // 0: as much of available_bytes as the limits can use
  int64_t max_model_len = 0;          // 0: the model's limit, or what the cache holds if that is less
  uint64_t available_bytes = 0;       // that the cache may take
};

// Bytes that a device's cache may take when weights and workspaces are allocated, so that the share `utilization` of the device's memory
// is in use, other programs included. Throws Error(kOutOfMemory) with the arithmetic if nothing is left.
uint64_t DeviceCacheBytes(uint64_t total_bytes, uint64_t free_bytes, double utilization);

// Memory that a model needs in addition to its cache.
struct ModelNeeds {
  WeightPlan weights;
  WeightPlan at_q8_0, at_q4_0;  // if they were quantised as they are loaded
  uint64_t workspace_bytes = 0;
  int64_t workspace_rows = 0;
};

// Throws Error(kInvalidArgument) for a length that exceeds the model's, and limits below 1.
void CheckSizes(const ModelSpec& model, const SizingRequest& request, const EngineConfig& config);

// Throws Error(kOutOfMemory) with the whole sum unless weights, workspace and cache fit into free_bytes. The cache is that of
// kv_cache_memory_bytes if it is given, else that of one sequence of max_model_len, else that of one block.
void CheckModelFits(const ModelSpec& model, const SizingRequest& request, const EngineConfig& config, const ModelNeeds& needs,
                    uint64_t free_bytes);

// Bytes that the host's cache may take: half of the free memory, or what one sequence of max_model_len needs if that is more, but no more
// than the model leaves.
uint64_t HostCacheBytes(const ModelSpec& model, const SizingRequest& request, const EngineConfig& config, const ModelNeeds& needs,
                        uint64_t free_bytes);

// Sets config->num_pages and config->max_model_len. Throws Error(kOutOfMemory) with the arithmetic if a given length does not fit,
// Error(kInvalidArgument) if it exceeds the model's.
void ResolveSizes(const ModelSpec& model, const SizingRequest& request, EngineConfig* config);

}  // namespace llmi
